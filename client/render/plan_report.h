// A plan as people read it: its buckets, and what it is predicted to do to the step.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd {

// A bucket in words. Files carry them, so a plan can be shown without its graph.
struct BucketLine {
  std::string name, kind, mesh_dim, mode;
  int64_t members = 0, bytes = 0, wire_ps = 0;
};

// `kind` and `mesh_dim`: of the bucket's collectives.
BucketLine LineOf(const Bucket& bucket, std::string kind, std::string mesh_dim);
std::vector<BucketLine> DescribeBuckets(const Graph& graph, const Plan& plan);

// Buckets as a table, one a line, with what they sum up to; a sentence if there are none.
std::string BucketTable(absl::Span<const BucketLine> buckets);

// Step time, exposed communication, memory and the rest, against program order.
std::string SummaryTable(const Plan& plan);

// How the plan was made, by whose costs, and whose bits gradients then have: a line each.
std::string HowMade(const Plan& plan, absl::string_view cost_profile);

// What a diagnostic says, as far as a few lines of a terminal: of a list its first items.
std::string Shortened(absl::string_view diagnostic);

// What the planner has to say about the plan, a line each, shortened, the first three of every
// code.
std::string DiagnosticLines(const Plan& plan);

}  // namespace bucketd
