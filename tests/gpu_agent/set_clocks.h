// Clocks of the test's own process, which it can set: wall clocks as an administrator or a
// synchronisation sets them, and the coarse one, which is nobody's but a ring's writer's.
#pragma once

#include <ctime>

#include "absl/time/time.h"

namespace bucketd::agent {

// So far off the machine's until it goes, when it is right again. One at a time of a clock. Of the
// wall clock it waits until Abseil has noticed, which looks at it every other second.
class ClockIsOff {
 public:
  ClockIsOff(clockid_t clock, absl::Duration by);
  ~ClockIsOff();
  ClockIsOff(const ClockIsOff&) = delete;
  ClockIsOff& operator=(const ClockIsOff&) = delete;

  void Set(absl::Duration by) const;

 private:
  const clockid_t clock_;
};

}  // namespace bucketd::agent
