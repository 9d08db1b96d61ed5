#include "server/rpc/client_frames.h"

#include <algorithm>
#include <utility>

namespace bucketd {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

}  // namespace

ClientFrames::ClientFrames(Limits limits, SteadyTime now, std::string peer)
    : budget_(limits.frames, now),
      calls_(limits.calls),
      room_(std::move(limits.room)),
      held_(room_ == nullptr ? ByteRoom::Held() : ByteRoom::Held(*room_, std::move(peer))) {}

void ClientFrames::TakePreface(absl::string_view& bytes) {
  const size_t taken = std::min(kPreface.size() - preface_, bytes.size());
  foreign_ = bytes.substr(0, taken) != kPreface.substr(preface_, taken);
  preface_ += taken;
  bytes.remove_prefix(taken);
}

ClientFrames::Verdict ClientFrames::Received(absl::string_view bytes, size_t room, SteadyTime now) {
  unfinished_.ReadInto(bytes, room);
  if (!foreign_ && preface_ < kPreface.size()) TakePreface(bytes);
  if (foreign_) return Verdict::kGoOn;
  FrameReader::Part part;
  while (in_.Next(bytes, part)) {
    if (part.begins && !budget_.Take(part.frame, unfinished_.IsStray(part.frame), now)) {
      return Verdict::kFlood;
    }
    unfinished_.Received(part);
    if (calls_ != 0 && unfinished_.open() > calls_) return Verdict::kFlood;
  }
  return HoldUnfinished();
}

void ClientFrames::Sent(absl::string_view bytes) {
  if (foreign_) return;
  FrameReader::Part part;
  while (out_.Next(bytes, part)) {
    if (part.begins) unfinished_.Sent(part.frame);
  }
}

ClientFrames::Verdict ClientFrames::HasSent(bool stuck) {
  stuck_ = stuck;
  return HoldUnfinished();
}

ClientFrames::Verdict ClientFrames::HoldUnfinished() {
  const int64_t bytes = unfinished_.bytes() + (stuck_ ? unfinished_.bytes_unanswered() : 0);
  if (room_ == nullptr || held_.Resize(bytes).ok()) return Verdict::kGoOn;
  return bytes > kFreeBytes ? Verdict::kNoRoom : Verdict::kGoOn;
}

}  // namespace bucketd
