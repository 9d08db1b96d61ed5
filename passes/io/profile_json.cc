#include "passes/io/profile_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"
#include "passes/cost/profile_numbers.h"
#include "passes/io/cost_json.h"
#include "passes/io/json_fields.h"

namespace bucketd {
namespace {

using internal::Quoted;
using nlohmann::json;

constexpr int64_t kMaxProfileBytes = 2 << 20;

// The referee's profiles have these, and none has less.
bool IsReferees(const ProfileNumber& number) {
  return !number.is_device() && number.own != &CostProfile::comm_copy_share;
}

// The numbers of one object: the profile's own or the device's.
absl::Status ReadNumbers(const json& object, bool device, std::vector<absl::string_view> known,
                         CostProfile& profile) {
  for (const ProfileNumber& number : ProfileNumbers()) {
    if (number.is_device() == device) known.emplace_back(number.name);
  }
  RETURN_IF_ERROR(internal::CheckObject(object, device ? "device" : "fields", known));
  for (const ProfileNumber& number : ProfileNumbers()) {
    if (number.is_device() != device) continue;
    const json* value = internal::Find(object, number.name);
    if (value == nullptr && IsReferees(number)) {
      return absl::InvalidArgumentError(absl::StrCat(number.name, ": missing, expected a number"));
    }
    if (value == nullptr) continue;
    if (!value->is_number()) return internal::WrongType(number.FullName(), "a number", *value);
    number.In(profile) = value->get<double>();
  }
  return absl::OkStatus();
}

absl::Status ReadExtras(const json& object, CostProfile& profile) {
  const internal::Members members(object, "");
  int32_t format = 1;
  RETURN_IF_ERROR(members.Integer("format_version", false, format, 1, 1));
  RETURN_IF_ERROR(members.Text("name", false, profile.name));
  RETURN_IF_ERROR(members.Integer("version", false, profile.version, 1, 1'000'000'000));
  RETURN_IF_ERROR(members.Text("about", false, profile.about));
  if (const json* device = members.Find("device"); device != nullptr) {
    RETURN_IF_ERROR(ReadNumbers(*device, true, {}, profile));
  }
  if (const json* links = members.Find("links"); links != nullptr) {
    ASSIGN_OR_RETURN(profile.links, internal::LinksFromJson(*links));
  }
  if (const json* kernels = members.Find("kernels"); kernels != nullptr) {
    ASSIGN_OR_RETURN(profile.kernels, internal::KernelsFromJson(*kernels));
  }
  return absl::OkStatus();
}

absl::StatusOr<CostProfile> Read(const json& object, std::string name) {
  CostProfile profile;
  profile.name = std::move(name);
  RETURN_IF_ERROR(ReadNumbers(
      object, false, {"device", "links", "kernels", "format_version", "name", "version", "about"},
      profile));
  RETURN_IF_ERROR(ReadExtras(object, profile));
  RETURN_IF_ERROR(profile.Validate());
  return profile;
}

std::vector<CostProfile> MakeBuiltIns() {
  std::vector<CostProfile> profiles(5);
  profiles[0].name = "h100_nvlink";
  profiles[0].about =
      "8 H100 on NVLink, nodes on 400 Gb/s NICs, kernels launched from a captured CUDA graph";
  profiles[1].name = "h100_launch";
  profiles[1].about = "the same machines, every kernel and collective launched by the host";
  profiles[1].host_us_per_kernel = 6.0;
  profiles[1].host_us_per_collective = 30.0;
  profiles[2].name = "slow_network";
  profiles[2].about = "one GPU a node on 100 Gb/s Ethernet: latency and bandwidth dominate";
  profiles[2].alpha_scale = 5.0;
  profiles[2].busbw_scale = 0.03;
  profiles[2].gamma_us = 20.0;
  profiles[2].overlap_slowdown = 0.03;
  profiles[3].name = "small_batch";
  profiles[3].about = "many ranks, little compute a rank: collectives are latency-bound";
  profiles[3].compute_scale = 0.15;
  profiles[3].alpha_scale = 6.0;
  profiles[3].busbw_scale = 0.6;
  profiles[3].gamma_us = 4.0;
  CostProfile& cpu = profiles[4];
  cpu.name = "cpu_loopback";
  cpu.about =
      "4 processes on one CPU that talk through gloo over loopback; rough figures by order of "
      "magnitude, of two cores";
  // Of 4 processes on two cores: a collective of 1 to 256 KiB takes 3 to 8 ms. gloo runs the
  // members of a grouped reduce-scatter one after the other, 5 ms each; of a grouped all-gather one
  // more takes 0.2 ms, but there packing is as fast.
  cpu.gamma_us = 3000.0;
  cpu.hbm_bytes_per_s = 8e9;
  cpu.copy_launch_us = 10.0;
  // What a collective moves is moved by the core that its process computes on.
  cpu.overlap_slowdown = 1.0;
  // gloo's launches are work of the processors that compute, whatever group they are for.
  cpu.host_us_per_collective = 1500.0;
  // Products of bf16 on processors with instructions for it, four times as fast as of f32. Where a
  // processor has none they take longer than said, which hides more of what is launched as early.
  cpu.device = {.peak_flops_half = 2e11,
                .peak_flops_single = 5e10,
                .memory_bytes_per_s = 8e9,
                .launch_us = 10.0,
                .alpha_us = 500.0,
                .hop_us = 1000.0,
                .inter_hop_us = 1000.0,
                .intra_node_bytes_per_s = 1e9,
                .inter_node_bytes_per_s = 1e9};
  return profiles;
}

std::string Stem(absl::string_view path) {
  path.remove_prefix(std::min(path.size(), path.rfind('/') + 1));
  return std::string(path.substr(0, path.find('.')));
}

}  // namespace

absl::StatusOr<CostProfile> ProfileFromJson(absl::string_view text, std::string name) {
  const std::string where = absl::StrCat("cost profile ", name);
  ASSIGN_OR_RETURN(const json object, internal::ParseObject(text, where));
  absl::StatusOr<CostProfile> profile = Read(object, std::move(name));
  if (profile.ok()) return profile;
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", profile.status().message()));
}

std::string ProfileToJson(const CostProfile& profile) {
  std::string text, device;
  for (const ProfileNumber& number : ProfileNumbers()) {
    std::string& object = number.is_device() ? device : text;
    const char* apart = object.empty()                             ? "{"
                        : IsReferees(number) || number.is_device() ? ", "
                                                                   : ",\n ";
    absl::StrAppend(&object, apart, Quoted(number.name), ": ", json(number.In(profile)).dump());
  }
  return absl::StrCat(text, ",\n \"device\": ", device, "},\n", internal::LinksJson(profile.links),
                      internal::KernelsJson(profile.kernels),
                      " \"format_version\": 1, \"name\": ", Quoted(profile.name),
                      ", \"version\": ", profile.version, ", \"about\": ", Quoted(profile.about),
                      "}\n");
}

absl::Span<const CostProfile> BuiltInProfiles() {
  static const std::vector<CostProfile>* const kProfiles =
      new std::vector<CostProfile>(MakeBuiltIns());
  return *kProfiles;
}

absl::StatusOr<CostProfile> FindProfile(const std::string& name_or_file) {
  std::vector<absl::string_view> names;
  for (const CostProfile& profile : BuiltInProfiles()) {
    if (profile.name == name_or_file) return profile;
    names.push_back(profile.name);
  }
  const absl::StatusOr<std::string> text = ReadFile(name_or_file, kMaxProfileBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat("cost profile ", Quoted(name_or_file),
                     " is neither known nor a file; known: ", absl::StrJoin(names, ", ")));
  }
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("cost profile ", text.status().message()));
  }
  return ProfileFromJson(*text, Stem(name_or_file));
}

}  // namespace bucketd
