#include "passes/cost/torch_model.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/cost/saturation.h"
#include "passes/ir/graph_builder.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;

constexpr CollectiveKind kGather = CollectiveKind::kAllGather;
constexpr CollectiveKind kScatter = CollectiveKind::kReduceScatter;
constexpr CollectiveKind kReduce = CollectiveKind::kAllReduce;
constexpr auto kRing = NcclAlgorithm::kRing;
constexpr auto kTree = NcclAlgorithm::kTree;
constexpr auto kLL = NcclProtocol::kLL;
constexpr auto kSimple = NcclProtocol::kSimple;
constexpr int64_t kSizes[] = {int64_t{64} << 10, int64_t{1} << 20, int64_t{64} << 20,
                              int64_t{1} << 30};

NcclMachine Machine(GpuArchitecture architecture) {
  NcclMachine machine;
  machine.architecture = architecture;
  return machine;
}
const NcclMachine kA100 = Machine(GpuArchitecture::kAmpere);
const NcclMachine kH100 = Machine(GpuArchitecture::kHopper);

TEST(TorchModel, T8_7_TimesAreThoseThatPyTorchGives) {
  struct Row {
    NcclMachine machine;
    CollectiveKind kind;
    int32_t ranks;
    NcclTime times[4];
  };
  const Row rows[] = {
      {kA100,
       kGather,
       8,
       {{11.5, kRing, kLL}, {21.3, kRing, kLL}, {276.9, kRing, kSimple}, {3946.9, kRing, kSimple}}},
      {kA100,
       kGather,
       16,
       {{29.4, kRing, kLL},
        {119.0, kRing, kSimple},
        {3204.5, kRing, kSimple},
        {50222.5, kRing, kSimple}}},
      {kA100,
       kReduce,
       8,
       {{16.3, kRing, kLL}, {35.9, kRing, kLL}, {545.3, kRing, kSimple}, {7885.4, kRing, kSimple}}},
      {kA100,
       kReduce,
       128,
       {{94.0, kTree, kLL},
        {358.8, kTree, kSimple},
        {6256.8, kRing, kSimple},
        {51790.6, kRing, kSimple}}},
      {kH100,
       kGather,
       8,
       {{11.2, kRing, kLL}, {17.3, kRing, kLL}, {190.9, kRing, kSimple}, {2571.5, kRing, kSimple}}},
      {kH100,
       kGather,
       16,
       {{26.4, kRing, kLL},
        {72.3, kRing, kLL},
        {1637.3, kRing, kSimple},
        {25146.3, kRing, kSimple}}},
      {kH100,
       kGather,
       128,
       {{162.3, kRing, kLL},
        {210.1, kRing, kLL},
        {1865.9, kRing, kSimple},
        {13249.3, kRing, kSimple}}},
      {kH100,
       kReduce,
       128,
       {{77.4, kTree, kLL},
        {267.6, kTree, kSimple},
        {3645.6, kTree, kSimple},
        {26490.3, kRing, kSimple}}},
  };
  for (const Row& row : rows) {
    for (size_t i = 0; i < 4; ++i) {
      const NcclTime time = NcclCollectiveTime(row.kind, kSizes[i], row.ranks, row.machine);
      EXPECT_NEAR(time.us, row.times[i].us, 0.1) << row.ranks << " ranks, " << kSizes[i];
      EXPECT_EQ(time.algorithm, row.times[i].algorithm) << row.ranks << " ranks, " << kSizes[i];
      EXPECT_EQ(time.protocol, row.times[i].protocol) << row.ranks << " ranks, " << kSizes[i];
    }
  }
}

TEST(TorchModel, T8_7_AScatterTakesAsLongAsAGather) {
  for (const int32_t ranks : {2, 8, 16, 128}) {
    for (const int64_t bytes : kSizes) {
      EXPECT_EQ(NcclCollectiveTime(kScatter, bytes, ranks, kH100).us,
                NcclCollectiveTime(kGather, bytes, ranks, kH100).us);
    }
  }
}

TEST(TorchModel, T8_7_MoreBytesNeverTakeLessTime) {
  for (const NcclMachine& machine :
       {kA100, kH100, Machine(GpuArchitecture::kVolta), Machine(GpuArchitecture::kBlackwell)}) {
    for (const int32_t ranks : {2, 4, 8, 16, 24, 64, 512}) {
      double before = 0.0;
      for (int64_t bytes = 1; bytes <= int64_t{1} << 33; bytes += bytes / 3 + 1) {
        const double us = NcclCollectiveTime(kGather, bytes, ranks, machine).us;
        EXPECT_GE(us, before) << ranks << " ranks, " << bytes;
        before = us;
      }
    }
  }
}

