#include "server/rpc/frame_budget.h"

#include <algorithm>
#include <chrono>

namespace bucketd {
namespace {

constexpr int64_t kReset = 100;
constexpr int64_t kUnanswered = 10;
// Who reads fast sends many: 10,000 a second are half a gigabyte of plans.
constexpr int64_t kWindow = 1;

// In hundredths of a reset. Calls and their content are bounded elsewhere, by streams and bytes.
int64_t CostOf(const FrameHeader& frame, bool stray) {
  switch (frame.kind) {
    case FrameKind::kHeaders:
      return stray ? kReset : 0;
    case FrameKind::kData:
      // A call that was refused may be in the midst of a message.
      if (stray) return kWindow;
      return frame.size > 0 || (frame.flags & kEndStream) != 0 ? 0 : kUnanswered;
    case FrameKind::kPing:
    case FrameKind::kSettings:
      return kUnanswered;  // the server asks for few acknowledgements
    case FrameKind::kContinuation:
    case FrameKind::kResetStream:
      return kReset;
    case FrameKind::kWindowUpdate:
      return kWindow;
  }
  return kUnanswered;  // priorities, what is unknown
}

}  // namespace

FrameBudget::FrameBudget(const FrameLimits& limits, SteadyTime now)
    : limits_(limits), since_(now), left_(limits.burst * kReset) {}

bool FrameBudget::Take(const FrameHeader& frame, bool stray, SteadyTime now) {
  if (frame.kind == FrameKind::kHeaders) headers_ = 0;
  if (frame.kind == FrameKind::kHeaders || frame.kind == FrameKind::kContinuation) {
    headers_ += frame.size;
  }
  if (headers_ > kMostHeaderBytes) return false;
  const int64_t cost = CostOf(frame, stray);
  if (cost == 0) return true;
  left_ -= cost;
  if (left_ >= 0) return true;
  const int64_t refill =
      limits_.per_second * kReset *
      std::chrono::duration_cast<std::chrono::milliseconds>(now - since_).count() / 1000;
  since_ = now;
  left_ = std::min(left_ + refill, limits_.burst * kReset);
  return left_ >= 0;
}

}  // namespace bucketd
