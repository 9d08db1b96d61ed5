#include <map>
#include <set>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "passes/io/gzip.h"
#include "passes/pass/tags.h"
#include "tests/passes/pass_test_util.h"
#include "tests/passes/test_data.h"

namespace bucketd::testing {
namespace {

CollectiveTag TagOf(const Graph& graph, absl::string_view start) {
  const Tags tags = DeriveTags(graph);
  for (CollectiveId c = 0; c < static_cast<CollectiveId>(graph.collectives().size()); ++c) {
    if (graph.node_name(graph.collective(c).start) == start) return tags[c];
  }
  ADD_FAILURE() << "no collective " << start;
  return {};
}

TEST(Tags, T1_1_AGatherOfACastParameterIsTagged) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId cast = net.Call("cast", {net.Parameter("a.weight", {8, 64})}, {8, 64});
  net.Out(net.Call("mm", {x, net.Gather("0", cast)}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_EQ(TagOf(graph, "AG0").tag, Tag::kFsdpAllGather);
  EXPECT_EQ(TagOf(graph, "AG0").parameter, "a.weight");
}

TEST(Tags, T1_2_AGatherOfASavedActivationIsNot) {
  Net net;
  const NodeId saved = net.Input("saved", {8, 64}, Role::kSaved);
  net.Out(net.Gather("0", net.Call("relu", {saved}, {8, 64})), SlotKind::kOutput);
  EXPECT_EQ(TagOf(net.Build(), "AG0").tag, Tag::kNone);
}

TEST(Tags, T1_2_WithoutAnyRolesOnePlaceholderIsEnough) {
  Net net;
  const NodeId p = net.Input("p", {8, 64}, Role::kNone);
  net.Out(net.Gather("0", p), SlotKind::kOutput);
  EXPECT_EQ(TagOf(net.Build(), "AG0").tag, Tag::kFsdpAllGather);
}

TEST(Tags, T1_3_APadMadeOfConstantsDoesNotHideTheParameter) {
  Net net;
  const NodeId p = net.Parameter("a.weight", {6, 64});
  const NodeId zeros = net.Call("zeros", {}, {2, 64});
  net.Out(net.Gather("0", net.Call("cat", {p, zeros}, {8, 64})), SlotKind::kOutput);
  EXPECT_EQ(TagOf(net.Build(), "AG0").tag, Tag::kFsdpAllGather);
}

TEST(Tags, T1_4_AGatherOfTwoParametersIsNot) {
  Net net;
  const NodeId a = net.Parameter("a", {8, 8}), b = net.Parameter("b", {8, 8});
  net.Out(net.Gather("0", net.Call("mm", {a, b}, {8, 8})), SlotKind::kOutput);
  EXPECT_EQ(TagOf(net.Build(), "AG0").tag, Tag::kNone);
}

TEST(Tags, T1_5_AGatherOfConstantsIsNot) {
  Net net;
  net.Parameter("a", {8, 8});
  net.Out(net.Gather("0", net.Call("zeros", {}, {8, 8})), SlotKind::kOutput);
  EXPECT_EQ(TagOf(net.Build(), "AG0").tag, Tag::kNone);
}

TEST(Tags, T1_6_AScatterThatEndsInAGradientIsTaggedWithTheLowestSlot) {
  Net net;
  const NodeId wait = net.Scatter("0", net.Input("g", {64, 8}, Role::kTangent));
  const NodeId cast = net.Call("cast", {net.View("view", wait)}, {8, 8});
  net.Out(kNoNode, SlotKind::kNone);
  net.Out(cast, SlotKind::kParameterGradient, "b.weight");
  net.Out(wait, SlotKind::kParameterGradient, "c.weight");
  const Graph graph = net.Build();
  EXPECT_EQ(TagOf(graph, "RS0").tag, Tag::kFsdpReduceScatter);
  EXPECT_EQ(TagOf(graph, "RS0").parameter, "b.weight");
}

TEST(Tags, T1_6_AScatterThatEndsInNoGradientIsNot) {
  Net net;
  net.Out(net.Scatter("0", net.Input("g", {64, 8})), SlotKind::kOutput);
  EXPECT_EQ(TagOf(net.Build(), "RS0").tag, Tag::kNone);
}

TEST(Tags, T1_7_AScatterThatIsAccumulatedIsNot) {
  Net net;
  const NodeId wait = net.Scatter("0", net.Input("g", {64, 8}, Role::kTangent));
  const NodeId old = net.Input("old", {8, 8});
  net.Out(net.Call("add", {old, wait}, {8, 8}), SlotKind::kParameterGradient, "a");
  EXPECT_EQ(TagOf(net.Build(), "RS0").tag, Tag::kNone);
}

TEST(Tags, T1_8_AScatterThatNobodyUsesIsNot) {
  Net net;
  const NodeId g = net.Input("g", {64, 8}, Role::kTangent);
  net.Scatter("0", g);
  net.Out(g, SlotKind::kParameterGradient, "a");
  EXPECT_EQ(TagOf(net.Build(), "RS0").tag, Tag::kNone);
}

TEST(Tags, T1_9_AnAllReduceOfAGradientIsDdpAndOneOfAnActivationIsNothing) {
  Net net;
  const NodeId g = net.Input("g", {64, 8}, Role::kTangent), x = net.Input("x", {64, 8});
  net.Out(net.Reduce("0", g), SlotKind::kParameterGradient, "a");
  net.Out(net.Call("mul", {x, net.Reduce("1", x)}, {64, 8}), SlotKind::kParameterGradient, "b");
  const Graph graph = net.Build();
  EXPECT_EQ(TagOf(graph, "AR0").tag, Tag::kDdpAllReduce);
  EXPECT_EQ(TagOf(graph, "AR0").parameter, "a");
  EXPECT_EQ(TagOf(graph, "AR1").tag, Tag::kNone);
}

TEST(Tags, T1_10_ScatterThenReduceIsHsdp) {
  Net net;
  const NodeId wait = net.Scatter("0", net.Input("g", {64, 8}, Role::kTangent));
  net.Out(net.Reduce("0", wait), SlotKind::kParameterGradient, "a");
  const Graph graph = net.Build();
  EXPECT_EQ(TagOf(graph, "RS0").tag, Tag::kFsdpReduceScatter);
  EXPECT_EQ(TagOf(graph, "AR0").tag, Tag::kHsdpAllReduce);
}

TEST(Tags, T1_10b_ReduceThenScatterIsHsdp) {
  Net net;
  const NodeId reduced = net.Reduce("0", net.Input("g", {64, 8}, Role::kTangent));
  const NodeId cast = net.Call("cast", {reduced}, {64, 8});
  net.Out(net.Scatter("0", cast), SlotKind::kParameterGradient, "a");
  const Graph graph = net.Build();
  EXPECT_EQ(TagOf(graph, "RS0").tag, Tag::kFsdpReduceScatter);
  EXPECT_EQ(TagOf(graph, "AR0").tag, Tag::kHsdpAllReduce);
  EXPECT_EQ(TagOf(graph, "AR0").parameter, "a");
}

TEST(Tags, T1_11_TagsOfTheGraphWinOverStructure) {
  Net net;
  // A gather of a saved tensor, which only the joint graph knew to be a parameter's.
  const NodeId saved = net.Input("saved", {8, 64}, Role::kSaved);
  const NodeId start = net.Tagged(Tag::kFsdpAllGather, "a.weight", CollectiveKind::kAllGather,
                                  "AG0", saved, ReduceOp::kNone);
  net.Out(net.Wait("W0", start), SlotKind::kOutput);
  net.Out(net.Gather("1", net.Parameter("b.weight", {8, 64})), SlotKind::kOutput);
  const Graph graph = net.Build();
  std::vector<Diagnostic> diagnostics;
  const Tags tags = ResolveTags(graph, diagnostics);
  EXPECT_FALSE(tags.derived);
  EXPECT_EQ(tags[0].tag, Tag::kFsdpAllGather);
  EXPECT_EQ(tags[0].parameter, "a.weight");
  EXPECT_EQ(tags[1].tag, Tag::kNone);
  EXPECT_THAT(diagnostics, ::testing::IsEmpty());
}

TEST(Tags, T1_11_TheRecomputedGatherCarriesTheTagOfTheForwards) {
  const Graph graph = Joint(2, 1, true);
  const Tags tags = DeriveTags(graph);
  int pairs = 0;
  for (CollectiveId c = 0; c < static_cast<CollectiveId>(tags.of.size()); ++c) {
    const std::string name(graph.node_name(graph.collective(c).start));
    for (CollectiveId other = 0; other < static_cast<CollectiveId>(tags.of.size()); ++other) {
      if (graph.node_name(graph.collective(other).start) != name + "'") continue;
      EXPECT_EQ(tags[c].tag, Tag::kFsdpAllGather) << name;
      EXPECT_EQ(tags[c].tag, tags[other].tag) << name;
      EXPECT_EQ(tags[c].parameter, tags[other].parameter) << name;
      ++pairs;
    }
  }
  EXPECT_EQ(pairs, 2);
}

TEST(Tags, T1_12_AStartWithASecondUserIsNot) {
  Net net;
  const NodeId start = net.Start(CollectiveKind::kAllGather, "AG0", net.Parameter("a", {8, 64}));
  net.Out(net.View("view", start), SlotKind::kOutput);
  net.Out(net.Wait("W0", start), SlotKind::kOutput);
  EXPECT_EQ(TagOf(net.Build(), "AG0").tag, Tag::kNone);
}

TEST(Tags, T1_12_AStatedTagOnSuchAStartIsRefusedAndNamed) {
  Net net;
  const NodeId start = net.Tagged(Tag::kFsdpAllGather, "a", CollectiveKind::kAllGather, "AG0",
                                  net.Parameter("a", {8, 64}), ReduceOp::kNone);
  net.Out(net.View("view", start), SlotKind::kOutput);
  net.Out(net.Wait("W0", start), SlotKind::kOutput);
  const Graph graph = net.Build();
  std::vector<Diagnostic> diagnostics;
  EXPECT_EQ(ResolveTags(graph, diagnostics)[0].tag, Tag::kNone);
  ASSERT_EQ(diagnostics.size(), 1u);
  EXPECT_EQ(diagnostics[0].code, "tag-refused");
  EXPECT_THAT(diagnostics[0].text, ::testing::HasSubstr("AG0"));
}

using Named = std::multiset<std::pair<NodeId, std::string>>;

// What the file says its collectives are for, which the graph is not told.
Named StatedIn(const std::string& name) {
  const std::string path = TestDataPath("graphs/" + name + ".json.gz");
  const nlohmann::json file = nlohmann::json::parse(*GunzipBounded(ReadFile(path), kMaxJsonBytes));
  Named stated;
  for (const nlohmann::json& node : file["nodes"]) {
    if (!node.contains("coll") || !node["coll"].contains("param")) continue;
    stated.emplace(node["id"], node["coll"]["param"]);
  }
  return stated;
}

TEST(Tags, T2_14_DerivedTagsAreTheStatedOnesOnEverySharedGraph) {
  for (const std::string& name : CapturedNames()) {
    const CapturedGraph captured = Captured(name);
    const Tags tags = DeriveTags(captured.graph);
    Named derived;
    for (CollectiveId c = 0; c < static_cast<CollectiveId>(tags.of.size()); ++c) {
      const NodeId start = captured.graph.collective(c).start;
      if (tags[c].tag != Tag::kNone) derived.emplace(start, std::string(tags[c].parameter));
    }
    EXPECT_EQ(derived, StatedIn(name)) << name;
  }
}

TEST(Tags, T2_14_TheSplitGraphsTagTheParametersOfTheJointOne) {
  std::map<std::string, std::set<std::string>> joint, split;
  for (const std::string& name : CapturedNames()) {
    const CapturedGraph captured = Captured(name);
    const Tags tags = DeriveTags(captured.graph);
    const std::string config = name.substr(0, name.rfind('.'));
    for (const CollectiveTag& tag : tags.of) {
      if (tag.tag == Tag::kNone) continue;
      (captured.kind == "joint" ? joint : split)[config].insert(std::string(tag.parameter));
    }
  }
  EXPECT_FALSE(joint.empty());
  EXPECT_EQ(joint, split);
}

TEST(Directions, AreStructuralWhereTheGraphSaysNothing) {
  Net net;
  const NodeId x = net.Input("x", {64, 64}), t = net.Input("t", {64, 64}, Role::kTangent);
  const NodeId p = net.Parameter("a", {8, 64});
  const NodeId y = net.Call("mm", {x, net.Gather("0", p)}, {64, 64});
  net.Out(y, SlotKind::kOutput);
  const NodeId gx = net.Call("gx", {t, net.Gather("1", p)}, {64, 64});
  net.Out(net.Scatter("0", gx), SlotKind::kParameterGradient, "a");
  const Graph graph = net.Build();
  EXPECT_THAT(
      CollectiveDirections(graph),
      ::testing::ElementsAre(Direction::kForward, Direction::kBackward, Direction::kBackward));
}

}  // namespace
}  // namespace bucketd::testing
