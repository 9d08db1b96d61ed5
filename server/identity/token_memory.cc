#include "server/identity/token_memory.h"

#include <algorithm>

#include "absl/hash/hash.h"

#include "passes/base/digest.h"
#include "passes/base/status_macros.h"

namespace bucketd {

WrongTokens::Budget& WrongTokens::Refilled(absl::string_view host, int64_t now_s) {
  // absl's hashes differ from process to process.
  Budget& budget = budgets_[absl::HashOf(host) % budgets_.size()];
  // A clock that was set back refills nothing, and begins anew.
  const int64_t seconds = std::clamp<int64_t>(now_s - budget.at_s, 0, kAtOnce);
  budget.left = std::min(kAtOnce, budget.left + seconds * kPerSecond);
  budget.at_s = now_s;
  return budget;
}

std::optional<absl::StatusOr<Token>> TokenMemory::Known(
    const std::string& hash, absl::string_view host,
    const std::shared_ptr<const Identities>& identities, int64_t now_s) {
  if (identities != identities_) {
    known_.clear();
    wrong_.clear();
    identities_ = identities;
  }
  if (const auto found = known_.find(hash); found != known_.end()) return found->second;
  if (const auto found = wrong_.find(hash); found != wrong_.end()) return found->second;
  if (hosts_.MayCheck(host, now_s)) return std::nullopt;
  return absl::ResourceExhaustedError(
      "this host has shown many wrong ones, and new ones from there have to wait");
}

absl::StatusOr<std::string> TokenMemory::NameIn(absl::string_view token, absl::string_view host,
                                                const std::shared_ptr<const Identities>& identities,
                                                int64_t now_s) {
  const std::string hash(AsBytes(Sha256(token)));
  std::optional<absl::StatusOr<Token>> read;
  {
    const absl::MutexLock lock(&mutex_);
    read = Known(hash, host, identities, now_s);
  }
  if (!read.has_value()) {
    read = ReadToken(token, identities->issuers());
    const absl::MutexLock lock(&mutex_);
    if (!read->ok()) hosts_.Count(host, now_s);
    if (identities == identities_ && read->ok()) {
      if (known_.size() >= kMax) known_.clear();
      known_.emplace(hash, **read);
    } else if (identities == identities_) {
      if (wrong_.size() >= kMaxWrong) wrong_.clear();
      wrong_.emplace(hash, read->status());
    }
  }
  RETURN_IF_ERROR(read->status());
  RETURN_IF_ERROR(CheckIsCurrent(**read, now_s));
  return (*read)->name;
}

}  // namespace bucketd
