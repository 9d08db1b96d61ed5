// The clock that deadlines are told in.
#pragma once

#include <algorithm>
#include <chrono>

namespace bucketd {

using SteadyTime = std::chrono::steady_clock::time_point;

// Our own answer says what was waited for; it has to be there before the caller's deadline is.
inline SteadyTime AnswerBy(SteadyTime deadline, SteadyTime now) {
  constexpr std::chrono::milliseconds kMostMargin{250};
  if (deadline <= now) return now;
  return deadline - std::min<SteadyTime::duration>(kMostMargin, (deadline - now) / 4);
}

}  // namespace bucketd
