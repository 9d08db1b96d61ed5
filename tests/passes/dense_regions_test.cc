// Launches that start in the dense parts of neighbouring layers.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/modes/pass_registry.h"
#include "passes/pass/pipeline.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSkipped[] = "dense-region-skipped";
constexpr char kMemory[] = "dense-region-memory";

PlanOptions Dense(std::string buckets, DenseRegions dense = DenseRegions::kOn) {
  PlanOptions options = Manual(std::move(buckets));
  options.dense_regions = dense;
  return options;
}

std::string Order(const Graph& graph, const PlanOptions& options) {
  return Text(graph, Planned(graph, options));
}

// Layers with one matrix each, and a head behind them that counts as one more; forward and
// backward. Kernels of the layers in `bare` say nothing of their module.
Graph WithHead(int layers, const std::vector<int>& bare = {}) {
  Net net;
  const auto module = [layers](int i) {
    return i == layers ? std::string("head") : absl::StrCat("layers.", i, ".lin");
  };
  const auto kernels = [&](int i) {
    net.In(std::find(bare.begin(), bare.end(), i) == bare.end() ? module(i) : "");
  };
  std::vector<NodeId> parameters, inputs;
  NodeId h = net.Input("x", {64, 64});
  for (int i = 0; i <= layers; ++i) parameters.push_back(net.Parameter(module(i) + ".w", {8, 64}));
  const NodeId t = net.Input("t", {64, 64}, Role::kTangent);
  net.Going(Direction::kForward);
  for (int i = 0; i <= layers; ++i) {
    const NodeId w = net.In(module(i)).Gather(absl::StrCat(i), parameters[static_cast<size_t>(i)]);
    inputs.push_back(h);
    kernels(i);
    h = net.Call(absl::StrCat("mm", i), {h, w}, {64, 64});
  }
  net.Out(h, SlotKind::kOutput);
  net.Going(Direction::kBackward);
  h = t;
  for (int i = layers; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    const NodeId w = net.In(module(i)).Gather(absl::StrCat(i, "'"), parameters[at]);
    kernels(i);
    const NodeId gw = net.Call(absl::StrCat("gw", i), {inputs[at], h}, {64, 64});
    h = net.Call(absl::StrCat("gx", i), {h, w}, {64, 64});
    net.In(module(i));
    net.Out(net.Scatter(absl::StrCat(i), gw), SlotKind::kParameterGradient, module(i) + ".w");
  }
  net.Out(h, SlotKind::kInputGradient);
  return net.Build();
}

constexpr char kHead[] = "layers.[0-2],head";

TEST(Dense, T4_14_EveryLaunchStartsInANeighboursDensePart) {
  const Graph graph = WithHead(3);
  const Plan plan = Planned(graph, Dense(kHead, DenseRegions::kStrict));
  EXPECT_EQ(Text(graph, plan),
            "AG0 W0 AG1 mm0 W1 AG2 mm1 W2 AG3 mm2 W3 mm3 "
            "AG3' W3' AG2' gw3 gx3 W2' RS3 AG1' gw2 gx2 W1' RS2 AG0' gw1 gx1 W0' RS1 gw0 gx0 "
            "RS0 WR3 WR2 WR1 WR0");
  EXPECT_FALSE(HasDiagnostic(plan, kSkipped)) << DiagnosticText(plan, kSkipped);
}

TEST(Dense, T4_14_BucketsMoveAsSingleCollectivesDo) {
  const Graph graph = Joint(3, 2, true);
  const Plan plan = Planned(graph, Dense("layers.[0-2]"));
  EXPECT_EQ(Text(graph, plan),
            "AG0 W0 AG1 mm00 mm01 W1 AG2 mm10 mm11 W2 mm20 mm21 "
            "AG2' W2' AG1' gw21 gx21 gw20 gx20 W1' RS2 AG0' gw11 gx11 gw10 gx10 "
            "W0' RS1 gw01 gx01 gw00 gx00 RS0 WR2 WR1 WR0");
  EXPECT_THAT(DiagnosticText(plan, kSkipped),
              AllOf(HasSubstr("1 moves"), HasSubstr("layers.2 backward all_gather"),
                    HasSubstr("the backward of what follows the last layer has no dense region")));
  PlanOptions found = Dense("");
  found.mode = "transformer_block";
  EXPECT_EQ(Order(graph, found), Text(graph, plan));
}

