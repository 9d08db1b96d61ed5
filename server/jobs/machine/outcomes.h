// What comes of scopes and of pinned plans: what is counted, and logged by name.
#pragma once

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"

#include "server/base/named.h"

namespace bucketd {

// Of a scope: agreed; its ranks differ, or some are missing; planning failed or took too long; a
// later generation began, or the server drained, first.
enum class AgreementOutcome { kAgreed, kDiffer, kMissing, kFailed, kSuperseded };
inline constexpr size_t kAgreementOutcomes = static_cast<size_t>(AgreementOutcome::kSuperseded) + 1;
inline constexpr std::array<Named<AgreementOutcome>, kAgreementOutcomes> kAgreementOutcomeNames = {{
    {AgreementOutcome::kAgreed, "agreed"},
    {AgreementOutcome::kDiffer, "differ"},
    {AgreementOutcome::kMissing, "missing"},
    {AgreementOutcome::kFailed, "failed"},
    {AgreementOutcome::kSuperseded, "superseded"},
}};
static_assert(IsByPosition(kAgreementOutcomeNames));

// Of a pinned plan whose profile has moved on: a faster plan took its place; it stays, since that
// one is not faster by enough, its graph is not here, or that could not be found out in time.
enum class ReplanOutcome { kReplaced, kKept, kNoGraph, kFailed };
inline constexpr size_t kReplanOutcomes = static_cast<size_t>(ReplanOutcome::kFailed) + 1;
inline constexpr std::array<Named<ReplanOutcome>, kReplanOutcomes> kReplanOutcomeNames = {{
    {ReplanOutcome::kReplaced, "replaced"},
    {ReplanOutcome::kKept, "kept"},
    {ReplanOutcome::kNoGraph, "no_graph"},
    {ReplanOutcome::kFailed, "failed"},
}};
static_assert(IsByPosition(kReplanOutcomeNames));

inline absl::string_view Name(ReplanOutcome outcome) {
  return kReplanOutcomeNames[static_cast<size_t>(outcome)].name;
}

}  // namespace bucketd
