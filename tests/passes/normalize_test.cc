#include "passes/ir/normalize.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/ir/canonical.h"
#include "passes/ir/ops.h"
#include "tests/passes/graph_fixtures.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;
using testing::GraphWriter;
using testing::Shape;

constexpr char kCast[] = "aten._to_copy.default";
constexpr char kPad[] = "aten.constant_pad_nd.default";
constexpr char kSlice[] = "aten.slice.Tensor";

NormalizedGraph Normalized(const Graph& raw) {
  auto normalized = Normalize(raw);
  EXPECT_TRUE(normalized.ok()) << normalized.status();
  return *std::move(normalized);
}

std::string DigestOf(const Graph& raw) { return ToHex(GraphDigest(Normalized(raw).graph)); }

std::vector<std::string> Ops(const Graph& graph) {
  std::vector<std::string> ops;
  for (NodeId n = 0; n < graph.size(); ++n) ops.emplace_back(BaseName(graph.op(n)));
  return ops;
}

Shape ShapeOf(const Graph& graph, NodeId n) {
  const auto shape = graph.shape(graph.outputs(n)[0]);
  return {shape.begin(), shape.end()};
}

// A parameter of 13 rows over 4 ranks, gathered; `rows` of them are here.
Graph Gather(int64_t rows, bool is_padded, bool has_mesh = false) {
  GraphWriter w;
  if (has_mesh) w.Opaque();
  const NodeId param = w.Placeholder({rows, 6}, "weight");
  NodeId at = w.Call(kCast, {param}, {rows, 6});
  if (is_padded) at = w.Call(kPad, {at}, {4, 6});
  at = w.Collective(CollectiveKind::kAllGather, at, {16, 6});
  at = w.Wait(at, {16, 6});
  at = w.View(kSlice, at, {13, 6});
  at = w.View("aten.view.default", at, {13, 6});
  return w.Finish({at});
}

// The same of its gradient: what this rank's part is, cut or not.
NodeId ScatteredPart(GraphWriter& w, NodeId gradient, int64_t rows, bool is_cut) {
  NodeId at = w.Call(kCast, {gradient}, {13, 6}, DType::kF32);
  const NodeId split = w.View("aten.split.Tensor", at, {4, 6}, DType::kF32);
  std::vector<NodeId> parts;
  for (int32_t i = 0; i < 3; ++i) parts.push_back(w.Getitem(split, i, {4, 6}, DType::kF32));
  const NodeId last = w.Getitem(split, 3, {1, 6}, DType::kF32);
  parts.push_back(w.Call(kPad, {last}, {4, 6}, DType::kF32));
  at = w.Call("aten.cat.default", parts, {16, 6}, DType::kF32);
  at = w.Collective(CollectiveKind::kReduceScatter, at, {4, 6}, DType::kF32);
  at = w.Wait(at, {4, 6}, DType::kF32);
  return is_cut ? w.View(kSlice, at, {rows, 6}, DType::kF32) : at;
}

Graph Scatter(int64_t rows, bool is_cut, bool has_cast = true) {
  GraphWriter w;
  const NodeId gradient = w.Placeholder({13, 6}, "", DType::kBF16);
  NodeId at = ScatteredPart(w, gradient, rows, is_cut);
  if (has_cast) at = w.Call(kCast, {at}, {rows, 6}, DType::kBF16);
  return w.Finish({at, at, kNoNode});
}

// Of a tied parameter: the sum of its two gradients.
Graph ScatterTwice(int64_t rows, bool is_cut) {
  GraphWriter w;
  const NodeId gradient = w.Placeholder({13, 6}, "", DType::kBF16);
  const NodeId one = ScatteredPart(w, gradient, rows, is_cut);
  const NodeId other = ScatteredPart(w, gradient, rows, is_cut);
  const NodeId sum = w.Sum(one, other, {rows, 6}, DType::kF32);
  return w.Finish({w.Call(kCast, {sum}, {rows, 6}, DType::kBF16)});
}

