// The costs of one graph under one profile, in integer picoseconds, resolved once; passes and the
// simulator read nothing else. Doubles end here: each figure is rounded to the nearest picosecond
// once, by operations that IEEE 754 fixes. Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/base/index.h"
#include "passes/base/types.h"
#include "passes/cost/profile.h"
#include "passes/ir/graph.h"

namespace bucketd {

struct MeshDim {
  std::string name;
  int32_t size = 0;
  int32_t ranks_per_node = 0;  // of one group along this dimension; 0: all of them
  std::string link_class;
  friend bool operator==(const MeshDim&, const MeshDim&) = default;
};

struct Mesh {
  std::vector<MeshDim> dims;
  std::string device_type = "cuda";
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

// Costs that a captured-graph file states itself; they win over the device model.
struct StatedCosts {
  struct Link {
    double alpha_us = 0.0;
    double busbw_bytes_per_s = 0.0;
    bool measured = false;  // by a row of the profile: its scales do not apply
  };
  std::vector<double> node_us;  // one a node
  std::vector<Link> links;      // one a collective
  // One a node, or none: by a row of the profile, whose compute_scale does not apply.
  std::vector<bool> measured_nodes;
};

// How often a byte of the message crosses the bus.
double WireFactor(CollectiveKind kind, int32_t group_size);

class Costs {
 public:
  // INVALID_ARGUMENT if a figure is negative or not finite, if a placeholder, get_attr or the
  // output has a cost, or if the whole step is absurdly long; the node is named. Knows no mesh and
  // so no rows of the profile: UseMeasuredLinks (device_model.h) and UseMeasuredKernels
  // (measured_kernel.h) put those into `stated`.
  static absl::StatusOr<Costs> FromFile(const Graph& graph, const StatedCosts& stated,
                                        const CostProfile& profile);
  // Every group's mesh dimension must be in `mesh` with the group's size, else INVALID_ARGUMENT
  // naming it.
  static absl::StatusOr<Costs> FromDeviceModel(const Graph& graph, const Mesh& mesh,
                                               const CostProfile& profile);

  // The same with wires that take `times` as long for a byte. REQUIRES: 1/2 <= times <= 2.
  // O(nodes).
  Costs WithWires(const Graph& graph, double times) const;

  // Compute nodes; 0 for placeholders, views, waits, the output. A collective alone: alpha + wire.
  int64_t node_ps(NodeId n) const { return node_ps_[Index(n)]; }
  // `launches` collectives like c, `bytes` in all, in one launch: alpha + (launches - 1) * gamma +
  // f * bytes / busbw.
  int64_t CollectivePs(CollectiveId c, int64_t bytes, int64_t launches) const;
  int64_t AlphaPs(CollectiveId c) const { return alpha_ps_[Index(c)]; }
  // One copy kernel: read and write of `bytes`.
  int64_t CopyPs(int64_t bytes) const;

  int64_t host_ps_per_kernel() const { return host_ps_per_kernel_; }
  int64_t host_ps_per_collective() const { return host_ps_per_collective_; }
  // Parts per billion: coarser steps would cost the agreement with the referee.
  int64_t overlap_slowdown_ppb() const { return overlap_slowdown_ppb_; }
  int64_t comm_copy_share_ppb() const { return comm_copy_share_ppb_; }
  // "name@version", of FromFile() "name@version over the file's costs".
  absl::string_view profile_id() const { return profile_id_; }

 private:
  Costs() = default;
  static absl::StatusOr<Costs> Resolve(const Graph& graph, const StatedCosts& stated,
                                       const CostProfile& profile);
  absl::Status SetProfile(const CostProfile& profile);
  absl::Status CheckTotal(const Graph& graph) const;

  std::vector<int64_t> node_ps_;
  std::vector<int64_t> alpha_ps_;         // one a collective
  std::vector<double> wire_us_per_byte_;  // one a collective: f / busbw
  int64_t gamma_ps_ = 0, host_ps_per_kernel_ = 0, host_ps_per_collective_ = 0;
  int64_t overlap_slowdown_ppb_ = 0, comm_copy_share_ppb_ = 0;
  double hbm_bytes_per_s_ = 1.0, copy_launch_us_ = 0.0;
  std::string profile_id_;
};

}  // namespace bucketd
