// What PyTorch 2.13 takes a collective to last where it neither measures nor simulates: a latency
// and a bandwidth for each algorithm and protocol of NCCL, the fastest of which counts. For
// comparison with PyTorch's own plans; plans of ours go by Costs. The figures are those of NCCL's
// tuning code (BSD-3-Clause) as PyTorch carries them; NOTICE names both.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/base/types.h"

namespace bucketd {

enum class GpuArchitecture : uint8_t { kVolta = 0, kAmpere, kHopper, kBlackwell };
enum class NcclAlgorithm : uint8_t { kTree = 0, kRing };
enum class NcclProtocol : uint8_t { kLL = 0, kLL128, kSimple };

struct NcclMachine {
  GpuArchitecture architecture = GpuArchitecture::kAmpere;
  int32_t gpus_per_node = 8;
  bool nvlink = true;      // else PCIe inside a node
  bool infiniband = true;  // between nodes
  // GB/s of a ring inside a node and between nodes; 0: the architecture's.
  double intra_node_gb_per_s = 0.0;
  double inter_node_gb_per_s = 0.0;
};

struct NcclTime {
  double us = 0.0;
  NcclAlgorithm algorithm = NcclAlgorithm::kRing;
  NcclProtocol protocol = NcclProtocol::kLL;
};

// Of one message of `bytes` over `ranks` ranks. 0 for one rank and for a kind that is not modelled
// (broadcast). A group is known by its size alone, as in PyTorch: it fills nodes one after the
// other. `bytes` 0: the latency. Ties: tree before ring, LL before LL128 before Simple.
// REQUIRES: bytes >= 0, gpus_per_node >= 1.
NcclTime NcclCollectiveTime(CollectiveKind kind, int64_t bytes, int32_t ranks,
                            const NcclMachine& machine);

// A caller's own estimate comes first; where it has none, the model above.
using CollectiveEstimator =
    std::function<std::optional<double>(CollectiveKind kind, int64_t bytes, int32_t ranks)>;
double EstimateCollectiveUs(CollectiveKind kind, int64_t bytes, int32_t ranks,
                            const NcclMachine& machine, const CollectiveEstimator& custom);

// One vector of measurements a rank, all equally long: for each place the median over ranks, the
// lower of the middle two where their number is even, so that every rank decides alike.
// INVALID_ARGUMENT: no rank, or lengths differ.
absl::StatusOr<std::vector<double>> AlignAcrossRanks(
    absl::Span<const std::vector<double>> measured);

}  // namespace bucketd
