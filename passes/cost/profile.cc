#include "passes/cost/profile.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/base/digest.h"
#include "passes/base/status_macros.h"
#include "passes/cost/profile_numbers.h"
#include "passes/ir/text.h"

namespace bucketd {
namespace {

// The upper bounds are far above anything real and keep every sum of picoseconds inside an int64.
constexpr ProfileNumber::Range kPositive{1e-9, 1e9}, kRate{1e3, 1e21}, kTime{0.0, 1e6},
    kShare{0.0, 10.0};

constexpr ProfileNumber kNumbers[] = {
    {"compute_scale", &CostProfile::compute_scale, nullptr, kPositive},
    {"alpha_scale", &CostProfile::alpha_scale, nullptr, kTime},
    {"busbw_scale", &CostProfile::busbw_scale, nullptr, kPositive},
    {"gamma_us", &CostProfile::gamma_us, nullptr, kTime},
    {"hbm_bytes_per_s", &CostProfile::hbm_bytes_per_s, nullptr, kRate},
    {"copy_launch_us", &CostProfile::copy_launch_us, nullptr, kTime},
    {"overlap_slowdown", &CostProfile::overlap_slowdown, nullptr, kShare},
    {"host_us_per_kernel", &CostProfile::host_us_per_kernel, nullptr, kTime},
    {"host_us_per_collective", &CostProfile::host_us_per_collective, nullptr, kTime},
    {"comm_copy_share", &CostProfile::comm_copy_share, nullptr, kShare},
    {"peak_flops_half", nullptr, &DeviceModel::peak_flops_half, kRate},
    {"peak_flops_single", nullptr, &DeviceModel::peak_flops_single, kRate},
    {"memory_bytes_per_s", nullptr, &DeviceModel::memory_bytes_per_s, kRate},
    {"launch_us", nullptr, &DeviceModel::launch_us, kTime},
    {"alpha_us", nullptr, &DeviceModel::alpha_us, kTime},
    {"hop_us", nullptr, &DeviceModel::hop_us, kTime},
    {"inter_hop_us", nullptr, &DeviceModel::inter_hop_us, kTime},
    {"intra_node_bytes_per_s", nullptr, &DeviceModel::intra_node_bytes_per_s, kRate},
    {"inter_node_bytes_per_s", nullptr, &DeviceModel::inter_node_bytes_per_s, kRate},
};

absl::Status Check(const ProfileNumber& number, double value) {
  const auto& [low, high] = number.range;
  if (std::isfinite(value) && value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("cost profile: %s is %g, expected a number from %g to %g", number.FullName(),
                      value, low, high));
}

absl::Status CheckText(absl::string_view field, absl::string_view text, size_t bad) {
  if (bad == absl::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cost profile: ", field, ": \"", Printable(text),
                   "\" is not UTF-8 without control characters (byte ", bad, ")"));
}

std::string HashOf(const std::vector<MeasuredLink>& links) {
  std::string rows;
  for (const MeasuredLink& link : links) {
    // The name of a link has no spaces and no newline.
    absl::StrAppendFormat(&rows, "%d %d %d %d %s %.17g %.17g\n", static_cast<int>(link.of.kind),
                          static_cast<int>(link.of.dtype), link.of.group_size,
                          link.of.ranks_per_node, link.of.link_class, link.alpha_us,
                          link.busbw_bytes_per_s);
  }
  return ToHex(Sha256(rows));
}

std::string HashOf(const std::vector<MeasuredKernel>& kernels) {
  std::string rows;
  for (const MeasuredKernel& kernel : kernels) {
    absl::StrAppendFormat(&rows, "%s %.17g\n", kernel.signature, kernel.us);
  }
  return ToHex(Sha256(rows));
}

}  // namespace

absl::Span<const ProfileNumber> ProfileNumbers() { return kNumbers; }

absl::Status CostProfile::Validate() const {
  RETURN_IF_ERROR(CheckText("name", name, FindUnprintable(name)));
  RETURN_IF_ERROR(CheckText("about", about, FindControl(about)));
  if (version < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cost profile: version is ", version, ", expected 1 or more"));
  }
  for (const ProfileNumber& number : kNumbers) {
    RETURN_IF_ERROR(Check(number, number.In(*this)));
  }
  absl::Status measured = ValidateLinks(links);
  if (measured.ok()) measured = ValidateKernels(kernels);
  if (measured.ok()) return measured;
  return absl::InvalidArgumentError(absl::StrCat("cost profile: ", measured.message()));
}

std::string CostProfile::Fingerprint() const {
  std::string text;
  for (const ProfileNumber& number : kNumbers) {
    absl::StrAppendFormat(&text, "%.17g;", number.In(*this));
  }
  if (!links.empty()) absl::StrAppend(&text, "links=", HashOf(links), ";");
  if (!kernels.empty()) absl::StrAppend(&text, "kernels=", HashOf(kernels), ";");
  return text;
}

}  // namespace bucketd
