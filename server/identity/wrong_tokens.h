// How often hosts may show tokens that turn out to be wrong. Each costs a signature check (a tenth
// of a millisecond of the thread that takes calls), and whoever sends another one each time is
// known by nothing but where it comes from. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace bucketd {

// In constant memory: hosts share a budget where their hashes do, by a number that nobody knows.
class WrongTokens {
 public:
  static constexpr int64_t kAtOnce = 50;
  static constexpr int64_t kPerSecond = 5;

  // Whether a token from there may be checked.
  bool MayCheck(absl::string_view host, int64_t now_s) { return Refilled(host, now_s).left > 0; }
  // It was wrong.
  void Count(absl::string_view host, int64_t now_s) { --Refilled(host, now_s).left; }

 private:
  struct Budget {
    int64_t left = kAtOnce;
    int64_t at_s = 0;
  };
  Budget& Refilled(absl::string_view host, int64_t now_s);

  std::array<Budget, 1024> budgets_{};
};

}  // namespace bucketd
