#include "server/rpc/unreached.h"

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "spdlog/spdlog.h"

namespace bucketd {
namespace {

constexpr std::chrono::minutes kRecent{1};
// Addresses come from the store: those of replicas that were there once.
constexpr size_t kMost = 64;

}  // namespace

void Unreached::Failed(const std::string& address, absl::string_view why, SteadyTime now) {
  {
    const absl::MutexLock lock(&mutex_);
    if (failures_.size() >= kMost && !failures_.contains(address)) failures_.clear();
    const auto [found, is_new] = failures_.try_emplace(address);
    found->second.last = now;
    found->second.why = std::string(why);
    if (!is_new && now - found->second.logged < kRecent) return;
    found->second.logged = now;
  }
  spdlog::warn(
      "the replica at {} cannot be asked: {}; is that its --cluster-address, and may this "
      "one reach it?",
      address, std::string(why));
}

void Unreached::Answered(const std::string& address) {
  const absl::MutexLock lock(&mutex_);
  if (!failures_.empty()) failures_.erase(address);
}

std::string Unreached::InWords(SteadyTime now) const {
  const absl::MutexLock lock(&mutex_);
  std::vector<std::string> all;
  for (const auto& [address, failure] : failures_) {
    if (now - failure.last > kRecent) continue;
    all.push_back(absl::StrCat("cannot ask the replica at ", address, ": ", failure.why));
  }
  return absl::StrJoin(all, "; ");
}

}  // namespace bucketd
