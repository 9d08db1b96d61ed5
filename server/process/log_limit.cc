#include "server/process/log_limit.h"

#include <algorithm>

namespace bucketd {

LogLimit::Kind& LogLimit::KindOf(const std::string& name, Time now) {
  if (kinds_.size() >= kMaxKinds && !kinds_.contains(name)) {
    std::erase_if(kinds_, [&](const auto& entry) {
      return entry.second.free <= now && entry.second.left_out == 0;
    });
  }
  return kinds_[kinds_.size() < kMaxKinds || kinds_.contains(name) ? name : "other"];
}

std::optional<int64_t> LogLimit::Admit(const std::string& name, Time now) {
  Kind& kind = KindOf(name, now);
  if (kind.free > now + (burst_ - 1) * pause_) {
    if (kind.left_out++ == 0) kind.since = now;
    return std::nullopt;
  }
  kind.free = std::max(kind.free, now) + pause_;
  return std::exchange(kind.left_out, 0);
}

void LogLimit::LeaveOut(const std::string& name, int64_t lines, Time now) {
  Kind& kind = KindOf(name, now);
  if (kind.left_out == 0) kind.since = now;
  kind.left_out += lines;
}

std::vector<std::pair<std::string, int64_t>> LogLimit::TakeLeftOut(Time now) {
  std::vector<std::pair<std::string, int64_t>> due;
  for (auto& [name, kind] : kinds_) {
    if (kind.left_out == 0 || kind.since + kSilence > now) continue;
    due.emplace_back(name, std::exchange(kind.left_out, 0));
  }
  return due;
}

}  // namespace bucketd
