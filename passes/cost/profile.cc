#include "passes/cost/profile.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

#include "passes/base/digest.h"
#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

// Which values a field may take. The upper bounds are far above anything real and keep every sum of
// picoseconds inside an int64.
enum class Range { kPositive, kRate, kTime, kShare };

struct Field {
  absl::string_view name;
  double value;
  Range range;
};

std::array<Field, 19> Fields(const CostProfile& p) {
  const DeviceModel& d = p.device;
  return {{{"compute_scale", p.compute_scale, Range::kPositive},
           {"alpha_scale", p.alpha_scale, Range::kTime},
           {"busbw_scale", p.busbw_scale, Range::kPositive},
           {"gamma_us", p.gamma_us, Range::kTime},
           {"hbm_bytes_per_s", p.hbm_bytes_per_s, Range::kRate},
           {"copy_launch_us", p.copy_launch_us, Range::kTime},
           {"overlap_slowdown", p.overlap_slowdown, Range::kShare},
           {"host_us_per_kernel", p.host_us_per_kernel, Range::kTime},
           {"host_us_per_collective", p.host_us_per_collective, Range::kTime},
           {"comm_copy_share", p.comm_copy_share, Range::kShare},
           {"device.peak_flops_half", d.peak_flops_half, Range::kRate},
           {"device.peak_flops_single", d.peak_flops_single, Range::kRate},
           {"device.memory_bytes_per_s", d.memory_bytes_per_s, Range::kRate},
           {"device.launch_us", d.launch_us, Range::kTime},
           {"device.alpha_us", d.alpha_us, Range::kTime},
           {"device.hop_us", d.hop_us, Range::kTime},
           {"device.inter_hop_us", d.inter_hop_us, Range::kTime},
           {"device.intra_node_bytes_per_s", d.intra_node_bytes_per_s, Range::kRate},
           {"device.inter_node_bytes_per_s", d.inter_node_bytes_per_s, Range::kRate}}};
}

absl::Status Check(const Field& field) {
  double low = 0.0;
  double high = 0.0;
  switch (field.range) {
    case Range::kPositive:
      low = 1e-9, high = 1e9;
      break;
    case Range::kRate:
      low = 1e3, high = 1e21;
      break;
    case Range::kTime:
      low = 0.0, high = 1e6;
      break;
    case Range::kShare:
      low = 0.0, high = 10.0;
      break;
  }
  if (std::isfinite(field.value) && field.value >= low && field.value <= high) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("cost profile: %s is %g, expected a number from %g to %g", field.name,
                      field.value, low, high));
}

}  // namespace

absl::Status CostProfile::Validate() const {
  if (version < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cost profile: version is ", version, ", expected 1 or more"));
  }
  for (const Field& field : Fields(*this)) RETURN_IF_ERROR(Check(field));
  const absl::Status measured = ValidateLinks(links);
  if (measured.ok()) return measured;
  return absl::InvalidArgumentError(absl::StrCat("cost profile: ", measured.message()));
}

std::string CostProfile::Fingerprint() const {
  std::string text;
  for (const Field& field : Fields(*this)) absl::StrAppendFormat(&text, "%.17g;", field.value);
  if (links.empty()) return text;
  std::string rows;
  for (const MeasuredLink& link : links) {
    // The name of a link has no spaces and no newline.
    absl::StrAppendFormat(&rows, "%d %d %d %d %s %.17g %.17g\n", static_cast<int>(link.of.kind),
                          static_cast<int>(link.of.dtype), link.of.group_size,
                          link.of.ranks_per_node, link.of.link_class, link.alpha_us,
                          link.busbw_bytes_per_s);
  }
  absl::StrAppend(&text, "links=", ToHex(Sha256(rows)), ";");
  return text;
}

}  // namespace bucketd
