#include "passes/cost/torch_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace bucketd {
namespace {

// Rows: Volta, Ampere, Hopper, Blackwell. Columns of three: one node, two nodes, four and more.
// GB/s; microseconds. Source: NCCL src/graph/tuning.cc by way of PyTorch's comm_analysis.
constexpr double kIntraGbPerS[4] = {120, 240, 370, 720};
constexpr double kInterGbPerS[4] = {12, 25, 50, 50};
constexpr double kPcieGbPerS = 24;
constexpr double kChannels[4] = {2, 8, 16, 32};
constexpr double kMaxLL[4][3] = {{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}};
constexpr double kRingLL128PerChannel[4] = {20, 20, 36.7, 40};
constexpr double kTreeLL128PerChannel[4][3] = {
    {20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}};
constexpr double kTreePerChannel[4][3] = {
    {26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}};

// By protocol: LL, LL128, Simple.
constexpr double kBaseUs[2][3] = {{6.8, 14, 8.4}, {6.6, 14, 8.4}};     // tree, ring
constexpr double kNvlinkUs[2][3] = {{0.6, 1.25, 4}, {0.6, 1.9, 3.4}};  // a hop
constexpr double kPcieUs[2][3] = {{1, 1.9, 4}, {1, 2.5, 5.7}};
constexpr double kNetUs[2][3] = {{5, 8.5, 14}, {2.7, 4, 14}};

// What a tree reaches of its bandwidth, by floor(log2(bytes / 64)).
constexpr int kCorrections = 24;
constexpr double kTreeShare[3][kCorrections] = {
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5,
     .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9}};

int FloorLog2(int64_t x) {
  int log = 0;
  for (; x > 1; x >>= 1) ++log;
  return log;
}

struct Shape {
  size_t arch = 0, scale = 0;
  int32_t ranks = 0, nodes = 0, steps = 0;
  double ring_gb_per_s = 0.0;
};

Shape ShapeOf(CollectiveKind kind, int64_t bytes, int32_t ranks, const NcclMachine& machine) {
  Shape shape;
  shape.arch = static_cast<size_t>(machine.architecture);
  shape.ranks = ranks;
  shape.nodes = (ranks - 1) / machine.gpus_per_node + 1;
  shape.scale = shape.nodes <= 2 ? static_cast<size_t>(shape.nodes - 1) : 2;
  const bool twice = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllToAll;
  shape.steps = (twice ? 2 : 1) * (ranks - 1);
  if (shape.nodes == 1) {
    shape.ring_gb_per_s = machine.intra_node_gb_per_s > 0 ? machine.intra_node_gb_per_s
                          : machine.nvlink                ? kIntraGbPerS[shape.arch]
                                                          : kPcieGbPerS;
    return shape;
  }
  shape.ring_gb_per_s =
      machine.inter_node_gb_per_s > 0 ? machine.inter_node_gb_per_s : kInterGbPerS[shape.arch];
  if (machine.infiniband) {
    shape.ring_gb_per_s *= 0.77 + 0.23 * std::min(1.0, (shape.nodes - 1) / 7.0);
    if (shape.nodes > 2) {
      shape.ring_gb_per_s *= std::pow(std::max(static_cast<double>(bytes), 5e7) / 5e7, 0.17);
    }
  }
  return shape;
}

double RingGbPerS(const Shape& shape, NcclProtocol protocol) {
  const double bw = shape.ring_gb_per_s;
  double bus = bw;
  if (protocol == NcclProtocol::kLL) {
    bus = std::min(kMaxLL[shape.nodes == 1 ? shape.arch : 0][shape.scale], 0.5 * bw);
  } else if (protocol == NcclProtocol::kLL128) {
    bus = std::min(bw * 120 / 128, kChannels[shape.arch] * kRingLL128PerChannel[shape.arch]);
  }
  return bus * shape.ranks / shape.steps;
}

