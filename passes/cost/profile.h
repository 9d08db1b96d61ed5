// A cost profile: the numbers that turn FLOPs, bytes and messages into picoseconds. Field for field
// bucketd.v1.CostProfile, and the JSON schema of --profile files (passes/io/profile_json.h): the
// nine numbers of the referee's profiles and comm_copy_share, then the device model, then what was
// measured.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "passes/cost/measured_kernel.h"
#include "passes/cost/measured_link.h"

namespace bucketd {

// Default: H100 SXM.
struct DeviceModel {
  double peak_flops_half = 989e12 * 0.7;
  double peak_flops_single = 494.5e12 * 0.7;
  double memory_bytes_per_s = 3.35e12 * 0.8;
  double launch_us = 4.0;
  double alpha_us = 10.0;
  double hop_us = 2.0;
  double inter_hop_us = 6.0;
  double intra_node_bytes_per_s = 450e9 * 0.8;
  double inter_node_bytes_per_s = 50e9 * 0.8;
  friend bool operator==(const DeviceModel&, const DeviceModel&) = default;
};

struct CostProfile {
  std::string name;
  int32_t version = 1;
  std::string about;
  double compute_scale = 1.0;
  double alpha_scale = 1.0;
  double busbw_scale = 1.0;
  double gamma_us = 2.0;
  double hbm_bytes_per_s = 2.68e12;
  double copy_launch_us = 4.0;
  double overlap_slowdown = 0.08;
  double host_us_per_kernel = 0.0;
  double host_us_per_collective = 0.0;
  double comm_copy_share = 0.5;
  DeviceModel device;
  // Ascending by class. A row stands in the place of what the device model, or a captured-graph
  // file, says of such collectives; alpha_scale and busbw_scale do not apply to it.
  std::vector<MeasuredLink> links;
  // Ascending by signature. A row stands in the place of what the device model, or a captured-graph
  // file, says of such kernels; compute_scale does not apply to it.
  std::vector<MeasuredKernel> kernels;

  // Finite; rates and scales positive, the others not negative; the name and what is said about it
  // UTF-8 without control characters, but for lines of the latter. Names the field.
  absl::Status Validate() const;
  // Of every number, in field order: equal ids give equal costs. Measured rows are in it by a hash.
  std::string Fingerprint() const;
};

// One that does not change any more, for many plan keys: fingerprints cost as much as there are
// rows.
struct KeyedProfile final : CostProfile {
  explicit KeyedProfile(CostProfile profile)
      : CostProfile(std::move(profile)), fingerprint(Fingerprint()) {}
  const std::string fingerprint;
};

}  // namespace bucketd
