#include "passes/pass/options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/pass/entries.h"

namespace bucketd {
namespace {

constexpr absl::string_view kBackends[] = {"gloo", "nccl"};  // whose order of summation is known
constexpr int64_t kMaxLimitPpm = 1'000'000'000;              // a thousand times program order's
constexpr int64_t kMaxLimitBytes = int64_t{1} << 60;
constexpr int32_t kMaxDistance = 1'000'000;

absl::Status CheckName(absl::string_view what, absl::string_view name,
                       absl::Span<const absl::string_view> known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unknown ", what, " \"", name, "\"; known: ", absl::StrJoin(known, ", ")));
}

absl::Status CheckRange(absl::string_view what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, "; expected ", least, " to ", most));
}

}  // namespace

absl::Span<const absl::string_view> PlanModes() {
  static constexpr absl::string_view kModes[] = {"transformer_block", "manual", "greedy",
                                                 "overlap",           "auto",   "none"};
  return kModes;
}

absl::Status PlanOptions::Validate() const {
  RETURN_IF_ERROR(CheckName("mode", mode, PlanModes()));
  RETURN_IF_ERROR(CheckName("backend", backend, kBackends));
  if (numerics < Numerics::kEagerOrder || numerics > Numerics::kFree) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown numerics; known: ", absl::StrJoin(NamesOf<Numerics>(), ", ")));
  }
  RETURN_IF_ERROR(CheckRange("memory_limit_ppm", memory_limit_ppm, 1, kMaxLimitPpm));
  RETURN_IF_ERROR(CheckRange("memory_limit_bytes", memory_limit_bytes, 0, kMaxLimitBytes));
  RETURN_IF_ERROR(CheckRange("resident_bytes", resident_bytes, 0, kMaxLimitBytes));
  RETURN_IF_ERROR(CheckRange("prefetch_forward", prefetch_forward, 0, kMaxDistance));
  RETURN_IF_ERROR(CheckRange("prefetch_backward", prefetch_backward, 0, kMaxDistance));
  RETURN_IF_ERROR(CheckRange("defer_reduce_scatter", defer_reduce_scatter, 0, kMaxDistance));
  for (const int64_t cap : bucket_cap_bytes) {
    RETURN_IF_ERROR(CheckRange("bucket_cap_bytes", cap, 1, kMaxLimitBytes));
  }
  RETURN_IF_ERROR(CheckRange("max_topo_span", max_topo_span, kNoLimit, kMaxLimitPpm));
  RETURN_IF_ERROR(CheckRange("max_in_flight_bytes", max_in_flight_bytes, 1, kMaxLimitBytes));
  RETURN_IF_ERROR(CheckRange("max_compute_prefetch", max_compute_prefetch, 0, kMaxDistance));
  RETURN_IF_ERROR(CheckRange("max_collective_distance", max_collective_distance, 1, kMaxDistance));
  RETURN_IF_ERROR(CheckRange("compute_overlap_ppm", compute_overlap_ppm, 0, kMaxLimitPpm));
  RETURN_IF_ERROR(
      CheckRange("max_memory_increase_bytes", max_memory_increase_bytes, kNoLimit, kMaxLimitBytes));
  RETURN_IF_ERROR(
      CheckRange("max_memory_increase_ppm", max_memory_increase_ppm, kNoLimit, kMaxLimitPpm));
  RETURN_IF_ERROR(CheckRange("max_off_path_bytes", max_off_path_bytes, 0, kMaxLimitBytes));
  RETURN_IF_ERROR(
      CheckRange("overlap_bucket_cap_bytes", overlap_bucket_cap_bytes, 1, kMaxLimitBytes));
  RETURN_IF_ERROR(CheckRange("effort", effort, 0, 9));
  if (mode == "manual" && buckets.empty()) {
    return absl::InvalidArgumentError(
        "mode manual needs entries, for example tok_embeddings,layers.[0-31],norm+output");
  }
  if (mode != "manual" && !buckets.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket entries are for mode manual; the mode is ", mode));
  }
  if (!buckets.empty()) RETURN_IF_ERROR(ParseEntries(buckets).status());
  if (reorder != "all" && reorder != "none") {
    RETURN_IF_ERROR(ParseEntries(reorder, true).status());
  }
  return absl::OkStatus();
}

}  // namespace bucketd
