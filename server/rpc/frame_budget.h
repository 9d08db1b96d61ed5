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

  // The next frame that came in. False: more of them than the limits allow; the connection should
  // end.
  bool Take(const FrameHeader& frame, SteadyTime now);

 private:
  FrameLimits limits_;
  SteadyTime since_;  // up to when `left_` has been refilled
  int64_t left_;      // in hundredths of a reset
};

}  // namespace bucketd
