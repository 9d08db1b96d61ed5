// From a plan's file and its graph to the buckets that a replay runs.
#include "gpu_agent/run/replay_plan.h"

#include <cstdint>
#include <string>

#include "client/cli/command_line.h"
#include "gtest/gtest.h"

#include "gpu_agent/exec/layout.h"
#include "passes/io/plan_json.h"
#include "passes/io/proto_io.h"
#include "passes/planner.h"
#include "tests/passes/test_data.h"
#include "tests/temp_folder.h"

namespace bucketd::agent {
namespace {

constexpr char kGraph[] = "llama3_debug_fsdp8.bw";

ReplayPlan Load(const std::string& plan) {
  const TempFolder folder;
  const std::string path = folder.path() + "/plan";
  EXPECT_TRUE(WriteFile(path, plan).ok());
  const std::string graph = testing::TestDataPath(std::string("graphs/") + kGraph + ".json.gz");
  return LoadReplayPlan(path, graph, "h100_nvlink").value();
}

TEST(ReplayPlanTest, BucketsAreThoseOfThePlanInEitherOfItsForms) {
  const CapturedGraph captured = testing::ReadTestGraph(kGraph);
  const Costs costs = Costs::FromFile(captured.graph, captured.costs, CostProfile()).value();
  PlanOptions options;
  options.mode = "greedy";
  Plan plan = MakePlan(captured.graph, costs, options).value();
  plan.buckets[0].name = "the first";
  plan.buckets[1].mode = BucketMode::kGrouped;
  const ReplayPlan replay = Load(PlanToJson(captured.graph, plan));
  const Program program = LayOut(replay.spec).value();
  EXPECT_EQ(LayOut(Load(SerializePlan(captured.graph, plan)).spec)->digest, program.digest);
  ASSERT_GT(plan.buckets.size(), 1U);
  ASSERT_GE(replay.spec.buckets.size(), plan.buckets.size());
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    const Bucket& bucket = plan.buckets[k];
    const BucketSpec& spec = replay.spec.buckets[k];
    ASSERT_EQ(spec.counts.size(), bucket.members.size());
    EXPECT_EQ(spec.group_size, 8);
    EXPECT_EQ(spec.mode, bucket.mode);
    int64_t at = 0;
    for (size_t m = 0; m < spec.counts.size(); ++m) {
      EXPECT_EQ(at, bucket.offsets[m]);
      at += spec.counts[m] * ItemSize(spec.dtype);
    }
    EXPECT_EQ(at, bucket.slice_bytes);
    EXPECT_EQ(FullBytes(spec), bucket.bytes);
  }
  EXPECT_EQ(Describe(replay.spec, 0), "bucket 0 (the first)");
}

}  // namespace
}  // namespace bucketd::agent
