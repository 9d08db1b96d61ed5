// The text form of graphs and plans (TEXT_FORM.md): one line a node, for tests and people that read
// rather than decode.
//
//   graph @mlp mesh(dp=8 alpha=20us busbw=175GB/s) {
//     %x = input : bf16[8192,1000]
//     %p = param(wq.weight) : bf16[125,1000]
//     %g = all_gather(%p)
//     %w = wait(%g)
//     %h = mm(%x, %w) cost=45us : bf16[8192,1000]
//     return %h
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/types.h"
#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"
#include "passes/plan/plan.h"

namespace bucketd {

// How a collective is hidden, as a caller states it: hidden_by(%m1, %m2) exposed=0.2ms est=1ms.
struct BirOverlap {
  CollectiveId collective = -1;
  std::vector<NodeId> hidden_by;
  int64_t exposed_ps = -1;  // -1: not stated
  int64_t est_ps = -1;      // -1: not stated
  friend bool operator==(const BirOverlap&, const BirOverlap&) = default;
};

struct ParsedBir {
  Graph graph;
  StatedCosts costs;  // empty unless has_costs
  bool has_costs = false;
  Mesh mesh;                        // of the dimensions that groups use
  std::vector<BirOverlap> overlap;  // ascending by collective
  std::optional<Plan> plan;         // not verified
};

struct BirLimits {
  GraphLimits graph;
  int64_t max_bytes = int64_t{1} << 30;
  int64_t max_line_bytes = int64_t{1} << 20;
};

// INVALID_ARGUMENT begins with "line:column:" and says what was expected. Linear in the text; peak
// memory is some five times the text.
absl::StatusOr<ParsedBir> ParseBir(absl::string_view text, const BirLimits& limits = {});

// What is to be printed; the pointers may be null.
struct BirParts {
  const StatedCosts* costs = nullptr;
  const Mesh* mesh = nullptr;  // for ranks_per_node and link_class of the groups' dimensions
  absl::Span<const BirOverlap> overlap;
  const Plan* plan = nullptr;
};

// Canonical: ParseBir() gives back the graph with its names and digest, each cost and the plan, and
// printing that gives the same text. What the text has no words for is left out: of the mesh, what
// no group uses; of a plan, what follows from the graph and what was predicted.
std::string PrintBir(const Graph& graph, const BirParts& parts = {});

// A plan alone, its nodes named as in PrintBir(graph). Placeholders that stand first in program
// order and an output that stands last are left out.
std::string PrintPlan(const Graph& graph, const Plan& plan);

}  // namespace bucketd
