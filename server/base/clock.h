// The clock that deadlines are told in.
#pragma once

#include <algorithm>
#include <chrono>

namespace bucketd {

using SteadyTime = std::chrono::steady_clock::time_point;

// Our own answer says what was waited for; it has to be there before the caller's deadline is: by
// `margin`, or by a quarter of what is left if that is less.
inline constexpr SteadyTime::duration kAnswerMargin = std::chrono::milliseconds(250);
inline SteadyTime AnswerBy(SteadyTime now, SteadyTime deadline,
                           SteadyTime::duration margin = kAnswerMargin) {
  return deadline <= now ? now : deadline - std::min(margin, (deadline - now) / 4);
}

}  // namespace bucketd
