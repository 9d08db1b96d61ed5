#include "server/rpc/unfinished_messages.h"

#include <algorithm>
#include <utility>

namespace bucketd {
namespace {

constexpr size_t kPrefixBytes = 5;

bool Ends(const FrameHeader& frame) {
  return frame.kind == FrameKind::kResetStream ||
         ((frame.kind == FrameKind::kHeaders || frame.kind == FrameKind::kData) &&
          (frame.flags & kEndStream) != 0);
}

}  // namespace

void UnfinishedMessages::Received(const FrameReader::Part& part) {
  const FrameHeader& frame = part.frame;
  if (part.begins) {
    left_ = frame.size;
    if (frame.kind == FrameKind::kResetStream) {
      Forget(streams_.find(frame.stream));
    } else if (frame.kind == FrameKind::kHeaders) {
      Opened(frame);
    }
  } else {
    left_ -= part.payload.size();
    if (frame.kind == FrameKind::kData) {
      const auto stream = streams_.find(frame.stream);
      if (stream != streams_.end() && !stream->second.ended) Take(stream->second, part.payload);
    }
  }
  if (left_ == 0 && frame.kind != FrameKind::kResetStream && Ends(frame)) {
    EndedByClient(frame.stream);
  }
}

void UnfinishedMessages::Sent(const FrameHeader& frame) {
  const auto stream = streams_.find(frame.stream);
  if (stream == streams_.end()) return;
  if (Ends(frame)) {
    Forget(stream);
  } else if (frame.kind == FrameKind::kHeaders && !std::exchange(stream->second.answered, true)) {
    bytes_ += kAnswerBytes;
    ++answered_;
  }
}

void UnfinishedMessages::Opened(const FrameHeader& frame) {
  if (frame.stream <= last_) return;  // what a call has behind its messages
  last_ = frame.stream;
  streams_.try_emplace(frame.stream);
  bytes_ += kCallBytes;
}

void UnfinishedMessages::Take(Stream& stream, absl::string_view data) {
  while (!data.empty()) {
    if (stream.prefix < kPrefixBytes) {
      // The flag is shifted out.
      stream.length = stream.length << 8 | static_cast<unsigned char>(data.front());
      data.remove_prefix(1);
      ++stream.partial;
      ++bytes_;
      if (++stream.prefix == kPrefixBytes) stream.left = stream.length;
    } else {
      const auto taken = std::min<size_t>(stream.left, data.size());
      data.remove_prefix(taken);
      stream.left -= static_cast<uint32_t>(taken);
      stream.partial += static_cast<int64_t>(taken);
      bytes_ += static_cast<int64_t>(taken);
    }
    if (stream.prefix == kPrefixBytes && stream.left == 0) WholeMessage(stream);
  }
}

void UnfinishedMessages::WholeMessage(Stream& stream) {
  stream.prefix = 0;
  bytes_ -= stream.partial + stream.behind;
  const int64_t whole = std::exchange(stream.partial, 0);
  if (!std::exchange(stream.first, false)) {
    stream.behind = std::min(stream.behind + whole, kWindowBytes);
  }
  bytes_ += stream.behind;
}

// A message that was cut off is none; whole ones may still wait to be read.
void UnfinishedMessages::EndedByClient(uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end() || std::exchange(found->second.ended, true)) return;
  bytes_ -= std::exchange(found->second.partial, 0) + kCallBytes;
}

void UnfinishedMessages::Forget(Streams::iterator stream) {
  if (stream == streams_.end()) return;
  bytes_ -= stream->second.partial + stream->second.behind;
  if (!stream->second.ended) bytes_ -= kCallBytes;
  if (stream->second.answered) {
    bytes_ -= kAnswerBytes;
    --answered_;
  }
  streams_.erase(stream);
}

}  // namespace bucketd
