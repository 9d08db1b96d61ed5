// Waits where they are needed: robust against a wire that is slower than its costs say.
#include "passes/auto/late_waits.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "passes/auto/search.h"
#include "passes/auto/to_plan.h"
#include "passes/io/profile_json.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/fit_memory.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/ladder.h"
#include "tests/passes/perturbed_costs.h"

namespace bucketd::testing {
namespace {

using search::Problem;

// How late waits stand: the compute before them, in nanoseconds, summed over all.
int64_t Lateness(const Graph& graph, const Costs& costs, const Plan& plan) {
  int64_t sum = 0, compute_ps = 0;
  for (const Step& step : plan.order) {
    const bool node = step.kind == Step::Kind::kNode;
    if (step.kind == Step::Kind::kWait || (node && graph.kind(step.id) == NodeKind::kWait)) {
      sum += compute_ps / 1000;
    } else if (node && graph.kind(step.id) != NodeKind::kCollective) {
      compute_ps += costs.node_ps(step.id);
    }
  }
  return sum;
}

// A plan of the search's before and after.
void Check(const std::string& what, const Graph& graph, const Costs& costs, int64_t decodes,
           int64_t& late_before, int64_t& late_after) {
  PlanOptions options;
  options.numerics = Numerics::kFree;
  Plan plan = ProgramOrder(graph);
  PassContext context(graph, costs, options);
  context.program_order = Simulate(graph, plan, costs).prediction;
  ASSERT_TRUE((*MakePass("tag-collectives"))->Run(context, plan).ok());
  const absl::StatusOr<Problem> problem = search::Contract(context);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const int64_t limit = MemoryLimit(context);
  search::Search search(*problem, limit, decodes * problem->size());
  search.Run();
  plan = search::PlanOf(context, *problem, search.best());
  const Prediction before = Simulate(graph, plan, costs).prediction;
  late_before += Lateness(graph, costs, plan);
  const Prediction after = search::SettleWaits(context, *problem, limit, before, plan);
  late_after += Lateness(graph, costs, plan);
  EXPECT_TRUE(VerifyPlan(graph, plan).ok()) << what << VerifyPlan(graph, plan);
  EXPECT_LE(after.total_ps, before.total_ps) << what;
  // A step that gets faster may take all of the limit.
  const int64_t most =
      after.total_ps < before.total_ps ? limit : std::min(limit, context.program_order.peak_bytes);
  EXPECT_LE(after.peak_bytes, std::max(most, before.peak_bytes)) << what;
  const Prediction again = Simulate(graph, plan, costs).prediction;
  EXPECT_EQ(again.total_ps, after.total_ps) << what;
  EXPECT_EQ(again.peak_bytes, after.peak_bytes) << what;
}

TEST(LateWaits, KeepLegalityTimeAndMemoryOnRandomSteps) {
  int64_t before = 0, after = 0;
  for (uint32_t seed = 3000; seed < 3000 + Seeds(300); ++seed) {
    const Graph graph = RandomStep(seed).Build();
    Check(absl::StrCat("seed ", seed), graph, CostsOf(graph), 10, before, after);
  }
  EXPECT_GT(after, before);
}

TEST(LateWaits, StandWhereTheyAreNeededInCapturedGraphs) {
  for (const char* const name : {"llama3_debug_fsdp8.bw", "llama3_debug_fsdp4_tp2.fw"}) {
    int64_t before = 0, after = 0;
    const CapturedGraph captured = Captured(name);
    for (const CostProfile& profile : BuiltInProfiles()) {
      const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(costs.ok()) << costs.status();
      Check(absl::StrCat(name, " ", profile.name), captured.graph, *costs, 30, before, after);
    }
    EXPECT_GT(after, before) << name;
  }
}

TEST(LateWaits, StayBeforeWhoeverWritesWhatTheirCollectiveReads) {
  Net net;
  const NodeId x = net.Call("x", {net.Input("in", {512, 512})}, {512, 512});
  const NodeId start = net.Start(CollectiveKind::kAllReduce, "r", x, ReduceOp::kSum);
  NodeId h = net.Input("h", {512, 512});
  for (int i = 0; i < 20; ++i) h = net.Call(absl::StrCat("mm", i), {h}, {512, 512});
  const NodeId reduced = net.Wait("r", start);
  const NodeId written = net.Mutate("add_", x);
  for (int i = 20; i < 30; ++i) h = net.Call(absl::StrCat("mm", i), {h}, {512, 512});
  net.Out(net.Call("last", {h, reduced, written}, {512, 512}), SlotKind::kOutput);
  const Graph graph = net.Build();
  int64_t before = 0, after = 0;
  Check("", graph, CostsOf(graph), 10, before, after);
}

// Costs that are off by up to 30 %, as measured ones may be: the plan against the one that knew.
TEST(LateWaits, APlanFromWrongCostsIsHardlySlowerThanTheOneThatKnewTheTruth) {
  for (const char* const name :
       {"llama3_debug_ddp8.bw", "llama3_debug_fsdp8.bw", "moe_debug_fsdp4_ep4.fw"}) {
    const CapturedGraph captured = Captured(name);
    for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
      if (profile.name == "cpu_loopback") continue;
      PlanOptions options;
      options.mode = "auto";
      options.numerics = Numerics::kFree;
      const absl::StatusOr<Costs> truth = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(truth.ok()) << truth.status();
      const absl::StatusOr<Plan> right = MakePlan(captured.graph, *truth, options);
      ASSERT_TRUE(right.ok()) << right.status();
      for (uint64_t seed = 1; seed <= Seeds(3); ++seed) {
        const absl::StatusOr<Costs> wrong = PerturbedCosts(captured, profile, seed, 0.3);
        ASSERT_TRUE(wrong.ok()) << wrong.status();
        const absl::StatusOr<Plan> plan = MakePlan(captured.graph, *wrong, options);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const int64_t total = Simulate(captured.graph, *plan, *truth).prediction.total_ps;
        EXPECT_LE(total, right->prediction.total_ps / 100 * 103)
            << name << " " << profile.name << " seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace bucketd::testing
