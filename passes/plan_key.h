// The canonical text of everything a plan depends on. Two requests may share a plan if and only if
// their keys are equal, byte for byte; hashes of it only find candidates. One "name=value" a line,
// values escaped, in a fixed order: a difference between two keys can be read.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

#include "passes/base/digest.h"
#include "passes/cost/costs.h"
#include "passes/cost/profile.h"
#include "passes/pass/options.h"

namespace bucketd {

// `options` with its defaults filled in, so that a default that is spelled out is the same key.
std::string PlanKey(absl::string_view tenant, const Digest& graph, const Mesh& mesh,
                    const PlanOptions& options, const KeyedProfile& profile,
                    absl::string_view planner_version);

// Whether it is a key of that graph of that tenant's, whatever else it says.
bool IsPlanKeyOf(absl::string_view plan_key, absl::string_view tenant, const Digest& graph);
// Of such a key, the lines that a caller chose: all before cost profile and planner. A view into
// it.
absl::string_view ChosenPartOf(absl::string_view plan_key);
// "name@version" of the cost profile in it, as a view; "" if there is none.
absl::string_view ProfileIdOf(absl::string_view plan_key);

}  // namespace bucketd