double TreeGbPerS(const Shape& shape, NcclProtocol protocol, int64_t bytes) {
  const double bw = shape.ring_gb_per_s, channels = kChannels[shape.arch];
  double bus = std::min(0.92 * bw, channels * kTreePerChannel[shape.arch][shape.scale]);
  if (protocol == NcclProtocol::kLL) {
    bus = std::min(bw / 3.8, kMaxLL[shape.nodes == 1 ? shape.arch : 0][shape.scale]);
  } else if (protocol == NcclProtocol::kLL128) {
    bus = std::min(bw * (shape.nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0),
                   channels * kTreeLL128PerChannel[shape.arch][shape.scale]);
  }
  const int step = FloorLog2(bytes >> 6);
  const double share = step < kCorrections ? kTreeShare[static_cast<size_t>(protocol)][step] : 1.0;
  return bus * 0.5 * share;
}

double LatencyUs(const Shape& shape, CollectiveKind kind, NcclAlgorithm algorithm,
                 NcclProtocol protocol, bool nvlink) {
  const auto a = static_cast<size_t>(algorithm), p = static_cast<size_t>(protocol);
  double intra = nvlink ? kNvlinkUs[a][p] : kPcieUs[a][p];
  if (shape.nodes > 1) intra = std::max(intra, protocol == NcclProtocol::kSimple ? 3.0 : 1.0);
  const double net = kNetUs[a][p];
  if (algorithm == NcclAlgorithm::kTree) {
    return kBaseUs[a][p] +
           2 * ((shape.ranks / shape.nodes - 1) * intra + FloorLog2(shape.nodes) * net);
  }
  const int32_t inter = (kind == CollectiveKind::kAllReduce ? 2 : 1) * (shape.nodes - 1);
  return kBaseUs[a][p] + (shape.steps - inter) * intra + inter * net;
}

}  // namespace

NcclTime NcclCollectiveTime(CollectiveKind kind, int64_t bytes, int32_t ranks,
                            const NcclMachine& machine) {
  const bool modelled = kind == CollectiveKind::kAllGather ||
                        kind == CollectiveKind::kReduceScatter ||
                        kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllToAll;
  if (ranks <= 1 || !modelled) return {};
  const Shape shape = ShapeOf(kind, bytes, ranks, machine);
  NcclTime best;
  bool any = false;
  for (const NcclAlgorithm algorithm : {NcclAlgorithm::kTree, NcclAlgorithm::kRing}) {
    const bool tree = algorithm == NcclAlgorithm::kTree;
    if (tree && kind != CollectiveKind::kAllReduce) continue;
    for (const NcclProtocol protocol :
         {NcclProtocol::kLL, NcclProtocol::kLL128, NcclProtocol::kSimple}) {
      const bool off = shape.nodes > (machine.infiniband ? 1 : 2);
      if (protocol == NcclProtocol::kLL128 && off) continue;
      const double gb_per_s =
          tree ? TreeGbPerS(shape, protocol, bytes) : RingGbPerS(shape, protocol);
      const double us = LatencyUs(shape, kind, algorithm, protocol, machine.nvlink) +
                        static_cast<double>(bytes) / (1000 * gb_per_s);
      if (!any || us < best.us) best = {us, algorithm, protocol};
      any = true;
    }
  }
  return best;
}

double EstimateCollectiveUs(CollectiveKind kind, int64_t bytes, int32_t ranks,
                            const NcclMachine& machine, const CollectiveEstimator& custom) {
  if (custom) {
    const std::optional<double> us = custom(kind, bytes, ranks);
    if (us.has_value()) return *us;
  }
  return NcclCollectiveTime(kind, bytes, ranks, machine).us;
}

absl::StatusOr<std::vector<double>> AlignAcrossRanks(
    absl::Span<const std::vector<double>> measured) {
  if (measured.empty()) return absl::InvalidArgumentError("no rank has measured anything");
  for (size_t rank = 1; rank < measured.size(); ++rank) {
    if (measured[rank].size() != measured[0].size()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " has measured ",
                                                     measured[rank].size(), " collectives, rank 0 ",
                                                     measured[0].size()));
    }
  }
  std::vector<double> aligned, at(measured.size());
  for (size_t i = 0; i < measured[0].size(); ++i) {
    for (size_t rank = 0; rank < measured.size(); ++rank) at[rank] = measured[rank][i];
    const size_t middle = (at.size() - 1) / 2;
    std::nth_element(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(middle), at.end());
    aligned.push_back(at[middle]);
  }
  return aligned;
}

}  // namespace bucketd
