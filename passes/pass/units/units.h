// From tagged collectives to units.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/pass/entries.h"
#include "passes/pass/pass.h"
#include "passes/pass/units/blocks.h"

namespace bucketd {

// What a collective is matched by: the FQN of its parameter, else its module.
absl::string_view Label(const PassContext& context, CollectiveId c);

// Labels of tagged collectives, each once, in order of first use by the forward. In a graph that
// is backward only, the parameter whose last collective comes last was used first.
std::vector<LabelUse> LabelsInOrder(const PassContext& context);

// Fills context.units: each entry gets the tagged collectives that one of its paths holds.
// INVALID_ARGUMENT if one path holds another.
absl::Status MatchEntries(const std::vector<Entry>& entries, PassContext& context);

// Warnings about tagged collectives without a unit, entries that name nothing in the graph, and
// entries without a collective; FAILED_PRECONDITION with the same text under strict coverage.
absl::Status CheckCoverage(const PassContext& context, std::vector<Diagnostic>& diagnostics);

// Fills context.units as eager training would shard: by transformer blocks, where there are none by
// the options' entries. FAILED_PRECONDITION: by neither. REQUIRES: tags and directions are there.
absl::Status FindUnits(PassContext& context);

// "tok_embeddings; layers.0 to layers.31; norm+output".
std::string ListedUnits(absl::Span<const Unit> units);

}  // namespace bucketd
