#include "server/rpc/unfinished_messages.h"

#include <algorithm>
#include <utility>

namespace bucketd {
namespace {

constexpr size_t kPrefixBytes = 5;
constexpr int64_t kTogether = 1024;  // smaller messages count as one

bool Ends(const FrameHeader& frame) {
  return frame.kind == FrameKind::kResetStream ||
         ((frame.kind == FrameKind::kHeaders || frame.kind == FrameKind::kData) &&
          (frame.flags & kEndStream) != 0);
}

}  // namespace

void UnfinishedMessages::ReadInto(absl::string_view bytes, size_t room) {
  if (free_ == nullptr || bytes.data() != free_) {
    ++memory_;
    memory_bytes_ = static_cast<int64_t>(room);
  }
  free_ = bytes.size() < room ? bytes.data() + bytes.size() : nullptr;
}

bool UnfinishedMessages::IsStray(const FrameHeader& frame) const {
  if (frame.kind == FrameKind::kHeaders) return !Opens(frame);
  if (frame.kind != FrameKind::kData) return false;
  const auto stream = streams_.find(frame.stream);
  return stream == streams_.end() || stream->second.ended;
}

// Others are what a call has behind its messages, or no client's.
bool UnfinishedMessages::Opens(const FrameHeader& frame) const {
  return frame.stream > last_ && frame.stream % 2 == 1;
}

void UnfinishedMessages::Received(const FrameReader::Part& part) {
  const FrameHeader& frame = part.frame;
  if (part.begins) {
    left_ = frame.size;
    if (frame.kind == FrameKind::kResetStream) {
      Forget(streams_.find(frame.stream));
    } else if (frame.kind == FrameKind::kHeaders) {
      Opened(frame);
    } else if (frame.kind == FrameKind::kData && frame.size > 0 && !IsStray(frame)) {
      Keep(streams_.at(frame.stream), kFrameBytes);
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
  if (!Opens(frame)) return;
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
      Keep(stream, 1);
      if (++stream.prefix == kPrefixBytes) stream.left = stream.length;
    } else {
      const auto taken = std::min<size_t>(stream.left, data.size());
      data.remove_prefix(taken);
      stream.left -= static_cast<uint32_t>(taken);
      Keep(stream, static_cast<int64_t>(taken));
    }
    if (stream.prefix == kPrefixBytes && stream.left == 0) WholeMessage(stream);
  }
}

// With it all the memory that it came into.
void UnfinishedMessages::Keep(Stream& stream, int64_t bytes) {
  if (std::exchange(stream.memory, memory_) != memory_) {
    stream.room = memory_bytes_;
    stream.partial += memory_bytes_;
    bytes_ += memory_bytes_;
  }
  const int64_t within = std::min(stream.room, bytes);
  stream.room -= within;
  stream.partial += bytes - within;
  bytes_ += bytes - within;
}

void UnfinishedMessages::WholeMessage(Stream& stream) {
  stream.prefix = 0;
  const int64_t kept = std::exchange(stream.partial, 0);
  bytes_ -= kept;
  if (std::exchange(stream.first, false)) {
    stream.memory = 0;
    return;
  }
  PutBehind(stream.behind, int64_t{stream.length} + static_cast<int64_t>(kPrefixBytes), kept);
}

// What has a window behind it has been read, and of a larger message all but as much.
void UnfinishedMessages::PutBehind(std::vector<Behind>& behind, int64_t size, int64_t kept) {
  kept = kept * std::min(size, kWindowBytes) / size;
  bytes_ += kept;
  if (!behind.empty() && behind.back().size < kTogether) {
    behind.back().size += size;
    behind.back().kept += kept;
    return;
  }
  behind.push_back({size, kept});
  int64_t unread = 0;
  auto oldest = behind.end();
  while (oldest != behind.begin() && unread < kWindowBytes) unread += (--oldest)->size;
  for (auto read = behind.begin(); read != oldest; ++read) bytes_ -= read->kept;
  behind.erase(behind.begin(), oldest);
}

// A message that was cut off is none; whole ones may still wait to be read.
void UnfinishedMessages::EndedByClient(uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end() || std::exchange(found->second.ended, true)) return;
  bytes_ -= std::exchange(found->second.partial, 0) + kCallBytes;
}

void UnfinishedMessages::Forget(Streams::iterator stream) {
  if (stream == streams_.end()) return;
  bytes_ -= stream->second.partial;
  for (const Behind& message : stream->second.behind) bytes_ -= message.kept;
  if (!stream->second.ended) bytes_ -= kCallBytes;
  if (stream->second.answered) {
    bytes_ -= kAnswerBytes;
    --answered_;
  }
  streams_.erase(stream);
}

}  // namespace bucketd
