#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/io/proto_io.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "tests/passes/ladder.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Costs FileCosts(const CapturedGraph& captured) {
  CostProfile profile;
  profile.name = "h100_nvlink";
  absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
  EXPECT_TRUE(costs.ok()) << costs.status();
  return *std::move(costs);
}

bool IsFast(const std::string& name) { return name.find("70b") == std::string::npos; }

TEST(Planner, PlansEverySharedGraphInBlocks) {
  for (const std::string& name : CapturedNames()) {
    if (!IsFast(name)) continue;
    const CapturedGraph captured = Captured(name);
    const Costs costs = FileCosts(captured);
    PlanOptions options = TransformerBlock();
    options.strict_coverage = true;
    const absl::StatusOr<Plan> plan = MakePlan(captured.graph, costs, options);
    ASSERT_TRUE(plan.ok()) << name << ": " << plan.status();
    EXPECT_TRUE(VerifyPlan(captured.graph, *plan).ok()) << name;
    EXPECT_GE(plan->prediction.total_ps, plan->lower_bound_ps) << name;
    EXPECT_LE(plan->prediction.collectives, plan->program_order.collectives) << name;
    EXPECT_LE(plan->prediction.total_ps, plan->program_order.total_ps) << name;
    EXPECT_LE(plan->prediction.peak_bytes, plan->program_order.peak_bytes / 100 * 105 + 105)
        << name;
    EXPECT_FALSE(HasDiagnostic(*plan, "memory-limit")) << name;
    for (const Bucket& bucket : plan->buckets) {
      EXPECT_LT(bucket.start_ps, bucket.end_ps) << name << " " << bucket.name;
      EXPECT_EQ(bucket.offsets.size(), bucket.members.size()) << name << " " << bucket.name;
    }
  }
}

