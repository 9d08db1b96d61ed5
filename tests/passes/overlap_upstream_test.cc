// What torch 2.13's overlap scheduler takes for cheap.
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "passes/planner.h"
#include "tests/passes/overlap_test_util.h"

namespace bucketd {
namespace {

using testing::Before;
using testing::Net;
using testing::OrderOf;
using testing::OverlapOptions;
using testing::Timed;

// q leads to a gather through `op`: what does so over cheap ops alone goes before r.
std::string BehindOneOp(const std::string& op, uint8_t flags, bool upstream) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p = net.Parameter("p", {8, 64});
  const NodeId r = net.Call("r", {x}, {64, 64});
  const NodeId q = net.Call("q", {p}, {8, 64});
  const NodeId w = net.Gather("0", net.Call("c", {q}, {8, 64}, flags, op));
  net.Out(net.Call("mm", {r, w}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  return OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 1}}), OverlapOptions(upstream));
}

TEST(Overlap, UpstreamCountsOnlyOpsAsCheapThatTorchDoes) {
  for (const char* op : {"aten._to_copy.default", "aten.floor_divide.default"}) {
    EXPECT_TRUE(Before(BehindOneOp(op, kPointwiseFlag, false), "q", "r")) << op;
    EXPECT_TRUE(Before(BehindOneOp(op, kPointwiseFlag, true), "r", "q")) << op;
  }
  EXPECT_TRUE(Before(BehindOneOp("aten._unsafe_view.default", kViewFlag, false), "q", "r"));
  EXPECT_TRUE(Before(BehindOneOp("aten._unsafe_view.default", kViewFlag, true), "r", "q"));
  for (const char* op : {"aten.clone.default", "prims.convert_element_type.default"}) {
    EXPECT_TRUE(Before(BehindOneOp(op, kPointwiseFlag, true), "q", "r")) << op;
  }
}

TEST(Overlap, UpstreamRefusesGroupsWhoseTimelinesWouldTakeAllMemory) {
  constexpr int kGroups = 4200;
  Net net;
  NodeId x = net.Input("x", {64, 64});
  for (int i = 0; i < kGroups; ++i) {
    net.OnGroup(net.AddGroup(absl::StrCat("g", i), 8));
    const NodeId w = net.Gather(absl::StrCat(i), net.Parameter(absl::StrCat("p", i), {8, 64}));
    x = net.Call("mm", {x, w}, {64, 64}, kComputeFlag);
  }
  net.Out(x, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = Timed(graph, {{"AG", 1}, {"mm", 1}});
  EXPECT_TRUE(MakePlan(graph, costs, OverlapOptions()).ok());
  EXPECT_EQ(MakePlan(graph, costs, OverlapOptions(true)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace bucketd