TEST(Normalize, GivesFullShortAndEmptyRanksOneDigestForAGather) {
  const std::string full = DigestOf(Gather(4, false));
  EXPECT_EQ(DigestOf(Gather(1, true)), full);
  EXPECT_EQ(DigestOf(Gather(0, true)), full);
}

TEST(Normalize, PutsThePadAndThePaddedShapesIntoAFullRank) {
  const NormalizedGraph n = Normalized(Gather(4, false));
  EXPECT_THAT(Ops(n.graph), ElementsAre("placeholder", "_to_copy", "constant_pad_nd", "collective",
                                        "wait_tensor", "slice", "view", "output"));
  EXPECT_THAT(n.raw_id, ElementsAre(0, 1, kNoNode, 2, 3, 4, 5, 6));
  EXPECT_THAT(n.graph.inputs(2), ElementsAre(1));
  EXPECT_THAT(n.graph.inputs(3), ElementsAre(2));
  EXPECT_EQ(n.graph.memory_bytes(2), 2 * 4 * 6 * 2);
  const NormalizedGraph s = Normalized(Gather(1, true));
  EXPECT_EQ(ShapeOf(s.graph, 0), Shape({4, 6}));
  EXPECT_EQ(ShapeOf(s.graph, 1), Shape({4, 6}));
  EXPECT_EQ(s.graph.memory_bytes(1), 4 * 6 * (4 + 2));
  EXPECT_EQ(s.graph.outputs(0)[0].dtype, DType::kF32);
}

TEST(Normalize, GivesFullShortAndEmptyRanksOneDigestForAScatter) {
  for (bool has_cast : {false, true}) {
    const std::string full = DigestOf(Scatter(4, false, has_cast));
    EXPECT_EQ(DigestOf(Scatter(1, true, has_cast)), full);
    EXPECT_EQ(DigestOf(Scatter(0, true, has_cast)), full);
  }
}

TEST(Normalize, GivesTheSumOfATiedParametersGradientsOneDigest) {
  const std::string full = DigestOf(ScatterTwice(4, false));
  EXPECT_EQ(DigestOf(ScatterTwice(1, true)), full);
  EXPECT_EQ(DigestOf(ScatterTwice(0, true)), full);
  EXPECT_EQ(ShapeOf(Normalized(ScatterTwice(1, true)).graph, 24), Shape({4, 6}));
}

TEST(Normalize, PutsTheSliceBetweenTheWaitAndAllItsReaders) {
  const NormalizedGraph n = Normalized(Scatter(4, false));
  const auto ops = Ops(n.graph);
  const auto slice = static_cast<NodeId>(std::find(ops.begin(), ops.end(), "slice") - ops.begin());
  ASSERT_LT(slice, n.graph.size());
  const NodeId wait = slice - 1;
  EXPECT_EQ(n.graph.kind(wait), NodeKind::kWait);
  EXPECT_THAT(n.graph.users(wait), ElementsAre(slice));
  EXPECT_THAT(n.graph.alias_of(slice), ElementsAre(wait));
  EXPECT_TRUE(n.graph.is_view(slice));
  EXPECT_EQ(n.raw_id[static_cast<size_t>(slice)], kNoNode);
  EXPECT_THAT(n.graph.inputs(slice + 1), ElementsAre(slice));
}

TEST(Normalize, LeavesAnEvenGatherAndAScatterWithoutPadsAlone) {
  GraphWriter w;
  const NodeId param = w.Placeholder({4, 6}, "weight");
  NodeId at = w.Call(kCast, {param}, {4, 6});
  at = w.Collective(CollectiveKind::kAllGather, at, {16, 6});
  const NodeId gathered = w.Wait(at, {16, 6});
  at = w.Collective(CollectiveKind::kReduceScatter, gathered, {4, 6});
  const Graph raw = w.Finish({w.Wait(at, {4, 6})});
  const NormalizedGraph n = Normalized(raw);
  EXPECT_EQ(GraphDigest(n.graph), GraphDigest(raw));
  EXPECT_EQ(n.graph.size(), raw.size());
}