TEST(Planner, AMemoryLimitBeyondAllNumbersLimitsNothing) {
  const CapturedGraph captured = Captured("llama3_debug_fsdp8.fw");
  const Costs costs = FileCosts(captured);
  PlanOptions options = TransformerBlock();
  options.resident_bytes = int64_t{1} << 60;
  options.memory_limit_ppm = 12'000'000;
  const absl::StatusOr<Plan> plan = MakePlan(captured.graph, costs, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(HasDiagnostic(*plan, "memory-limit"));
}

TEST(Planner, AModeWithNothingToMoveKeepsToALimitInBytesToo) {
  const Graph graph = Forward(2, 1);
  PlanOptions options = Manual("absent");
  options.memory_limit_bytes = Planned(graph, options).prediction.peak_bytes;
  EXPECT_TRUE(TryPlan(graph, options).ok());
  --options.memory_limit_bytes;
  const absl::Status refused = TryPlan(graph, options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("allow more memory"));
  options.mode = "none";
  options.buckets.clear();
  EXPECT_TRUE(TryPlan(graph, options).ok());
}

TEST(Planner, ALlamaGetsOneGatherABlockAndOneForTheRest) {
  const CapturedGraph captured = Captured("llama3_debug_fsdp8.fw");
  const Costs costs = FileCosts(captured);
  const absl::StatusOr<Plan> plan = MakePlan(captured.graph, costs, TransformerBlock());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(BucketNames(*plan),
              ::testing::ElementsAre("layers.0 forward", "layers.1 forward", "layers.2 forward",
                                     "layers.3 forward", "layers.4 forward", "layers.5 forward",
                                     "norm+output forward"));
  EXPECT_EQ(plan->program_order.collectives, 57);
  EXPECT_EQ(plan->prediction.collectives, 8) << "seven buckets and the embedding";
}

TEST(Planner, CopiesInLineWithACollectiveAreNoTimeOnTheWire) {
  for (const std::string name : {"llama3_debug_fsdp8.fw", "llama3_debug_fsdp8.bw"}) {
    const CapturedGraph captured = Captured(name);
    const Costs costs = FileCosts(captured);
    const absl::StatusOr<Plan> plan = MakePlan(captured.graph, costs, TransformerBlock());
    ASSERT_TRUE(plan.ok()) << plan.status();
    Plan in_line = *plan;
    for (Bucket& bucket : in_line.buckets) bucket.copies = CopyStream::kComm;
    Predict(captured.graph, costs, in_line);
    ASSERT_FALSE(plan->buckets.empty());
    for (size_t b = 0; b < plan->buckets.size(); ++b) {
      const Bucket &beside = plan->buckets[b], &same = in_line.buckets[b];
      ASSERT_EQ(beside.mode, BucketMode::kPacked) << beside.name;
      EXPECT_EQ(same.end_ps - same.start_ps, beside.end_ps - beside.start_ps) << beside.name;
      if (b > 0) continue;
      EXPECT_GT(same.start_ps, 0) << "its copy-in is first";
    }
  }
}

TEST(Planner, TheBackwardFindsTheSameUnits) {
  const CapturedGraph captured = Captured("llama3_debug_fsdp8.bw");
  const Costs costs = FileCosts(captured);
  const absl::StatusOr<Plan> plan = MakePlan(captured.graph, costs, TransformerBlock());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(DiagnosticText(*plan, "units"),
            "8 units: tok_embeddings; layers.0 to layers.5; norm+output");
  EXPECT_EQ(plan->buckets.size(), 14u) << "a gather and a scatter of each but the embedding";
}

TEST(Planner, ExpertsOnAnotherGroupGetBucketsOfTheirOwn) {
  const CapturedGraph captured = Captured("moe_debug_fsdp4_ep4.fw");
  const Costs costs = FileCosts(captured);
  const absl::StatusOr<Plan> plan = MakePlan(captured.graph, costs, TransformerBlock());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(std::count_if(plan->buckets.begin(), plan->buckets.end(),
                          [](const Bucket& b) { return b.name == "layers.1 forward"; }),
            2);
}

TEST(Planner, AGraphWithoutCollectivesKeepsProgramOrderInEveryMode) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  net.Out(net.Call("mm", {net.Call("relu", {x}, {64, 64})}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  for (const absl::string_view mode : PlanModes()) {
    PlanOptions options;
    options.mode = std::string(mode);
    if (mode == "manual") options.buckets = "layers.0";
    const absl::StatusOr<Plan> plan = MakePlan(graph, CostsOf(graph), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->order, ProgramOrder(graph).order);
    EXPECT_THAT(plan->buckets, IsEmpty());
    EXPECT_EQ(plan->prediction.total_ps, plan->program_order.total_ps);
  }
}

TEST(Planner, ModeNoneTouchesNothing) {
  const Graph graph = Joint(3, 2, true);
  PlanOptions options;
  options.mode = "none";
  const absl::StatusOr<Plan> plan = MakePlan(graph, CostsOf(graph), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->order, ProgramOrder(graph).order);
  EXPECT_THAT(plan->buckets, IsEmpty());
  EXPECT_EQ(plan->mode, "none");
}

TEST(Planner, AModelWithoutBlocksIsRefusedWithAWayOut) {
  Net net;
  net.In("conv1");
  net.Out(net.Gather("0", net.Parameter("conv1.weight", {8, 8})), SlotKind::kOutput);
  const Graph graph = net.Build();
  const absl::Status status = MakePlan(graph, CostsOf(graph), TransformerBlock()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("find-blocks"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("mode manual"));
}

TEST(Planner, ThePlanSaysHowItWasMade) {
  const Graph graph = Forward(3, 2);
  PlanOptions options;
  options.numerics = Numerics::kExact;
  options.backend = "gloo";
  const absl::StatusOr<Plan> plan = MakePlan(graph, CostsOf(graph), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->numerics, Numerics::kExact);
  EXPECT_EQ(plan->backend, "gloo");
  EXPECT_EQ(plan->mode, "auto");
  EXPECT_EQ(plan->cost_profile, "test@1");
  EXPECT_THAT(plan->planner, HasSubstr(kPlannerVersion));
  EXPECT_EQ(plan->node_count, graph.size());
}

std::string PlanBytes() {
  std::string bytes;
  for (const char* name : {"llama3_debug_fsdp8.bw", "moe_debug_fsdp4_ep4.joint"}) {
    const CapturedGraph captured = Captured(name);
    for (PlanOptions options : {PlanOptions(), TransformerBlock()}) {
      options.parameter_order = {"layers.0.attention.wk.weight", "layers.0.attention.wq.weight"};
      const absl::StatusOr<Plan> plan = MakePlan(captured.graph, FileCosts(captured), options);
      EXPECT_TRUE(plan.ok()) << plan.status();
      if (plan.ok()) bytes += SerializePlan(captured.graph, *plan);
    }
  }
  return bytes;
}

// Hash maps are seeded anew in every process, so an order that leaks out of one differs there.
// Under a sanitizer, where one takes seconds, one.
TEST(PlannerDeterminismDeathTest, FiveFreshProcessesGiveTheSameBytes) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const std::string here = ToHex(Sha256(PlanBytes()));
  for (uint32_t i = 0; i < Seeds(5); ++i) {
    EXPECT_EXIT(
        {
          std::cerr << "plan " << ToHex(Sha256(PlanBytes())) << std::endl;
          std::_Exit(0);
        },
        ::testing::ExitedWithCode(0), "plan " + here);
  }
}

}  // namespace
}  // namespace bucketd::testing
