#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "proto/costs.pb.h"

namespace bucketd {
namespace {

constexpr uint32_t kFormatVersion = 1;

DeviceModel DeviceFromProto(const v1::DeviceModel& message) {
  DeviceModel device;
  device.peak_flops_half = message.peak_flops_half();
  device.peak_flops_single = message.peak_flops_single();
  device.memory_bytes_per_s = message.memory_bytes_per_s();
  device.launch_us = message.launch_us();
  device.alpha_us = message.alpha_us();
  device.hop_us = message.hop_us();
  device.inter_hop_us = message.inter_hop_us();
  device.intra_node_bytes_per_s = message.intra_node_bytes_per_s();
  device.inter_node_bytes_per_s = message.inter_node_bytes_per_s();
  return device;
}

void DeviceToProto(const DeviceModel& device, v1::DeviceModel& message) {
  message.set_peak_flops_half(device.peak_flops_half);
  message.set_peak_flops_single(device.peak_flops_single);
  message.set_memory_bytes_per_s(device.memory_bytes_per_s);
  message.set_launch_us(device.launch_us);
  message.set_alpha_us(device.alpha_us);
  message.set_hop_us(device.hop_us);
  message.set_inter_hop_us(device.inter_hop_us);
  message.set_intra_node_bytes_per_s(device.intra_node_bytes_per_s);
  message.set_inter_node_bytes_per_s(device.inter_node_bytes_per_s);
}

}  // namespace

absl::StatusOr<CostProfile> ProfileFromProto(const v1::CostProfile& message) {
  if (message.format_version() != kFormatVersion) {
    return absl::InvalidArgumentError(absl::StrCat("cost profile: format_version is ",
                                                   message.format_version(), ", expected ",
                                                   kFormatVersion));
  }
  if (message.samples_size() > 0) {
    // Planning without them would be planning for another machine.
    return absl::InvalidArgumentError(absl::StrCat("cost profile ", message.name(), ": has ",
                                                   message.samples_size(),
                                                   " samples; this version reads none"));
  }
  if (message.version() > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("cost profile: version is ", message.version(), ", expected less than 2^31"));
  }
  CostProfile profile;
  profile.name = message.name();
  profile.version = static_cast<int32_t>(message.version());
  profile.about = message.about();
  profile.compute_scale = message.compute_scale();
  profile.alpha_scale = message.alpha_scale();
  profile.busbw_scale = message.busbw_scale();
  profile.gamma_us = message.gamma_us();
  profile.hbm_bytes_per_s = message.hbm_bytes_per_s();
  profile.copy_launch_us = message.copy_launch_us();
  profile.overlap_slowdown = message.overlap_slowdown();
  profile.host_us_per_kernel = message.host_us_per_kernel();
  profile.host_us_per_collective = message.host_us_per_collective();
  if (message.has_comm_copy_share()) profile.comm_copy_share = message.comm_copy_share();
  if (message.has_device()) profile.device = DeviceFromProto(message.device());
  RETURN_IF_ERROR(profile.Validate());
  return profile;
}

void ProfileToProto(const CostProfile& profile, v1::CostProfile& message) {
  message.set_format_version(kFormatVersion);
  message.set_name(profile.name);
  message.set_version(static_cast<uint32_t>(profile.version));
  message.set_about(profile.about);
  message.set_compute_scale(profile.compute_scale);
  message.set_alpha_scale(profile.alpha_scale);
  message.set_busbw_scale(profile.busbw_scale);
  message.set_gamma_us(profile.gamma_us);
  message.set_hbm_bytes_per_s(profile.hbm_bytes_per_s);
  message.set_copy_launch_us(profile.copy_launch_us);
  message.set_overlap_slowdown(profile.overlap_slowdown);
  message.set_host_us_per_kernel(profile.host_us_per_kernel);
  message.set_host_us_per_collective(profile.host_us_per_collective);
  message.set_comm_copy_share(profile.comm_copy_share);
  DeviceToProto(profile.device, *message.mutable_device());
}

}  // namespace bucketd