TEST(Dense, T4_14_ACastOfAParameterComesAlong) {
  Net net;
  std::vector<NodeId> parameters;
  NodeId h = net.Input("x", {64, 64});
  for (int i = 0; i < 2; ++i) {
    parameters.push_back(net.Parameter(absl::StrCat("layers.", i, ".w"), {8, 64}));
  }
  for (int i = 0; i < 2; ++i) {
    net.In(absl::StrCat("layers.", i));
    const NodeId cast = net.Call(absl::StrCat("cast", i), {parameters[static_cast<size_t>(i)]},
                                 {8, 64}, 0, "aten._to_copy.default");
    const NodeId w = net.Gather(absl::StrCat(i), cast);
    h = net.Call(absl::StrCat("mm", i), {h, net.Call(absl::StrCat("cat", i), {w}, {64, 64})},
                 {64, 64});
  }
  net.Out(h, SlotKind::kOutput);
  PlanOptions options = Dense("layers.[0-1]", DenseRegions::kStrict);
  options.prefetch_forward = 0;
  EXPECT_EQ(Order(net.Build(), options), "cast0 AG0 W0 cat0 cast1 AG1 mm0 W1 cat1 mm1");
}

// Backward of two layers; the gradient of layer 1's matrix is computed after `late` of the two
// kernels of layer 0, and something outside of layers follows on it.
Graph LateGradient(int late) {
  Net net;
  for (int i = 0; i < 2; ++i) net.Parameter(absl::StrCat("layers.", i, ".w"), {8, 64});
  const NodeId t = net.Input("t", {64, 64}, Role::kTangent);
  const NodeId a = net.Input("a", {64, 64}, Role::kSaved);
  const NodeId g1 = net.In("layers.1").Call("gx1", {t, a}, {64, 64});
  NodeId g0 = g1;
  const auto gradient = [&] {
    const NodeId gw = net.In("layers.1").Call("gw1", {g0, a}, {64, 64});
    net.Out(net.Scatter("1", gw), SlotKind::kParameterGradient, "layers.1.w");
    net.In("other").Out(net.Call("relu", {a}, {64, 64}), SlotKind::kInputGradient);
  };
  for (int k = 0; k < 2; ++k) {
    if (k == late) gradient();
    g0 = net.In("layers.0").Call(k == 0 ? "gx0" : "gw0", {g0, a}, {64, 64});
  }
  net.Out(net.Scatter("0", g0), SlotKind::kParameterGradient, "layers.0.w");
  if (late == 2) gradient();
  return net.Build();
}

TEST(Dense, T4_14_AScatterOfALateGradientStandsLaterInTheRegion) {
  const PlanOptions options = Dense("layers.[0-1]", DenseRegions::kStrict);
  EXPECT_EQ(Order(LateGradient(0), options), "gx1 gw1 relu RS1 gx0 gw0 RS0 WR1 WR0");
  EXPECT_EQ(Order(LateGradient(1), options), "gx1 gx0 gw1 relu RS1 gw0 RS0 WR1 WR0");
}

TEST(Dense, T4_14_AScatterReadyBehindTheRegionIsNamedAndUnderStrictAnError) {
  const Graph graph = LateGradient(2);
  const Plan plan = Planned(graph, Dense("layers.[0-1]"));
  EXPECT_EQ(Text(graph, plan), "gx1 gx0 gw0 RS0 gw1 RS1 relu WR0 WR1");
  const auto named =
      AllOf(HasSubstr("layers.1 backward reduce_scatter"), HasSubstr("RS1"),
            HasSubstr("ready only behind the dense region of the backward of layers.0"));
  EXPECT_THAT(DiagnosticText(plan, kSkipped), named);
  const absl::Status strict = TryPlan(graph, Dense("layers.[0-1]", DenseRegions::kStrict)).status();
  EXPECT_EQ(strict.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(strict.message()), AllOf(named, HasSubstr("1 launches")));
}

TEST(Dense, T4_14_AnEmptyRegionIsNamedAndNoErrorEvenUnderStrict) {
  const Graph graph = WithHead(3, {1});
  const Plan plan = Planned(graph, Dense(kHead, DenseRegions::kStrict));
  EXPECT_THAT(DiagnosticText(plan, kSkipped),
              AllOf(HasSubstr("3 moves"), HasSubstr("layers.2 forward all_gather"),
                    HasSubstr("layers.0 backward all_gather"),
                    HasSubstr("layers.2 backward reduce_scatter"),
                    HasSubstr("the forward of layers.1 has no dense region")));
  EXPECT_THAT(Text(graph, plan), HasSubstr("W0 AG1 mm0")) << "the others move";
}

