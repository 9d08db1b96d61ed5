#include "passes/cost/device_model.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/ir/ops.h"

namespace bucketd {
namespace {

// Log base 2 of x >= 1 by repeated squaring: std::log2 may differ between C libraries in its last
// bit, and a plan may not.
double Log2(double x) {
  double result = 0.0;
  while (x >= 2.0) {
    x /= 2.0;
    result += 1.0;
  }
  double bit = 0.5;
  for (int i = 0; i < 48 && x > 1.0; ++i, bit /= 2.0) {
    x *= x;
    if (x >= 2.0) {
      x /= 2.0;
      result += bit;
    }
  }
  return result;
}

StatedCosts::Link ModelLink(const DeviceModel& device, int32_t ranks, int32_t ranks_per_node) {
  const int32_t in_node = RanksPerNode(ranks, ranks_per_node);
  const int32_t nodes = (ranks + in_node - 1) / in_node;
  StatedCosts::Link link;
  link.alpha_us =
      device.alpha_us + device.hop_us * (in_node - 1) + device.inter_hop_us * Log2(nodes);
  link.busbw_bytes_per_s = device.intra_node_bytes_per_s;
  if (nodes > 1) {
    link.busbw_bytes_per_s =
        std::min(link.busbw_bytes_per_s, device.inter_node_bytes_per_s * in_node);
  }
  return link;
}

using DimsByName = absl::flat_hash_map<absl::string_view, const MeshDim*>;

DimsByName ByName(const Mesh& mesh) {
  DimsByName dims;
  for (const MeshDim& dim : mesh.dims) dims.emplace(dim.name, &dim);
  return dims;
}

absl::StatusOr<StatedCosts::Link> GroupLink(const Group& group, const Mesh& mesh,
                                            const DimsByName& dims, const DeviceModel& device) {
  if (const auto at = dims.find(group.mesh_dim); at != dims.end()) {
    const MeshDim& dim = *at->second;
    if (dim.size != group.size || dim.ranks_per_node < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "mesh: dimension ", dim.name, " has ", dim.size, " ranks, ", dim.ranks_per_node,
          " a node, but the graph's group over it has ", group.size));
    }
    return ModelLink(device, group.size, dim.ranks_per_node);
  }
  std::vector<std::string> known;
  for (const MeshDim& dim : mesh.dims) {
    known.push_back(absl::StrCat(dim.name, " (", dim.size, ")"));
  }
  return absl::InvalidArgumentError(absl::StrCat("mesh: has no dimension ", group.mesh_dim,
                                                 ", which the graph uses with ", group.size,
                                                 " ranks; it has: ", absl::StrJoin(known, ", ")));
}

bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// A fused attention kernel skips what lies above the diagonal, and counted FLOPs do not know.
// Whether attention is causal is an argument, which graphs do not hold; in training it nearly
// always is.
double SharePerformed(const Graph& graph, NodeId n) {
  return absl::StartsWith(BaseName(graph.op(n)), "_scaled_dot_product_") ? 0.5 : 1.0;
}

double KernelUs(const Graph& graph, NodeId n, const DeviceModel& device) {
  const double flops = static_cast<double>(graph.flops(n)) * SharePerformed(graph, n);
  const double bytes = static_cast<double>(graph.memory_bytes(n));
  if (graph.kind(n) != NodeKind::kCall || graph.is_view(n) || (flops <= 0.0 && bytes <= 0.0)) {
    return 0.0;
  }
  const absl::Span<const TensorType> outputs = graph.outputs(n);
  const double peak = !outputs.empty() && IsHalf(outputs.front().dtype) ? device.peak_flops_half
                                                                        : device.peak_flops_single;
  return std::max(flops / peak, bytes / device.memory_bytes_per_s) * 1e6 + device.launch_us;
}

}  // namespace

absl::StatusOr<StatedCosts> ModelCosts(const Graph& graph, const Mesh& mesh,
                                       const DeviceModel& device) {
  const DimsByName dims = ByName(mesh);
  std::vector<StatedCosts::Link> links;
  for (const Group& group : graph.groups()) {
    ASSIGN_OR_RETURN(const StatedCosts::Link link, GroupLink(group, mesh, dims, device));
    links.push_back(link);
  }
  StatedCosts stated;
  for (const Collective& c : graph.collectives()) {
    stated.links.push_back(links[Index(c.group)]);
    stated.links.back().alpha_us *= TraitsOf(c.kind).rounds;
  }
  stated.node_us.reserve(Index(graph.size()));
  for (NodeId n = 0; n < graph.size(); ++n) stated.node_us.push_back(KernelUs(graph, n, device));
  return stated;
}

StatedCosts::Link LinkUnder(const CostProfile& profile, const LinkClass& of) {
  if (const MeasuredLink* row = FindLink(profile.links, of); row != nullptr) {
    return {row->alpha_us, row->busbw_bytes_per_s, true};
  }
  StatedCosts::Link link = ModelLink(profile.device, of.group_size, of.ranks_per_node);
  link.alpha_us *= TraitsOf(of.kind).rounds * profile.alpha_scale;
  link.busbw_bytes_per_s *= profile.busbw_scale;
  return link;
}

void UseMeasuredLinks(const Graph& graph, const Mesh& mesh, const CostProfile& profile,
                      StatedCosts& stated) {
  if (profile.links.empty()) return;
  const DimsByName dims = ByName(mesh);
  for (size_t c = 0; c < graph.collectives().size(); ++c) {
    const Collective& collective = graph.collectives()[c];
    const Group& group = graph.group(collective);
    const auto at = dims.find(group.mesh_dim);
    if (at == dims.end()) continue;
    const MeshDim& dim = *at->second;
    const int32_t in_node = RanksPerNode(group.size, dim.ranks_per_node);
    const MeasuredLink* row = FindLink(
        profile.links, {collective.kind, dim.link_class, group.size, in_node, collective.dtype});
    if (row != nullptr) stated.links[c] = {row->alpha_us, row->busbw_bytes_per_s, true};
  }
}

absl::StatusOr<Costs> Costs::FromDeviceModel(const Graph& graph, const Mesh& mesh,
                                             const CostProfile& profile) {
  RETURN_IF_ERROR(profile.Validate());
  ASSIGN_OR_RETURN(StatedCosts stated, ModelCosts(graph, mesh, profile.device));
  UseMeasuredLinks(graph, mesh, profile, stated);
  UseMeasuredKernels(graph, profile, stated);
  return Resolve(graph, stated, profile);
}

}  // namespace bucketd
