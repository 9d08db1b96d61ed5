// Locks by name, so that what is done of one name does not wait for what is done of another. Of two
// names it may be the same lock.
#pragma once

#include <array>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace bucketd {

class Stripes {
 public:
  // The same in every process, unlike absl's hash: so a simulation's runs are alike.
  absl::Mutex& Of(absl::string_view name) {
    return locks_[std::hash<std::string>()(std::string(name)) % locks_.size()];
  }

 private:
  std::array<absl::Mutex, 256> locks_;
};

}  // namespace bucketd