TEST(Dense, T4_14_TheHeadAgainstAnEmptyLastLayerIsAnErrorUnderStrict) {
  const Graph graph = WithHead(3, {2});
  EXPECT_THAT(DiagnosticText(Planned(graph, Dense(kHead)), kSkipped), HasSubstr("head forward"));
  const absl::Status strict = TryPlan(graph, Dense(kHead, DenseRegions::kStrict)).status();
  EXPECT_EQ(strict.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(strict.message()),
      AllOf(HasSubstr("2 launches"), HasSubstr("head forward all_gather"),
            HasSubstr("head backward reduce_scatter"), Not(HasSubstr("layers.1 backward"))));
}

// Backward of two layers: part of attention computed again, then experts, then attention.
Graph Experts(bool exchange, bool own_group) {
  Net net;
  const GroupId efsdp = net.AddGroup("efsdp", 4);
  for (int i = 0; i < 2; ++i) {
    for (const char* name : {".attention.wq", ".attention.wo", ".moe.w1"}) {
      net.Parameter(absl::StrCat("layers.", i, name), {8, 64});
    }
  }
  NodeId h = net.Input("t", {64, 64}, Role::kTangent);
  const NodeId a = net.Input("a", {64, 64}, Role::kSaved);
  const auto scatter = [&](int i, const char* name, const char* fqn) {
    net.Out(net.Scatter(absl::StrCat(i, name), h), SlotKind::kParameterGradient,
            absl::StrCat("layers.", i, fqn));
  };
  for (int i = 1; i >= 0; --i) {
    const NodeId again =
        net.In(absl::StrCat("layers.", i, ".attention")).Call(absl::StrCat("mm", i), {a}, {64, 64});
    net.In(absl::StrCat("layers.", i, ".moe.experts"));
    h = net.Call(absl::StrCat("gx", i, "m"), {h, again}, {64, 64});
    net.OnGroup(own_group ? efsdp : 0);
    scatter(i, "m", ".moe.w1");
    net.OnGroup(0).In(absl::StrCat("layers.", i, ".moe"));
    if (exchange) {
      const std::string name = absl::StrCat("A2A", i);
      h = net.Wait("W" + name, net.Start(CollectiveKind::kAllToAll, name, h));
    }
    net.In(absl::StrCat("layers.", i, ".attention"));
    h = net.Call(absl::StrCat("gx", i, "o"), {h, a}, {64, 64});
    scatter(i, "o", ".attention.wo");
    h = net.Call(absl::StrCat("gx", i, "q"), {h, a}, {64, 64});
    scatter(i, "q", ".attention.wq");
  }
  net.Out(h, SlotKind::kInputGradient);
  return net.Build();
}

TEST(Dense, T4_14_OnlyTheAttentionPartOfALayerWithExpertsCounts) {
  const PlanOptions options = Dense("layers.[0-1]");
  EXPECT_THAT(Order(Experts(false, false), options), HasSubstr("gx1q RS1 mm0 gx0m gx0o"))
      << "all of a dense layer";
  EXPECT_THAT(Order(Experts(true, false), options), HasSubstr("mm0 gx0m A2A0 WA2A0 RS1 gx0o"))
      << "by the exchange of tokens";
  EXPECT_THAT(Order(Experts(false, true), options), HasSubstr("gx1q mm0 gx0m RS0m RS1m RS1 gx0o"))
      << "by the group of the experts' parameters";
}

