// Tokens that were found to be right, or wrong, so that a caller's next call costs a hash and no
// signature.
#pragma once

#include <array>
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

namespace bucketd {

// How often hosts may show tokens that turn out to be wrong. Each costs a signature check (a tenth
// of a millisecond of the thread that takes calls), and whoever sends another one each time is
// known by nothing but where it comes from. In constant memory: hosts share a budget where their
// hashes do, by a number that nobody knows. Not thread-safe.
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

// Thread-safe.
class TokenMemory {
 public:
  // The name that the token gives by the issuers of `identities` at that time; errors as of
  // ReadToken and CheckIsCurrent. What other identities said of a token counts no more.
  // RESOURCE_EXHAUSTED: its host has shown so many wrong ones that one that nobody has seen before
  // is not looked at now.
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
