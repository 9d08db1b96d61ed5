// Runs greedy passes alone and shows what they found.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

#include "passes/modes/pass_registry.h"
#include "passes/pass/pipeline.h"
#include "passes/plan/plan.h"
#include "passes/sim/simulator.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {

inline constexpr int64_t kMiB = int64_t{1} << 20;

// Free numerics, memory without a limit that matters.
inline PlanOptions GreedyOptions(std::vector<int64_t> caps, int32_t span = 1500) {
  PlanOptions options;
  options.mode = "greedy";
  options.numerics = Numerics::kFree;
  options.memory_limit_bytes = int64_t{1} << 40;
  options.bucket_cap_bytes = std::move(caps);
  options.max_topo_span = span;
  return options;
}

// From `plan`, or from program order.
inline absl::StatusOr<Plan> TryPass(absl::string_view pass, const Graph& graph, const Costs& costs,
                                    const PlanOptions& options, const Plan* from = nullptr) {
  Plan plan = from != nullptr ? *from : ProgramOrder(graph);
  PassContext context(graph, costs, options);
  context.program_order = Simulate(graph, ProgramOrder(graph), costs).prediction;
  const std::vector<absl::string_view> names = {"tag-collectives", pass};
  absl::StatusOr<Pipeline> pipeline = MakePipeline(names);
  if (!pipeline.ok()) return pipeline.status();
  const absl::Status status = pipeline->Run(context, plan);
  if (!status.ok()) return status;
  return plan;
}

inline Plan RunPass(absl::string_view pass, const Graph& graph, const PlanOptions& options,
                    const Plan* from = nullptr) {
  const absl::StatusOr<Plan> plan = TryPass(pass, graph, CostsOf(graph), options, from);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan();
}

inline Plan Greedy(const Graph& graph, const PlanOptions& options) {
  return RunPass("greedy-bucket", graph, options);
}

// Members of every bucket, in plan order.
inline std::vector<std::vector<std::string>> Buckets(const Graph& graph, const Plan& plan) {
  std::vector<std::vector<std::string>> all;
  for (const Bucket& bucket : plan.buckets) all.push_back(Members(graph, bucket));
  return all;
}

inline std::vector<size_t> Sizes(const Plan& plan) {
  std::vector<size_t> sizes;
  for (const Bucket& bucket : plan.buckets) sizes.push_back(bucket.members.size());
  return sizes;
}

}  // namespace bucketd::testing
