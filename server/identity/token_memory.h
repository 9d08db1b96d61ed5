// Tokens that were found to be right, or wrong, so that a caller's next call costs a hash and no
// signature. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "server/identity/identities.h"
#include "server/identity/token.h"
#include "server/identity/wrong_tokens.h"

namespace bucketd {

class TokenMemory {
 public:
  // The name that the token gives by the issuers of `identities` at that time; errors as of
  // ReadToken and CheckIsCurrent. What other identities said of a token counts no more.
  // RESOURCE_EXHAUSTED: its host has shown so many wrong ones that one that nobody has seen before
  // is not looked at now (wrong_tokens.h).
  absl::StatusOr<std::string> NameIn(absl::string_view token, absl::string_view host,
                                     const std::shared_ptr<const Identities>& identities,
                                     int64_t now_s);

 private:
  static constexpr size_t kMax = 8192;      // tokens, of which hash and name are kept
  static constexpr size_t kMaxWrong = 512;  // of which hash and error are

  // What is known of it; nothing: it has to be checked, which its host may ask for.
  std::optional<absl::StatusOr<Token>> Known(const std::string& hash, absl::string_view host,
                                             const std::shared_ptr<const Identities>& identities,
                                             int64_t now_s) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::shared_ptr<const Identities> identities_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Token> known_ ABSL_GUARDED_BY(mutex_);  // by SHA-256
  absl::flat_hash_map<std::string, absl::Status> wrong_ ABSL_GUARDED_BY(mutex_);
  WrongTokens hosts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
