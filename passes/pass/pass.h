// A pass reads the graph and what earlier passes found out, and changes the plan. Passes keep no
// state: everything that outlives Run() is in the context or in the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/pass/constraints.h"
#include "passes/pass/options.h"
#include "passes/pass/tags.h"
#include "passes/plan/plan.h"

namespace bucketd {

// What eager training would shard and communicate as one: a transformer block, or one entry of a
// bucket list.
struct Unit {
  std::string name;
  std::vector<std::string> paths;         // module or parameter FQNs; empty where blocks were found
  std::vector<CollectiveId> collectives;  // tagged ones that belong here, ascending
};

// One communication that the schedule moves: a bucket, or a collective that stays alone.
struct Launch {
  BucketId bucket = -1;
  CollectiveId collective = -1;  // if bucket < 0
  CollectiveKind kind = CollectiveKind::kUnspecified;
  Direction direction = Direction::kNone;
  int32_t unit = -1;
};

// How a launch is hidden, as far as a schedule knows.
struct LaunchOverlap {
  BucketId bucket = -1;
  CollectiveId collective = -1;  // if bucket < 0
  int64_t est_ps = 0;            // alone, without contention
  int64_t exposed_ps = 0;        // of est_ps, what nothing hides
  // What hides it, in plan order: compute, and waits on other groups (of a bucket its first
  // member's). Each stands in plan.order between the launch's start and its wait.
  std::vector<NodeId> hidden_by;
};

// Of one planning run; not thread-safe. The references outlive it.
struct PassContext {
  PassContext(const Graph& g, const Costs& c, const PlanOptions& o)
      : graph(g), costs(c), options(o) {}

  const Graph& graph;
  const Costs& costs;
  const PlanOptions& options;
  Prediction program_order;  // of the untouched graph

  // Blackboard; each is empty until the pass that is named has run.
  Tags tags;                          // tag-collectives
  std::vector<Direction> directions;  // tag-collectives; one a collective
  Constraints constraints;            // tag-collectives
  // find-blocks or read-entries; greedy-bucket and pre-bucket make one of each launch.
  std::vector<Unit> units;
  // bucket-units, greedy-bucket or pre-bucket; buckets first, in plan order. Whoever changes units
  // or buckets behind them empties it.
  std::vector<Launch> launches;
  // schedule-overlap, or the caller (text form), kept up by bucket-overlap; one a launch of any
  // kind that somebody waits for, by the first wait in the order before scheduling.
  std::vector<LaunchOverlap> overlap;
};

class Pass {
 public:
  virtual ~Pass() = default;
  virtual absl::string_view name() const = 0;
  // Whether it reads what tag-collectives leaves; a pipeline refuses to run it without that.
  virtual bool needs_tags() const { return false; }
  // Whether it makes buckets of a plan that has none; a pipeline refuses to run it on another.
  virtual bool is_first_to_bucket() const { return false; }
  // True if plan.buckets or plan.order changed. INVALID_ARGUMENT: options. FAILED_PRECONDITION: the
  // graph cannot be planned so; the text says what to do. The plan must be legal afterwards.
  virtual absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const = 0;
};

}  // namespace bucketd
