// Counts the frames of one HTTP/2 connection (RFC 9113) that make work without being answered: a
// stream that is reset as soon as it is opened counts against no limit on open streams. Not
// thread-safe.
#pragma once

#include <cstdint>

#include "server/base/clock.h"
#include "server/rpc/frame_reader.h"

namespace bucketd {

// Clients of ours reset a stream when a call is cancelled or its deadline passes: seldom.
struct FrameLimits {
  int64_t burst = 500;       // resets that may come at once
  int64_t per_second = 100;  // and how fast that many come back
};

class FrameBudget {
 public:
  FrameBudget(const FrameLimits& limits, SteadyTime now);

  // The next frame that came in; `stray`: of no call that is under way. False: more of them than
  // the limits allow, or headers of more than kMostHeaderBytes; the connection should end.
  bool Take(const FrameHeader& frame, bool stray, SteadyTime now);

  // Of one call; gRPC refuses those of more than 8 KiB. It keeps what has come of a header, and
  // reads that from its start with each piece that comes.
  static constexpr size_t kMostHeaderBytes = 64 << 10;

 private:
  FrameLimits limits_;
  SteadyTime since_;    // up to when `left_` has been refilled
  int64_t left_;        // in hundredths of a reset
  size_t headers_ = 0;  // bytes of the last call's
};

}  // namespace bucketd
