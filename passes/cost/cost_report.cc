#include "passes/cost/cost_report.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr int64_t kMaxBytes = int64_t{1} << 40;
constexpr int64_t kMinPs = 1'000;
constexpr int64_t kMaxPs = 1'000'000'000'000'000;
constexpr int64_t kMaxLaunches = 1 << 20;

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", expected ", low, " to ", high));
}

absl::Status CheckText(absl::string_view name, absl::string_view text) {
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
  if (text.size() <= kMaxNameBytes && printable) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected up to ", kMaxNameBytes, " printable ASCII characters"));
}

}  // namespace

absl::Status Validate(const CollectiveSample& sample) {
  RETURN_IF_ERROR(Validate(sample.of));
  RETURN_IF_ERROR(CheckText("mesh_dim", sample.mesh_dim));
  RETURN_IF_ERROR(CheckRange("bytes", sample.bytes, 1, kMaxBytes));
  RETURN_IF_ERROR(CheckRange("picoseconds", sample.picoseconds, kMinPs, kMaxPs));
  RETURN_IF_ERROR(CheckRange("launches", sample.launches, 1, kMaxLaunches));
  if (!sample.packed || sample.launches == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("launches is ", sample.launches, ", but a packed bucket is one launch"));
}

absl::Status Validate(const CostProvenance& by) {
  if (by.reporter.empty()) {
    return absl::InvalidArgumentError("reporter: missing, expected the name of a host");
  }
  RETURN_IF_ERROR(CheckText("reporter", by.reporter));
  RETURN_IF_ERROR(CheckText("job", by.job));
  RETURN_IF_ERROR(CheckText("tool", by.tool));
  return CheckText("device", by.device);
}

}  // namespace bucketd
