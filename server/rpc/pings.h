// How a replica finds out that whoever is connected to it is not there any more.
#pragma once

#include <chrono>

namespace bucketd {

// How often it asks, and how long there is to answer: ranks behind a link that has gone silent are
// absent then.
struct Pings {
  std::chrono::milliseconds every{10'000}, timeout{20'000};
};

}  // namespace bucketd
