// Schedules in one line of text, for tests of the overlap-preserving bucketer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/pass/options.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {

inline constexpr int64_t kMs = 1'000'000'000;  // in picoseconds

// A graph whose program order is the schedule, and what is hidden in it. Words:
//   a1  all-gather of a parameter     r1  reduce-scatter of what m1 makes    w1  the wait of a1 or
//   r1 m1  a matrix product              e1  a pointwise op of x
// "m1(w1,e2)": also reads these. "a1@1": on group 1. "a1:bw": in the backward. "a1:f32": its dtype.
// Each collective takes 1 ms; it is hidden altogether by the nodes that `hidden` lists for it,
// unless `exposed` says how much is not.
struct Schedule {
  explicit Schedule(const std::string& words,
                    const std::map<std::string, std::vector<std::string>>& hidden = {},
                    const std::map<std::string, int64_t>& exposed = {});

  NodeId node(const std::string& word) const { return nodes.at(word); }

  std::map<std::string, NodeId> nodes;
  std::vector<LaunchOverlap> overlap;  // by first wait
  std::unique_ptr<Graph> graph;
  std::unique_ptr<Costs> costs;
};

// Options under which memory and numerics forbid nothing.
PlanOptions FreeOptions();

struct Bucketed {
  Plan plan;
  std::vector<LaunchOverlap> overlap;
  bool changed = false;
};
// The pass alone on a schedule. The result has been verified.
absl::StatusOr<Bucketed> TryBucket(const Schedule& schedule, const PlanOptions& options,
                                   const std::vector<Bucket>& buckets = {});
Bucketed BucketOverlap(const Schedule& schedule, const PlanOptions& options = FreeOptions());

// A schedule as words; a bucket of a1 and a3 is A13, its wait W13.
std::string Words(const Graph& graph, const Plan& plan);

// Nodes that hide a collective and stand no longer between its start and its wait.
std::vector<NodeId> Unhidden(const Graph& graph, const Plan& plan,
                             const std::vector<LaunchOverlap>& before);

// A random graph of a few groups in a random order, with consistent hiding sets.
Schedule RandomSchedule(uint32_t seed);

}  // namespace bucketd::testing
