// What ranks are told that cannot have a plan.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "server/jobs/machine/scope.h"

namespace bucketd {

// RANKS_DIFFER, who presented what. `difference` and `node`: where the graphs of the two signatures
// `compared` first differ, or "".
absl::Status DifferError(const Scope& scope, const std::array<size_t, 2>& compared,
                         absl::string_view difference, absl::string_view node);
// RANKS_DIFFER of ranks that came to an agreed scope with something else.
absl::Status DiffersAloneError(const Scope& scope, absl::Span<const uint32_t> ranks,
                               absl::string_view signature);
// RANKS_MISSING, and where they may be.
absl::Status MissingError(const Scope& scope);
// `why`, with the ranks it was for: the verdict of all.
absl::Status RefusedError(const Scope& scope, absl::Span<const uint32_t> ranks,
                          const absl::Status& why);
// Of a pinned plan that the store did not give: it never will. Else it may be asked again.
bool IsLost(const absl::Status& unread);
// What was agreed on cannot be had: GENERATION_OVER if it is lost, else STORE_UNAVAILABLE.
absl::Status UnreadPlanError(const absl::Status& unread);
// What this generation is like was decided at another server, while ranks began otherwise here.
absl::Status AnotherServerWasFirst();
absl::Status AnotherServerMayBeFirst();

}  // namespace bucketd
