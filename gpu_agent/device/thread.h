// Threads of ours in programs of others.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace bucketd::agent {

// One that takes no signals of the program. `name` is what thread lists call it, cut to 15
// characters. RESOURCE_EXHAUSTED if there is none to be had, with what to do.
absl::StatusOr<std::jthread> StartThread(const std::string& name,
                                         std::function<void(const std::stop_token&)> work);

}  // namespace bucketd::agent
