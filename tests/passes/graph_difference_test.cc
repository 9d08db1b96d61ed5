#include "passes/ir/graph_difference.h"

#include <functional>
#include <string>

#include "gtest/gtest.h"

#include "passes/ir/canonical.h"
#include "tests/passes/graph_fixtures.h"

namespace bucketd {
namespace {

using testing::GraphWriter;

struct Choices {
  int32_t ranks = 4;
  std::string parameter = "w", op = "aten.mm.default";
  int64_t rows = 8;
  DType dtype = DType::kBF16;
  CollectiveKind kind = CollectiveKind::kAllGather;
  bool second_call = false, empty_slot = false;
};

Graph Make(const Choices& c) {
  GraphWriter w(c.ranks);
  const NodeId x = w.Placeholder({c.rows, 2}, "", c.dtype);
  const NodeId p = w.Placeholder({2}, c.parameter, c.dtype);
  const int64_t gathered = c.kind == CollectiveKind::kAllGather ? 2 * c.ranks : 2;
  const NodeId start = w.Collective(c.kind, p, {gathered}, c.dtype);
  const NodeId wait = w.Wait(start, {gathered}, c.dtype);
  NodeId y = w.Call(c.op, {x, wait}, {4}, c.dtype);
  if (c.second_call) y = w.Call(c.op, {y}, {4}, c.dtype);
  return w.Finish(c.empty_slot ? std::vector<NodeId>{y, kNoNode} : std::vector<NodeId>{y});
}

TEST(GraphDifference, EqualGraphsHaveNone) {
  EXPECT_EQ(FirstDifference(Make({}), Make({})).node, kNoNode);
}

TEST(GraphDifference, EveryFieldThatChangesTheDigestIsNamedWithItsNode) {
  const struct {
    std::function<void(Choices&)> change;
    NodeId node;
    std::string field, second;
  } kCases[] = {
      {[](Choices& c) { c.rows = 9; }, 0, "outputs", "bf16[9, 2]"},
      {[](Choices& c) { c.dtype = DType::kF32; }, 0, "outputs", "f32[8, 2]"},
      {[](Choices& c) { c.parameter = "v"; }, 1, "parameter", "v"},
      {[](Choices& c) { c.ranks = 2; }, 2, "outputs", "bf16[4]"},
      {[](Choices& c) { c.op = "aten.add.Tensor"; }, 4, "op", "aten.add.Tensor"},
      {[](Choices& c) { c.empty_slot = true; }, 5, "output slots", "%4 output , none none "},
      {[](Choices& c) { c.second_call = true; }, 5, "kind", "call"},
  };
  const Graph graph = Make({});
  for (const auto& expected : kCases) {
    Choices choices;
    expected.change(choices);
    const Graph other = Make(choices);
    EXPECT_NE(GraphDigest(graph), GraphDigest(other));
    const GraphDifference d = FirstDifference(graph, other);
    EXPECT_EQ(d.node, expected.node);
    EXPECT_EQ(d.field, expected.field);
    EXPECT_EQ(d.second, expected.second);
  }
}

TEST(GraphDifference, OfAGraphThatGoesOnIsWhereTheOtherEnds) {
  GraphWriter w(4), longer(4);
  w.Placeholder({1});
  longer.Placeholder({1});
  longer.Placeholder({1});
  const GraphDifference d = FirstDifference(w.Finish({}), longer.Finish({}));
  EXPECT_EQ(d.node, 1);
  EXPECT_EQ(d.field, "kind");
  EXPECT_EQ(d.second, "placeholder");
}

}  // namespace
}  // namespace bucketd
