#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "proto/costs.pb.h"

namespace bucketd {
namespace {

constexpr uint32_t kFormatVersion = 1;

// Numbers that no class can have become ones that validation refuses.
int32_t ToInt32(uint32_t value) {
  return static_cast<int32_t>(
      std::min(value, static_cast<uint32_t>(std::numeric_limits<int32_t>::max())));
}

// MeasuredLink and CollectiveSample name their class alike.
template <typename Message>
LinkClass ClassFromProto(const Message& message) {
  LinkClass of;
  if (v1::CollectiveKind_IsValid(message.kind())) {
    of.kind = static_cast<CollectiveKind>(message.kind());
  }
  if (v1::DType_IsValid(message.dtype())) of.dtype = static_cast<DType>(message.dtype());
  of.link_class = message.link_class();
  of.group_size = ToInt32(message.group_size());
  of.ranks_per_node = RanksPerNode(of.group_size, ToInt32(message.ranks_per_node()));
  return of;
}

template <typename Message>
void ClassToProto(const LinkClass& of, Message& message) {
  message.set_kind(static_cast<v1::CollectiveKind>(of.kind));
  message.set_dtype(static_cast<v1::DType>(of.dtype));
  message.set_link_class(of.link_class);
  message.set_group_size(static_cast<uint32_t>(of.group_size));
  message.set_ranks_per_node(static_cast<uint32_t>(of.ranks_per_node));
}

MeasuredLink LinkFromProto(const v1::MeasuredLink& message) {
  return {ClassFromProto(message),    message.alpha_us(),           message.busbw_bytes_per_s(),
          ToInt32(message.samples()), ToInt32(message.reporters()), message.error()};
}

void LinkToProto(const MeasuredLink& link, v1::MeasuredLink& message) {
  ClassToProto(link.of, message);
  message.set_alpha_us(link.alpha_us);
  message.set_busbw_bytes_per_s(link.busbw_bytes_per_s);
  message.set_samples(static_cast<uint32_t>(link.samples));
  message.set_reporters(static_cast<uint32_t>(link.reporters));
  message.set_error(link.error);
}

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
  if (message.links_size() > static_cast<int>(kMaxMeasuredLinks)) {
    return absl::InvalidArgumentError(absl::StrCat("cost profile: links: ", message.links_size(),
                                                   " rows, expected at most ", kMaxMeasuredLinks));
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
  for (const v1::MeasuredLink& link : message.links()) {
    profile.links.push_back(LinkFromProto(link));
  }
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
  for (const MeasuredLink& link : profile.links) LinkToProto(link, *message.add_links());
}

absl::StatusOr<CollectiveSample> SampleFromProto(const v1::CollectiveSample& message) {
  CollectiveSample sample;
  sample.of = ClassFromProto(message);
  sample.mesh_dim = message.mesh_dim();
  sample.launches = ToInt32(std::max(message.launches(), 1U));
  sample.packed = message.mode() == v1::BUCKET_MODE_PACKED;
  sample.bytes = message.bytes();
  sample.picoseconds = message.picoseconds();
  RETURN_IF_ERROR(Validate(sample));
  if (message.mode() == v1::BUCKET_MODE_GROUPED && sample.launches == 1) {
    return absl::InvalidArgumentError("mode is grouped, but launches is not above 1");
  }
  return sample;
}

void SampleToProto(const CollectiveSample& sample, v1::CollectiveSample& message) {
  ClassToProto(sample.of, message);
  message.set_mesh_dim(sample.mesh_dim);
  message.set_launches(static_cast<uint32_t>(sample.launches));
  if (sample.packed) message.set_mode(v1::BUCKET_MODE_PACKED);
  if (sample.launches > 1) message.set_mode(v1::BUCKET_MODE_GROUPED);
  message.set_bytes(sample.bytes);
  message.set_picoseconds(sample.picoseconds);
}

}  // namespace bucketd
