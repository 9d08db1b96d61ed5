// The clock that deadlines are told in.
#pragma once

#include <chrono>

namespace bucketd {

using SteadyTime = std::chrono::steady_clock::time_point;

}  // namespace bucketd
