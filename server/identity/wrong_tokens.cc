#include "server/identity/wrong_tokens.h"

#include <algorithm>

#include "absl/hash/hash.h"

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

}  // namespace bucketd
