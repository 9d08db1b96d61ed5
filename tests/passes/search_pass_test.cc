// The pass `search` among the others: which modes it starts from, and what their errors mean.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/auto/auto_pass.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/pipeline.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

// Searches a small step from program order and from what the fake mode makes of it.
absl::Status SearchFrom(FakePass::Body body) {
  const Graph graph = Forward(2, 1);
  const Costs costs = CostsOf(graph);
  PlanOptions options;
  options.mode = "auto";
  options.effort = 0;
  PassContext context(graph, costs, options);
  Plan plan = ProgramOrder(graph);
  std::vector<std::unique_ptr<Pass>> fakes, passes;
  fakes.push_back(std::make_unique<FakePass>(body));
  std::vector<OtherMode> others;
  others.push_back({"odd", Pipeline(std::move(fakes))});
  passes.push_back(*MakePass("tag-collectives"));
  passes.push_back(MakeSearchPass(std::move(others)));
  return Pipeline(std::move(passes)).Run(context, plan);
}

TEST(SearchPass, AModeThatCannotPlanTheGraphIsLeftOut) {
  EXPECT_EQ(SearchFrom([](Plan&) -> absl::StatusOr<bool> {
              return absl::FailedPreconditionError("no blocks");
            }),
            absl::OkStatus());
}

TEST(SearchPass, AnyOtherErrorOfAModeIsAnErrorOfThePlan) {
  EXPECT_EQ(
      SearchFrom([](Plan&) -> absl::StatusOr<bool> { return absl::InternalError("no order"); }),
      absl::InternalError("search: mode odd: fake: no order"));
}

TEST(SearchPass, AnIllegalPlanOfAModeIsAnErrorOfThePlan) {
  const absl::Status status = SearchFrom([](Plan& plan) -> absl::StatusOr<bool> {
    std::swap(plan.order[0], plan.order.back());
    return true;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("search: mode odd: pass fake made an illegal plan"));
}

TEST(SearchPass, WhatPassesBeforeItSaidStaysInThePlan) {
  const Graph graph = Joint(3, 3, true);
  const Costs costs = CostsOf(graph);
  const PlanOptions options;
  PassContext context(graph, costs, options);
  Plan plan = ProgramOrder(graph);
  context.program_order = Simulate(graph, plan, costs).prediction;
  ASSERT_TRUE((*MakePass("tag-collectives"))->Run(context, plan).ok());
  plan.diagnostics = {{"said-before", "by a pass", {}}};
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(MakeSearchPass({}));
  ASSERT_TRUE(Pipeline(std::move(passes)).Run(context, plan).ok());
  EXPECT_FALSE(plan.buckets.empty());
  EXPECT_THAT(plan.diagnostics, Contains(Field(&Diagnostic::code, "said-before")));
}

TEST(SearchPass, ModesThatItStartsFromAreAlsoRunAlone) {
  std::vector<std::string> tried;
  for (const ModeInfo& mode : AllModes()) {
    if (mode.tried_by_auto) tried.emplace_back(mode.name);
  }
  EXPECT_THAT(tried, ElementsAre("transformer_block", "greedy", "overlap"));
  EXPECT_THAT(FindMode("auto")->passes, ElementsAre("tag-collectives", "search", "payload-order"));
}

TEST(SearchPass, OtherModesPlansAreThoseThatTheModesMakeAlone) {
  const Graph graph = Joint(3, 3, true);
  const Costs costs = CostsOf(graph);
  PlanOptions options;
  PassContext context(graph, costs, options);
  Plan untouched = ProgramOrder(graph);
  ASSERT_TRUE((*MakePass("tag-collectives"))->Run(context, untouched).ok());
  for (const auto& tag : context.tags.of) {  // backwards, so that payloads change their order
    options.parameter_order.insert(options.parameter_order.begin(), std::string(tag.parameter));
  }
  context.program_order = Simulate(graph, untouched, costs).prediction;
  size_t buckets = 0;
  for (const OtherMode& other : ModesToStartFrom()) {
    if (other.change != nullptr) continue;
    options.mode = std::string(other.name);
    const absl::StatusOr<Plan> alone = MakePlan(graph, costs, options);
    ASSERT_TRUE(alone.ok()) << alone.status();
    PassContext inner = context;
    Plan plan = untouched;
    ASSERT_TRUE(other.pipeline.Run(inner, plan).ok());
    EXPECT_EQ(plan.order, alone->order) << other.name;
    ASSERT_EQ(plan.buckets.size(), alone->buckets.size()) << other.name;
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      EXPECT_EQ(plan.buckets[b].members, alone->buckets[b].members) << other.name;
    }
    buckets += plan.buckets.size();
  }
  EXPECT_GT(buckets, 0u);
}

TEST(SearchPass, ThePlannerTimesItLikeAnyPass) {
  const Graph graph = Forward(3, 2);
  PlanOptions options;
  options.mode = "auto";
  std::vector<PassRun> runs;
  const auto after = [&](const PassRun& run, const PassContext&, const Plan&) {
    runs.push_back(run);
  };
  ASSERT_TRUE(MakePlan(graph, CostsOf(graph), options, after).ok());
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[1].pass, "search");
  EXPECT_GT(runs[1].verify_ns, 0);
}

}  // namespace
}  // namespace bucketd::testing
