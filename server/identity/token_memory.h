// Tokens that were found to be right, so that a caller's next call costs a hash and no signature.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "server/identity/identities.h"
#include "server/identity/token.h"

namespace bucketd {

class TokenMemory {
 public:
  // The name that the token gives by the issuers of `identities` at that time; errors as of
  // ReadToken and CheckIsCurrent. What other identities said of a token counts no more.
  absl::StatusOr<std::string> NameIn(absl::string_view token,
                                     const std::shared_ptr<const Identities>& identities,
                                     int64_t now_s);

 private:
  static constexpr size_t kMax = 8192;  // tokens, of which hash and name are kept

  absl::Mutex mutex_;
  std::shared_ptr<const Identities> identities_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Token> known_ ABSL_GUARDED_BY(mutex_);  // by SHA-256
};

}  // namespace bucketd
