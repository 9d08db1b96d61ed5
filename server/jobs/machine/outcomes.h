// What comes of scopes and of pinned plans: what is counted, and logged by name.
#pragma once

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace bucketd {

// Of a scope: agreed; its ranks differ, or some are missing; planning failed or took too long; a
// later generation began, or the server drained, first.
enum class AgreementOutcome { kAgreed, kDiffer, kMissing, kFailed, kSuperseded };
inline constexpr std::array<const char*, 5> kAgreementOutcomeNames = {"agreed", "differ", "missing",
                                                                      "failed", "superseded"};
inline constexpr size_t kAgreementOutcomes = kAgreementOutcomeNames.size();
static_assert(static_cast<size_t>(AgreementOutcome::kSuperseded) + 1 == kAgreementOutcomes);

// Of a pinned plan whose profile has moved on: a faster plan took its place; it stays, since that
// one is not faster by enough, its graph is not here, or that could not be found out in time.
enum class ReplanOutcome { kReplaced, kKept, kNoGraph, kFailed };
inline constexpr std::array<const char*, 4> kReplanOutcomeNames = {"replaced", "kept", "no_graph",
                                                                   "failed"};
inline constexpr size_t kReplanOutcomes = kReplanOutcomeNames.size();
static_assert(static_cast<size_t>(ReplanOutcome::kFailed) + 1 == kReplanOutcomes);

inline absl::string_view Name(ReplanOutcome outcome) {
  return kReplanOutcomeNames[static_cast<size_t>(outcome)];
}

}  // namespace bucketd
