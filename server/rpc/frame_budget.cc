#include "server/rpc/frame_budget.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace bucketd {
namespace {

enum Kind : unsigned char {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kPing = 6,
  kSettings = 4,
  kWindowUpdate = 8,
};
constexpr unsigned char kAck = 1;  // of settings and pings; kData: the stream's end
constexpr int64_t kTenths = 10;
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

}  // namespace

FrameBudget::FrameBudget(const FrameLimits& limits, SteadyTime now)
    : limits_(limits), since_(now), left_(limits.burst * kTenths) {}

void FrameBudget::TakePreface(absl::string_view& bytes) {
  const size_t taken = std::min(kPreface.size() - preface_, bytes.size());
  foreign_ = bytes.substr(0, taken) != kPreface.substr(preface_, taken);
  preface_ += taken;
  bytes.remove_prefix(taken);
}

bool FrameBudget::Take(absl::string_view bytes, SteadyTime now) {
  if (!foreign_ && preface_ < kPreface.size()) TakePreface(bytes);
  if (foreign_) return true;
  while (!bytes.empty()) {
    const size_t skipped = std::min(skip_, bytes.size());
    skip_ -= skipped;
    bytes.remove_prefix(skipped);
    const size_t taken = std::min(kHeaderBytes - have_, bytes.size());
    std::memcpy(header_.data() + have_, bytes.data(), taken);
    have_ += taken;
    bytes.remove_prefix(taken);
    if (have_ < kHeaderBytes) return true;
    have_ = 0;
    skip_ = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
    if (!Spend(CostOfFrame(), now)) return false;
  }
  return true;
}

// In tenths of a reset. Calls and their content are bounded elsewhere, by streams and bytes.
int64_t FrameBudget::CostOfFrame() const {
  const bool flagged = (header_[4] & kAck) != 0;
  switch (header_[3]) {
    case kHeaders:
    case kWindowUpdate:
      return 0;
    case kData:
      return skip_ > 0 || flagged ? 0 : 1;
    case kPing:
    case kSettings:
      return flagged ? 0 : 1;
    case kResetStream:
      return kTenths;
    default:  // priorities, headers in pieces, what is unknown
      return 1;
  }
}

bool FrameBudget::Spend(int64_t cost, SteadyTime now) {
  if (cost == 0) return true;
  left_ -= cost;
  if (left_ >= 0) return true;
  const int64_t refill =
      limits_.per_second * kTenths *
      std::chrono::duration_cast<std::chrono::milliseconds>(now - since_).count() / 1000;
  since_ = now;
  left_ = std::min(left_ + refill, limits_.burst * kTenths);
  return left_ >= 0;
}

}  // namespace bucketd
