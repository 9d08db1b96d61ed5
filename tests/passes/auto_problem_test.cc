// What the search makes of a graph: leaders, roots, sinks, leaves.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/auto/problem.h"
#include "passes/modes/pass_registry.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"

namespace bucketd::testing {
namespace {

using search::Problem;
using search::Use;
using ::testing::ElementsAre;

class ProblemTest : public ::testing::Test {
 protected:
  const Problem& Contract(Graph made, PlanOptions with = {}) {
    graph_.emplace(std::move(made));
    options_ = with;
    costs_.emplace(CostsOf(*graph_));
    context_.emplace(*graph_, *costs_, options_);
    Plan plan = ProgramOrder(*graph_);
    EXPECT_TRUE((*MakePass("tag-collectives"))->Run(*context_, plan).ok());
    absl::StatusOr<Problem> contracted = search::Contract(*context_);
    EXPECT_TRUE(contracted.ok()) << contracted.status();
    problem_ = *std::move(contracted);
    return problem_;
  }
  const search::Transfer& At(size_t c) const { return problem_.transfers[c]; }
  std::vector<std::string> Leaders() const {
    std::vector<std::string> names;
    for (const NodeId n : problem_.node) names.emplace_back(graph_->node_name(n));
    return names;
  }

  std::optional<Graph> graph_;
  std::optional<Costs> costs_;
  PlanOptions options_;
  std::optional<PassContext> context_;
  Problem problem_;
};

TEST_F(ProblemTest, ViewsFollowAndWhatTakesTimeOrMemoryLeads) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId v = net.View("v", x);
  const NodeId y = net.Call("y", {v}, {64, 64});
  const NodeId w = net.View("w", y);
  net.Out(net.Call("z", {w, x}, {64, 64}), SlotKind::kOutput);
  const Problem& p = Contract(net.Build());
  EXPECT_THAT(Leaders(), ElementsAre("y", "z"));
  EXPECT_THAT(p.first, ElementsAre(x, v));
  EXPECT_THAT(p.followers.of(0), ElementsAre(w));
  EXPECT_THAT(p.before.of(1), ElementsAre(0));
  EXPECT_EQ(p.total_ps(), p.cost[0] + p.cost[1]);
}

TEST_F(ProblemTest, AGatherOfAParameterIsARootAndItsCastRootWork) {
  Net net;
  const NodeId cast = net.Call("cast", {net.Parameter("a", {8, 64})}, {8, 64});
  const NodeId weight = net.Gather("0", cast);
  const NodeId y = net.Call("y", {weight}, {64, 64});
  // This one gathers what was computed from a gathered weight.
  net.Out(net.Call("z", {net.Gather("1", y)}, {512, 64}), SlotKind::kOutput);
  const Problem& p = Contract(net.Build());
  EXPECT_EQ(At(0).use, Use::kRoot);
  EXPECT_EQ(At(1).use, Use::kInline);
  EXPECT_THAT(p.root_work.of(0), ElementsAre(0));
  EXPECT_EQ(p.root_of[0], 0);
  EXPECT_EQ(graph_->node_name(p.node[static_cast<size_t>(At(0).need)]), "y");
}

TEST_F(ProblemTest, GradientReductionsAreSinksByLevelAndTheirComputeIsLeafWork) {
  Net net;
  const GroupId replicas = net.AddGroup("replicas", 2);
  const NodeId x = net.Input("x", {64, 64});
  const NodeId gradient = net.Call("gw", {x}, {64, 64});
  const NodeId scattered = net.Scatter("0", gradient);
  net.OnGroup(replicas);
  const NodeId reduced = net.Reduce("1", scattered);
  net.Out(reduced, SlotKind::kParameterGradient);
  net.Out(net.Call("y", {x}, {64, 64}), SlotKind::kOutput);
  const Problem& p = Contract(net.Build());
  EXPECT_EQ(At(0).use, Use::kSink);
  EXPECT_EQ(At(1).use, Use::kSink);
  EXPECT_EQ(At(0).level, 1);
  EXPECT_EQ(At(1).level, 0);
  EXPECT_NE(At(0).key, At(1).key);
  EXPECT_TRUE(p.is_leaf[0]);
  EXPECT_FALSE(p.is_leaf[static_cast<size_t>(p.size() - 1)]) << "nothing is reduced below it";
}

TEST_F(ProblemTest, DependentReductionsOfOneKindNeverShareAKey) {
  Net net;
  const NodeId x = net.Call("gw", {net.Input("x", {64, 64})}, {64, 64});
  const NodeId once = net.Reduce("0", x);
  net.Out(net.Reduce("1", once), SlotKind::kParameterGradient);
  net.Out(net.Reduce("2", net.Call("other", {x}, {64, 64})), SlotKind::kParameterGradient);
  PlanOptions options;
  options.numerics = Numerics::kFree;
  Contract(net.Build(), options);
  EXPECT_NE(At(0).key, At(1).key);
  EXPECT_EQ(At(1).key, At(2).key);
  EXPECT_TRUE(At(1).mergeable && At(2).mergeable);
}

TEST_F(ProblemTest, NumericsAndInPlaceOpsDecideWhatMayShareABucket) {
  const auto graph = [](bool in_place) {
    Net net;
    const NodeId x = net.Call("gw", {net.Input("x", {64, 64})}, {64, 64});
    net.Out(net.Reduce("0", x), SlotKind::kParameterGradient);
    NodeId scattered = net.Scatter("1", net.Call("g2", {x}, {64, 64}));
    if (in_place) scattered = net.Mutate("add_", scattered);
    net.Out(scattered, SlotKind::kParameterGradient);
    return net.Build();
  };
  PlanOptions options;
  Contract(graph(false), options);
  EXPECT_TRUE(At(0).mergeable);
  EXPECT_TRUE(At(1).mergeable);
  options.numerics = Numerics::kExact;
  Contract(graph(false), options);
  EXPECT_FALSE(At(0).mergeable) << "merging all-reduces changes sums";
  EXPECT_FALSE(At(1).mergeable) << "nccl's order of sums hangs on the bucket";
  options.numerics = Numerics::kFree;
  Contract(graph(true), options);
  EXPECT_TRUE(At(0).mergeable);
  EXPECT_TRUE(At(1).pinned);
  EXPECT_FALSE(At(1).mergeable);
  EXPECT_EQ(At(1).use, Use::kInline);
}

TEST_F(ProblemTest, TheProfileOfProgramOrderIsTheSimulators) {
  const auto peak = [](const Problem& p) {
    return *std::max_element(p.live_at.begin(), p.live_at.end());
  };
  for (const bool reshard : {false, true}) {
    const Problem& p = Contract(Joint(3, 2, reshard));
    EXPECT_EQ(peak(p), Simulate(*graph_, ProgramOrder(*graph_), *costs_).prediction.peak_bytes);
  }
  // A view that nobody reads stands later in program order and keeps its storage until there.
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const Problem& p = Contract(RandomStep(seed).Build());
    EXPECT_LE(peak(p), Simulate(*graph_, ProgramOrder(*graph_), *costs_).prediction.peak_bytes)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace bucketd::testing