TEST(TorchModel, T8_7_OneRankTakesNoTime) {
  for (const CollectiveKind kind : {kGather, kScatter, kReduce, CollectiveKind::kAllToAll}) {
    EXPECT_EQ(NcclCollectiveTime(kind, 1 << 20, 1, kH100).us, 0.0);
  }
  EXPECT_EQ(NcclCollectiveTime(CollectiveKind::kBroadcast, 1 << 20, 8, kH100).us, 0.0);
}

TEST(TorchModel, T8_7_NoBytesTakeTheLatency) {
  // Ring, LL: a base of 6.6 and seven hops of 0.6.
  EXPECT_NEAR(NcclCollectiveTime(kGather, 0, 8, kH100).us, 6.6 + 7 * 0.6, 1e-9);
  // An all-reduce goes round twice.
  EXPECT_NEAR(NcclCollectiveTime(kReduce, 0, 2, kH100).us, 6.6 + 2 * 0.6, 1e-9);
}

TEST(TorchModel, T8_7_ACallersOwnEstimateComesFirst) {
  const CollectiveEstimator scatters_only = [](CollectiveKind kind, int64_t,
                                               int32_t) -> std::optional<double> {
    if (kind == kScatter) return 42.0;
    return std::nullopt;
  };
  EXPECT_EQ(EstimateCollectiveUs(kScatter, 1 << 20, 8, kH100, scatters_only), 42.0);
  const double modelled = NcclCollectiveTime(kGather, 1 << 20, 8, kH100).us;
  EXPECT_EQ(EstimateCollectiveUs(kGather, 1 << 20, 8, kH100, scatters_only), modelled);
  EXPECT_EQ(EstimateCollectiveUs(kGather, 1 << 20, 8, kH100, nullptr), modelled);
}

TEST(TorchModel, T8_7_RanksAgreeOnTheLowerMedian) {
  const std::vector<double> ranks[] = {{4, 1}, {1, 2}, {3, 9}, {2, 8}};
  const auto even = AlignAcrossRanks(ranks);
  ASSERT_TRUE(even.ok());
  EXPECT_THAT(*even, ElementsAre(2, 2));
  const auto odd = AlignAcrossRanks(absl::MakeConstSpan(ranks).subspan(0, 3));
  ASSERT_TRUE(odd.ok());
  EXPECT_THAT(*odd, ElementsAre(3, 2));
  const std::vector<double> uneven[] = {{1}, {1, 2}};
  EXPECT_EQ(AlignAcrossRanks(uneven).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AlignAcrossRanks({}).status().code(), absl::StatusCode::kInvalidArgument);
}

double Mega(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

TEST(Saturation, T2_12_TorchsCapsAreTheirs) {
  EXPECT_NEAR(Mega(TorchSaturationBytes(2, kA100)), 10.39, 0.01);
  EXPECT_NEAR(Mega(TorchSaturationBytes(4, kA100)), 27.4, 0.05);
  EXPECT_NEAR(Mega(TorchSaturationBytes(8, kA100)), 61.37, 0.01);
  EXPECT_EQ(TorchSaturationBytes(16, kA100), int64_t{75} << 20);
  EXPECT_NEAR(Mega(TorchSaturationBytes(64, kA100)), 86.1, 0.05);
  EXPECT_NEAR(Mega(TorchSaturationBytes(128, kA100)), 170.7, 0.05);
  EXPECT_NEAR(Mega(TorchSaturationBytes(512, kA100)), 678.3, 0.05);
  EXPECT_EQ(TorchAutoCapBytes(512, kA100), int64_t{500} << 20);
  EXPECT_NEAR(Mega(TorchSaturationBytes(2, kH100)), 15.45, 0.01);
  EXPECT_NEAR(Mega(TorchSaturationBytes(8, kH100)), 89.61, 0.01);
  EXPECT_EQ(TorchSaturationBytes(16, kH100), int64_t{100} << 20);
  EXPECT_NEAR(Mega(TorchSaturationBytes(64, kH100)), 148.4, 0.05);
  EXPECT_NEAR(Mega(TorchSaturationBytes(128, kH100)), 293.4, 0.05);
  EXPECT_NEAR(Mega(TorchSaturationBytes(512, kH100)), 1163.6, 0.05);
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
  spec.collective.kind = kGather;
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
