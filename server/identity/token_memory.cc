#include "server/identity/token_memory.h"

#include <optional>

#include "passes/base/digest.h"
#include "passes/base/status_macros.h"

namespace bucketd {

absl::StatusOr<std::string> TokenMemory::NameIn(absl::string_view token,
                                                const std::shared_ptr<const Identities>& identities,
                                                int64_t now_s) {
  const std::string hash(AsBytes(Sha256(token)));
  std::optional<Token> known;
  {
    const absl::MutexLock lock(&mutex_);
    if (identities != identities_) {
      known_.clear();
      identities_ = identities;
    }
    if (const auto found = known_.find(hash); found != known_.end()) known = found->second;
  }
  if (!known.has_value()) {
    ASSIGN_OR_RETURN(known, ReadToken(token, identities->issuers()));
  }
  RETURN_IF_ERROR(CheckIsCurrent(*known, now_s));
  const absl::MutexLock lock(&mutex_);
  if (identities == identities_) {
    if (known_.size() >= kMax) known_.clear();
    known_.emplace(hash, *known);
  }
  return known->name;
}

}  // namespace bucketd
