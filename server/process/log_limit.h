// How many lines of one kind a log takes: whoever can make a daemon write a line must not fill its
// disk, nor bury the lines that matter. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bucketd {

class LogLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Of a kind: so many at once, one in each pause for good.
  static constexpr int kBurst = 100;
  static constexpr std::chrono::milliseconds kPause{200};
  // How long lines may be left out without a word.
  static constexpr std::chrono::seconds kSilence{5};
  static constexpr size_t kMaxKinds = 256;  // the others are one kind

  LogLimit() = default;
  LogLimit(int burst, std::chrono::milliseconds pause) : burst_(burst), pause_(pause) {}

  // How many lines of this kind were left out before this one; nullopt: so is this one.
  std::optional<int64_t> Admit(const std::string& kind, Time now);
  // So many that were admitted could not be written.
  void LeaveOut(const std::string& kind, int64_t lines, Time now);
  // Kinds of which lines were left out kSilence ago, and how many; 0 from then on.
  std::vector<std::pair<std::string, int64_t>> TakeLeftOut(Time now);

 private:
  struct Kind;
  Kind& KindOf(const std::string& name, Time now);

  struct Kind {
    Time free;  // when kBurst lines fit again
    int64_t left_out = 0;
    Time since;  // of the first of these
  };
  const int burst_ = kBurst;
  const std::chrono::milliseconds pause_ = kPause;
  std::map<std::string, Kind> kinds_;
};

}  // namespace bucketd
