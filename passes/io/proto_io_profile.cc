#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

#include "passes/base/status_macros.h"
#include "passes/cost/profile_numbers.h"
#include "passes/io/proto_io.h"
#include "passes/io/wire.h"
#include "proto/costs.pb.h"

namespace bucketd {
namespace {

using google::protobuf::Message;

constexpr uint32_t kProfileFormatVersion = 1;

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

// Calls `visit` with every number, the message that it is a field of and the field.
template <typename AnyMessage, typename Visit>
void ForNumbers(AnyMessage& message, AnyMessage& device, const Visit& visit) {
  for (const ProfileNumber& number : ProfileNumbers()) {
    AnyMessage& of = number.is_device() ? device : message;
    visit(number, of, of.GetDescriptor()->FindFieldByName(number.name));
  }
}

}  // namespace

absl::StatusOr<CostProfile> ProfileFromProto(const v1::CostProfile& message) {
  if (message.format_version() != kProfileFormatVersion) {
    return absl::InvalidArgumentError(absl::StrCat("cost profile: format_version is ",
                                                   message.format_version(), ", expected ",
                                                   kProfileFormatVersion));
  }
  if (message.links_size() > static_cast<int>(kMaxMeasuredLinks)) {
    return absl::InvalidArgumentError(absl::StrCat("cost profile: links: ", message.links_size(),
                                                   " rows, expected at most ", kMaxMeasuredLinks));
  }
  if (message.kernels_size() > static_cast<int>(kMaxMeasuredKernels)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cost profile: kernels: ", message.kernels_size(), " rows, expected at most ",
                     kMaxMeasuredKernels));
  }
  if (message.version() > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("cost profile: version is ", message.version(), ", expected less than 2^31"));
  }
  CostProfile profile;
  profile.name = message.name();
  profile.version = static_cast<int32_t>(message.version());
  profile.about = message.about();
  ForNumbers<const Message>(
      message, message.device(), [&](const auto& number, auto& of, auto* field) {
        // A device that is not there has the defaults; so has what is optional.
        const bool said = field->has_presence() ? of.GetReflection()->HasField(of, field)
                                                : !number.is_device() || message.has_device();
        if (said) number.In(profile) = of.GetReflection()->GetDouble(of, field);
      });
  for (const v1::MeasuredLink& link : message.links()) {
    profile.links.push_back(LinkFromProto(link));
  }
  for (const v1::MeasuredKernel& kernel : message.kernels()) {
    profile.kernels.push_back(
        {kernel.signature(), kernel.op(), kernel.us(), ToInt32(kernel.samples())});
  }
  RETURN_IF_ERROR(profile.Validate());
  return profile;
}

void ProfileToProto(const CostProfile& profile, v1::CostProfile& message) {
  message.set_format_version(kProfileFormatVersion);
  message.set_name(profile.name);
  message.set_version(static_cast<uint32_t>(profile.version));
  message.set_about(profile.about);
  ForNumbers<Message>(message, *message.mutable_device(),
                      [&](const auto& number, auto& of, auto* field) {
                        of.GetReflection()->SetDouble(&of, field, number.In(profile));
                      });
  for (const MeasuredLink& link : profile.links) LinkToProto(link, *message.add_links());
  for (const MeasuredKernel& kernel : profile.kernels) {
    v1::MeasuredKernel& row = *message.add_kernels();
    row.set_signature(kernel.signature);
    row.set_op(kernel.op);
    row.set_us(kernel.us);
    row.set_samples(static_cast<uint32_t>(kernel.samples));
  }
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