TEST(Dense, AGatherThatIsUsedBeforeTheRegionStaysAndUnderStrictIsAnError) {
  Net net;
  NodeId h = net.Input("x", {64, 64});
  std::vector<NodeId> parameters;
  for (int i = 0; i < 2; ++i) {
    parameters.push_back(net.Parameter(absl::StrCat("layers.", i, ".w"), {8, 64}));
  }
  for (const int i : {1, 0}) {
    net.In(absl::StrCat("layers.", i));
    const NodeId w = net.View("view", net.Gather(absl::StrCat(i), parameters[i == 1 ? 1 : 0]));
    h = net.Call(absl::StrCat("mm", i), {h, w}, {64, 64});
  }
  net.Out(h, SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_EQ(Order(graph, Dense("layers.[0-1]")),
            Order(graph, Dense("layers.[0-1]", DenseRegions::kOff)));
  const absl::Status strict = TryPlan(graph, Dense("layers.[0-1]", DenseRegions::kStrict)).status();
  EXPECT_THAT(std::string(strict.message()),
              AllOf(HasSubstr("AG1"), HasSubstr("used before the dense region")));
}

TEST(Dense, T4_15_AnEntryThatSpansTwoLayersIsRefused) {
  const absl::Status status = TryPlan(Forward(3, 2), Dense("layers.0+layers.1,layers.2")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("spans layers.0 and layers.1"));
}

TEST(Dense, LayersOfOneRowCountInNumericOrder) {
  const Graph graph = Forward(12, 1);
  const Plan plan = Planned(graph, Dense("layers.[0-11]", DenseRegions::kStrict));
  EXPECT_THAT(Text(graph, plan), HasSubstr("W80 AG90 mm80 W90 AG100 mm90 W100 AG110 mm100"));
}

TEST(Dense, WithoutLayersNothingMovesAndThePlanSaysSo) {
  const Graph graph = Gathers({"stem.w", "head.w"});
  EXPECT_THAT(DiagnosticText(Planned(graph, Dense("stem,head")), kSkipped),
              HasSubstr("no unit is a layer"));
}

TEST(Dense, T4_14_OffIsThePlanWithoutThePass) {
  for (const Graph& graph : {WithHead(3), Joint(3, 2, true), Experts(true, true)}) {
    const PlanOptions options = Dense("layers.[0-1]", DenseRegions::kOff);
    const Plan off = Planned(graph, options);
    std::vector<absl::string_view> passes;
    for (const absl::string_view pass : FindMode("manual")->passes) {
      if (pass != "dense-regions") passes.push_back(pass);
    }
    ASSERT_EQ(passes.size() + 1, FindMode("manual")->passes.size());
    const Costs costs = CostsOf(graph);
    PassContext context(graph, costs, options);
    Plan without = ProgramOrder(graph);
    ASSERT_TRUE(MakePipeline(passes)->Run(context, without, nullptr).ok());
    EXPECT_EQ(Text(graph, off), Text(graph, without));
    EXPECT_EQ(off.order, without.order);
    EXPECT_EQ(off.diagnostics.size(), without.diagnostics.size());
    EXPECT_NE(Order(graph, Dense("layers.[0-1]")), Text(graph, off)) << "on does something here";
  }
}

TEST(Dense, MemoryTakesTheWaitsBackFirstAndThenEverything) {
  const Graph graph = Joint(6, 2, true);
  PlanOptions options = Dense("layers.[0-5]", DenseRegions::kOff);
  options.prefetch_forward = options.prefetch_backward = options.defer_reduce_scatter = 0;
  const Plan off = Planned(graph, options);
  options.dense_regions = DenseRegions::kOn;
  const Plan free = Planned(graph, options);
  ASSERT_GT(free.prediction.peak_bytes, off.prediction.peak_bytes);
  EXPECT_FALSE(HasDiagnostic(free, kMemory));
  options.memory_limit_bytes = free.prediction.peak_bytes - 1;
  const Plan waits = Planned(graph, options);
  EXPECT_THAT(DiagnosticText(waits, kMemory), HasSubstr("waits for reduce-scatters keep"));
  EXPECT_LT(waits.prediction.peak_bytes, free.prediction.peak_bytes);
  EXPECT_NE(waits.order, off.order);
  options.memory_limit_bytes = off.prediction.peak_bytes;
  const Plan none = Planned(graph, options);
  EXPECT_THAT(DiagnosticText(none, kMemory), HasSubstr("no launch moves"));
  EXPECT_EQ(none.order, off.order);
}

TEST(Dense, CapturedGraphsStayLegalAndWithinMemory) {
  for (const char* name : {"llama3_debug_fsdp8.joint", "llama3_debug_hsdp2x4_rsar.bw",
                           "moe_debug_fsdp4_ep4.bw", "moe_debug_fsdp4_ep4.joint"}) {
    const CapturedGraph captured = Captured(name);
    PlanOptions options = TransformerBlock();
    const Plan off = Planned(captured.graph, options);
    options.dense_regions = DenseRegions::kOn;
    const Plan on = Planned(captured.graph, options);
    EXPECT_TRUE(VerifyPlan(captured.graph, on).ok()) << name;
    EXPECT_EQ(BucketNames(on), BucketNames(off)) << name;
    EXPECT_LE(on.prediction.peak_bytes,
              std::max(off.prediction.peak_bytes, on.program_order.peak_bytes * 105 / 100))
        << name;
    options.memory_limit_bytes = int64_t{1} << 50;
    EXPECT_NE(Planned(captured.graph, options).order, off.order) << name;
  }
}

}  // namespace
}  // namespace bucketd::testing
