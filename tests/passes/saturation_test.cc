#include "passes/cost/saturation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "passes/ir/graph_builder.h"
#include "passes/pass/upstream/torch_greedy.h"

namespace bucketd {
namespace {

double Mega(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

TEST(Saturation, T2_12_TorchsCapsAreTheirs) {
  EXPECT_NEAR(Mega(upstream::TorchSaturationBytes(2)), 10.39, 0.01);
  EXPECT_NEAR(Mega(upstream::TorchSaturationBytes(4)), 27.4, 0.05);
  EXPECT_NEAR(Mega(upstream::TorchSaturationBytes(8)), 61.37, 0.01);
  EXPECT_EQ(upstream::TorchSaturationBytes(16), int64_t{75} << 20);
  EXPECT_NEAR(Mega(upstream::TorchSaturationBytes(64)), 86.1, 0.05);
  EXPECT_NEAR(Mega(upstream::TorchSaturationBytes(128)), 170.7, 0.05);
  EXPECT_NEAR(Mega(upstream::TorchSaturationBytes(512)), 678.3, 0.05);
  EXPECT_EQ(upstream::TorchAutoCapBytes(512), int64_t{500} << 20);
}

// One gather of 64 KiB over `ranks` ranks.
Graph OneGather(int32_t ranks) {
  GraphBuilder builder("one");
  EXPECT_TRUE(builder.AddGroup({"dp", 0, ranks}).ok());
  const std::vector<int64_t> part = {8, 64}, all = {8 * ranks, 64};
  const NodeSpec::Tensor shard{DType::kBF16, part}, whole{DType::kBF16, all};
  NodeSpec spec;
  spec.kind = NodeKind::kPlaceholder;
  spec.op = "placeholder";
  spec.outputs = absl::MakeConstSpan(&shard, 1);
  const std::vector<NodeId> input = {builder.Add(spec).value()};
  spec.kind = NodeKind::kCollective;
  spec.op = "all_gather";
  spec.collective.kind = CollectiveKind::kAllGather;
  spec.inputs = input;
  spec.outputs = absl::MakeConstSpan(&whole, 1);
  const std::vector<NodeId> start = {builder.Add(spec).value()};
  NodeSpec wait;
  wait.kind = NodeKind::kWait;
  wait.op = "wait";
  wait.inputs = wait.alias_of = start;
  wait.outputs = absl::MakeConstSpan(&whole, 1);
  EXPECT_TRUE(builder.Add(wait).ok());
  NodeSpec output;
  output.kind = NodeKind::kOutput;
  output.op = "output";
  EXPECT_TRUE(builder.Add(output).ok());
  return std::move(builder).Build().value();
}

Costs CostsOn(const Graph& graph, int32_t ranks, int32_t ranks_per_node) {
  Mesh mesh;
  mesh.dims.push_back({"dp", ranks, ranks_per_node, ""});
  CostProfile profile;
  profile.name = "test";
  return Costs::FromDeviceModel(graph, mesh, profile).value();
}

TEST(Saturation, OurCapsFollowEachGroupsOwnSizeAndLink) {
  const Graph two = OneGather(2), eight = OneGather(8), many = OneGather(64);
  // 9 * alpha * bandwidth * n / (n - 1): alpha 12 us, 24 us, and 42 us across nodes.
  EXPECT_NEAR(static_cast<double>(SaturationBytes(CostsOn(two, 2, 0), 0)),
              9 * 12e-6 * 360e9 * 2 / 1, 1e3);
  EXPECT_NEAR(static_cast<double>(SaturationBytes(CostsOn(eight, 8, 0), 0)),
              9 * 24e-6 * 360e9 * 8 / 7, 1e3);
  EXPECT_NEAR(static_cast<double>(SaturationBytes(CostsOn(many, 64, 8), 0)),
              9 * 42e-6 * 320e9 * 64 / 63, 1e3);
  // The same size with one rank a node is another link.
  EXPECT_NE(SaturationBytes(CostsOn(eight, 8, 1), 0), SaturationBytes(CostsOn(eight, 8, 0), 0));
  EXPECT_EQ(AutoCapBytes(CostsOn(eight, 8, 0), 0), SaturationBytes(CostsOn(eight, 8, 0), 0));
  EXPECT_EQ(AutoCapBytes(CostsOn(eight, 8, 1), 0),
            std::max(kMinAutoCapBytes, SaturationBytes(CostsOn(eight, 8, 1), 0)));
}

}  // namespace
}  // namespace bucketd
