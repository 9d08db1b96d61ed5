#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/modes/pass_registry.h"
#include "passes/pass/pipeline.h"
#include "passes/sim/simulator.h"
#include "tests/passes/greedy_test_util.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::HasSubstr;

absl::Status RunFake(FakePass::Body body) {
  const Graph graph = Forward(2, 1);
  const Costs costs = CostsOf(graph);
  const PlanOptions options;
  PassContext context(graph, costs, options);
  Plan plan = ProgramOrder(graph);
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(std::make_unique<FakePass>(body));
  return Pipeline(std::move(passes)).Run(context, plan);
}

TEST(Pipeline, AnIllegalPlanIsTheFaultOfThePassThatMadeIt) {
  const absl::Status status = RunFake([](Plan& plan) -> absl::StatusOr<bool> {
    std::swap(plan.order[0], plan.order.back());
    return true;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pass fake made an illegal plan"));
}

TEST(Pipeline, AChangeThatIsDeniedIsAnError) {
  const absl::Status status = RunFake([](Plan& plan) -> absl::StatusOr<bool> {
    std::swap(plan.order[0], plan.order[1]);  // two placeholders: still legal
    return false;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("denies"));
}

TEST(Pipeline, AnErrorKeepsItsCodeAndNamesThePass) {
  const absl::Status status = RunFake(
      [](Plan&) -> absl::StatusOr<bool> { return absl::FailedPreconditionError("no blocks"); });
  EXPECT_EQ(status, absl::FailedPreconditionError("fake: no blocks"));
}

TEST(Pipeline, SaysWhatChangedAndHowLongItTook) {
  const Graph graph = Forward(3, 2);
  const Costs costs = CostsOf(graph);
  const PlanOptions options = Manual("layers.[0-2]");
  PassContext context(graph, costs, options);
  Plan plan = ProgramOrder(graph);
  const auto pipeline = MakePipeline(FindMode("manual")->passes);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  std::vector<PassRun> runs;
  const auto after = [&](const PassRun& run, const PassContext& seen, const Plan& made) {
    EXPECT_EQ(&seen, &context);
    EXPECT_EQ(&made, &plan);
    runs.push_back(run);
  };
  ASSERT_TRUE(pipeline->Run(context, plan, after).ok());
  EXPECT_EQ(runs.size(), FindMode("manual")->passes.size());
  std::vector<std::string> changed;
  for (const PassRun& run : runs) {
    EXPECT_GT(run.run_ns, 0) << run.pass;
    EXPECT_GT(run.verify_ns, 0) << run.pass;
    if (run.changed) changed.push_back(run.pass);
  }
  EXPECT_THAT(changed, ::testing::ElementsAre("bucket-units", "prefetch"))
      << "payloads stand in graph order here, so their pass has nothing to do";
}

TEST(Registry, NamesAreUniqueAndMatchThePasses) {
  std::set<std::string> names;
  for (const PassInfo& info : AllPasses()) {
    EXPECT_TRUE(names.insert(std::string(info.name)).second) << info.name;
    EXPECT_EQ(info.make()->name(), info.name);
    EXPECT_FALSE(info.summary.empty()) << info.name;
  }
  for (const ModeInfo& mode : AllModes()) {
    for (const absl::string_view pass : mode.passes) {
      EXPECT_EQ(names.count(std::string(pass)), 1u) << mode.name << ": " << pass;
    }
  }
}

TEST(Registry, APassAloneEndsWithAPlanOrSaysWhatItWants) {
  const Graph graph = Joint(3, 2, true);
  const Costs costs = CostsOf(graph);
  for (const PassInfo& info : AllPasses()) {
    const PlanOptions options;
    PassContext context(graph, costs, options);
    Plan plan = ProgramOrder(graph);
    context.program_order = Simulate(graph, plan, costs).prediction;
    const absl::string_view one[] = {info.name};
    const absl::Status status = MakePipeline(one)->Run(context, plan);
    const bool needs_tags = (*MakePass(info.name))->needs_tags();
    EXPECT_EQ(absl::IsFailedPrecondition(status), needs_tags) << info.name << ": " << status;
    EXPECT_TRUE(status.ok() || needs_tags || absl::IsInvalidArgument(status)) << status;
  }
}

// What a pass finds on the blackboard may be of any pass that ran before it.
TEST(Registry, AnyRowOfPassesEndsWithAPlanOrSaysWhatItWants) {
  const CapturedGraph captured = Captured("llama3_debug_fsdp4_tp2.bw");
  const Graph& graph = captured.graph;
  const Costs costs = CostsOf(graph);
  PlanOptions options = GreedyOptions({kMiB});
  options.effort = 0;
  const Prediction program_order = Simulate(graph, ProgramOrder(graph), costs).prediction;
  std::mt19937 random(7);
  int planned = 0;
  for (int i = 0; i < 400; ++i) {
    options.upstream = random() % 4 == 0;
    std::vector<absl::string_view> row = {"tag-collectives"};
    while (row.size() < 6) row.push_back(AllPasses()[random() % AllPasses().size()].name);
    PassContext context(graph, costs, options);
    context.program_order = program_order;
    Plan plan = ProgramOrder(graph);
    const absl::Status status = MakePipeline(row)->Run(context, plan);
    planned += status.ok();
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status) ||
                absl::IsInvalidArgument(status))
        << absl::StrJoin(row, ",") << ": " << status;
  }
  EXPECT_GT(planned, 40);
}

TEST(Registry, APassThatMakesTheFirstBucketsRefusesOthers) {
  const CapturedGraph captured = Captured("llama3_debug_fsdp4_tp2.bw");
  const Costs costs = CostsOf(captured.graph);
  const PlanOptions options = GreedyOptions({kMiB});
  for (const absl::string_view second : {"bucket-units", "search"}) {
    PassContext context(captured.graph, costs, options);
    Plan plan = ProgramOrder(captured.graph);
    context.program_order = Simulate(captured.graph, plan, costs).prediction;
    const absl::Status status =
        MakePipeline({"tag-collectives", "greedy-bucket", second})->Run(context, plan);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << second << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("buckets already")) << second;
    EXPECT_FALSE(plan.buckets.empty());
  }
}

TEST(Registry, ModesAreThoseThatOptionsMayName) {
  std::vector<absl::string_view> names;
  for (const ModeInfo& mode : AllModes()) names.push_back(mode.name);
  EXPECT_THAT(names, ::testing::ElementsAreArray(PlanModes()));
}

TEST(Registry, AnUnknownPassListsTheKnownOnes) {
  const absl::Status status = MakePass("fuse").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tag-collectives"));
}

}  // namespace
}  // namespace bucketd::testing
