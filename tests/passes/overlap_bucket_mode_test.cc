// The bucketer behind the passes that come before it.
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/modes/pass_registry.h"
#include "passes/pass/pipeline.h"
#include "passes/planner.h"
#include "tests/passes/overlap_bucket_test_util.h"
#include "tests/passes/overlap_test_util.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

// A bucket is A or R and the number of its members, its wait W and that number.
std::string Sizes(const Graph& graph, const Plan& plan) {
  return Words(graph, plan, [&](const Step& step, const Bucket& bucket) {
    const NodeId first = bucket.members.front();
    const bool gather =
        graph.collective(graph.collective_of(first)).kind == CollectiveKind::kAllGather;
    return absl::StrCat(step.kind == Step::Kind::kWait ? "W" : (gather ? "A" : "R"),
                        bucket.members.size());
  });
}

Plan RunPasses(const Graph& graph, const Costs& costs, const PlanOptions& options,
               const std::vector<absl::string_view>& passes) {
  Plan plan = ProgramOrder(graph);
  PassContext context(graph, costs, options);
  context.program_order = Simulate(graph, plan, costs).prediction;
  const absl::StatusOr<Pipeline> pipeline = MakePipeline(passes);
  EXPECT_TRUE(pipeline.ok()) << pipeline.status();
  const absl::Status status = pipeline->Run(context, plan);
  EXPECT_TRUE(status.ok()) << status;
  return plan;
}

TEST(OverlapBucketMode, Section6_2_GoldensWithBucketing) {
  const Graph graph = Forward(3, 2);
  const std::vector<absl::string_view> passes = {"tag-collectives", "schedule-overlap",
                                                 "bucket-overlap"};
  for (const bool upstream : {false, true}) {
    const PlanOptions options = OverlapOptions(upstream);
    EXPECT_EQ(Sizes(graph, RunPasses(graph, Timed(graph, {{"AG", 1}, {"mm", 1}}), options, passes)),
              "AG00 W00 AG01 mm00 W01 AG10 mm01 W10 AG11 mm10 W11 AG20 mm11 W20 AG21 mm20 W21 "
              "mm21");
    EXPECT_EQ(Sizes(graph, RunPasses(graph, Timed(graph, {{"AG", 1}, {"mm", 3}}), options, passes)),
              "AG00 W00 A3 mm00 W3 A2 mm01 mm10 mm11 W2 mm20 mm21");
    EXPECT_EQ(
        Sizes(graph, RunPasses(graph, Timed(graph, {{"AG", 1}, {"mm", 3}}, 1.0), options, passes)),
        "AG00 W00 A5 mm00 W5 mm01 mm10 mm11 mm20 mm21");
  }
}

TEST(OverlapBucketMode, T2_13_WithPreBucketingBothSequencesGiveOneScatter) {
  for (const bool upstream : {false, true}) {
    PlanOptions options = FreeOptions();
    options.upstream = upstream;
    for (const std::string& words :
         {std::string("a9 w9 m1 r1 w1 m2 r2 w2"), std::string("a9 w9 m1 r1 m2 r2 w1 w2")}) {
      const Schedule schedule(words);
      const Plan plan = RunPasses(*schedule.graph, *schedule.costs, options,
                                  {"tag-collectives", "pre-bucket", "bucket-overlap"});
      ASSERT_EQ(plan.buckets.size(), 1u) << words << (upstream ? " upstream" : "");
      EXPECT_EQ(plan.buckets[0].members.size(), 2u);
    }
  }
}

// What they are gathered from is large: to merge them keeps it alive, and no limit on bytes is
// small enough to keep them apart.
TEST(OverlapBucketMode, GathersOfNothingAreLeftAloneWhereMergedTheyNeedTooMuch) {
  Net net;
  std::vector<NodeId> products;
  for (const std::string& layer : {std::string("0"), std::string("1")}) {
    const NodeId copy = net.Call("clone" + layer, {net.Parameter(layer, {4096, 64})}, {4096, 64});
    const NodeId none = net.Call("slice" + layer, {copy}, {0, 64});
    products.push_back(net.Call("mm" + layer, {copy, net.Gather(layer, none)}, {8, 64}));
  }
  for (const NodeId product : products) net.Out(product, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = Timed(graph, {{"AG", 20}, {"clone", 5}, {"slice", 1}, {"mm", 20}}, 20.0);
  for (const char* mode : {"overlap", "auto"}) {
    PlanOptions options;
    options.mode = mode;
    const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LE(plan->prediction.peak_bytes, plan->program_order.peak_bytes / 20 * 21) << mode;
    EXPECT_TRUE(plan->buckets.empty()) << mode;
  }
}

TEST(OverlapBucketMode, CapturedStepsStayWithinMemory) {
  for (const std::string& name : CapturedNames()) {
    if (!absl::StrContains(name, "debug")) continue;
    const CapturedGraph captured = Captured(name);
    CostProfile profile;
    profile.name = "test";
    const Costs costs = Costs::FromFile(captured.graph, captured.costs, profile).value();
    PlanOptions options;
    options.mode = "overlap";
    options.numerics = Numerics::kFree;
    const absl::StatusOr<Plan> plan = MakePlan(captured.graph, costs, options);
    ASSERT_TRUE(plan.ok()) << name << ": " << plan.status();
    EXPECT_LE(plan->prediction.peak_bytes, plan->program_order.peak_bytes / 20 * 21) << name;
    EXPECT_LE(plan->prediction.total_ps, plan->program_order.total_ps) << name;
    options.upstream = true;
    const absl::Status upstream = MakePlan(captured.graph, costs, options).status();
    EXPECT_TRUE(upstream.ok()) << name << ": " << upstream;
  }
}

TEST(OverlapMode, LooksAtNotMuchMoreHoweverFarItMay) {
  const Graph graph = Backward(30'000, 1);
  const Costs costs = CostsOf(graph);
  const auto took = [&](int32_t distance) {
    PlanOptions options = OverlapOptions();
    options.max_collective_distance = distance;
    const std::clock_t begin = std::clock();
    RunPasses(graph, costs, options, {"tag-collectives", "schedule-overlap"});
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  // Seven times as long; 18 where each window looks at all.
  EXPECT_LT(took(1'000'000), 12 * took(PlanOptions().max_collective_distance));
}

}  // namespace
}  // namespace bucketd::testing
