// What a rank presents: everything of a plan's key that the caller chose. That is the key without
// the planner's version and with the cost profile as it was asked for ("", "name", "latest"), so
// that ranks, restarts and upgrades of the server compare what the job wants, not what it gets.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace bucketd {

// One "name=value" a line. `plan_key` is plan_key.h's.
std::string SignatureOf(absl::string_view plan_key, absl::string_view profile_as_asked);

// Whether a signature that was kept, perhaps by another version of the server, is the one that is
// presented now. Options that one of them does not know count as left at their defaults.
bool SameSignature(absl::string_view kept, absl::string_view now);

// The fields, other than the graph, in which two signatures differ: `numerics is "exact" against
// "free"`, at most three and then how many more. "" if there are none.
std::string DifferingFields(absl::string_view a, absl::string_view b);

}  // namespace bucketd
