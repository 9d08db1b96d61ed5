// From a plan for every rank to a plan for one rank's file.
#pragma once

#include "passes/ir/graph.h"
#include "passes/ir/normalize.h"
#include "passes/plan/plan.h"

namespace bucketd {

// Makes a plan for the normalised graph speak the ids of the graph that was captured. What was
// inserted stands for nothing there; placeholders that were dropped are there again. Predictions
// and buckets' times stay those of the normalised graph. REQUIRES: `normalized` is Normalize(raw),
// and `plan` is legal for it. O(nodes).
void ToRawIds(const Graph& raw, const NormalizedGraph& normalized, Plan& plan);

}  // namespace bucketd