TEST(Normalize, DoesNotPadAGatherOfWhatIsComputed) {
  GraphWriter w;
  const NodeId input = w.Placeholder({4, 6});
  NodeId at = w.Call("aten.mul.Tensor", {input}, {4, 6});
  at = w.Collective(CollectiveKind::kAllGather, at, {16, 6});
  at = w.Wait(at, {16, 6});
  const Graph raw = w.Finish({w.View(kSlice, at, {13, 6})});
  EXPECT_EQ(Normalized(raw).graph.size(), raw.size());
}

TEST(Normalize, DoesNotTakeASliceOfAnotherRankForACut) {
  GraphWriter w;
  NodeId at = w.Placeholder({4, 6}, "weight", DType::kBF16);
  at = w.Collective(CollectiveKind::kAllGather, at, {16, 6});
  at = w.Wait(at, {16, 6});
  const Graph raw = w.Finish({w.View(kSlice, at, {16, 6})});
  EXPECT_EQ(Normalized(raw).graph.size(), raw.size());
}

TEST(Normalize, FindsTheCutBehindASliceThatKeepsEverything) {
  GraphWriter w;
  NodeId at = w.Placeholder({4, 6}, "weight", DType::kBF16);
  at = w.Collective(CollectiveKind::kAllGather, at, {16, 6});
  const NodeId wait = w.Wait(at, {16, 6});
  const NodeId whole = w.View(kSlice, wait, {16, 6});
  const Graph raw = w.Finish({whole, w.View(kSlice, wait, {13, 6})});
  EXPECT_EQ(Normalized(raw).graph.size(), raw.size() + 1);
}

TEST(Normalize, DropsMeshObjectsAndEmptiesTheirSlots) {
  GraphWriter w;
  const NodeId mesh = w.Opaque();
  const NodeId param = w.Placeholder({4, 6}, "weight");
  const NodeId call = w.Call("aten.mul.Tensor", {param, mesh}, {4, 6});
  const NormalizedGraph n = Normalized(w.Finish({call, mesh, call}));
  ASSERT_EQ(n.graph.size(), 3);
  EXPECT_THAT(n.raw_id, ElementsAre(1, 2, 3));
  EXPECT_THAT(n.graph.inputs(1), ElementsAre(0));
  ASSERT_EQ(n.graph.output_slots().size(), 3u);
  EXPECT_EQ(n.graph.output_slots()[1].node, kNoNode);
  EXPECT_EQ(n.graph.output_slots()[1].kind, SlotKind::kNone);
  EXPECT_EQ(n.graph.output_slots()[2].node, 1);
  EXPECT_EQ(DigestOf(Gather(4, false, true)), DigestOf(Gather(1, true, false)));
}

TEST(Normalize, IsIdempotent) {
  for (const Graph& raw : {Gather(4, false), Gather(1, true), Gather(0, true), Scatter(4, false),
                           Scatter(1, true), Scatter(0, true)}) {
    const NormalizedGraph once = Normalized(raw);
    const NormalizedGraph twice = Normalized(once.graph);
    EXPECT_EQ(CanonicalEncoding(twice.graph), CanonicalEncoding(once.graph));
    for (NodeId n = 0; n < twice.graph.size(); ++n) {
      EXPECT_EQ(twice.raw_id[static_cast<size_t>(n)], n);
    }
  }
}

TEST(Normalize, StillTellsOtherDifferencesApart) {
  EXPECT_NE(DigestOf(Gather(4, false)), DigestOf(Scatter(4, false)));
  EXPECT_NE(DigestOf(Scatter(4, false, true)), DigestOf(Scatter(4, false, false)));
}

}  // namespace
}  // namespace bucketd
