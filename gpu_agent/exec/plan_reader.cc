#include "gpu_agent/exec/plan_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

absl::Status Wrong(const std::string& where, const auto&... what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what...));
}

// Differences of the offsets, in elements.
absl::StatusOr<std::vector<int64_t>> CountsOf(const Bucket& bucket, int64_t item,
                                              const std::string& where) {
  const std::string offsets = where + ".offsets";
  if (bucket.offsets.size() != bucket.members.size()) {
    return Wrong(offsets, "has ", bucket.offsets.size(), ", expected one for each of ",
                 bucket.members.size(), " members");
  }
  std::vector<int64_t> counts;
  for (size_t i = 0; i < bucket.offsets.size(); ++i) {
    const int64_t begin = bucket.offsets[i];
    const bool last = i + 1 == bucket.offsets.size();
    const int64_t end = last ? bucket.slice_bytes : bucket.offsets[i + 1];
    const std::string place = absl::StrCat(offsets, "[", i, "]");
    if (i == 0 && begin != 0) return Wrong(place, "is ", begin, ", expected 0");
    if (begin % item != 0) {
      return Wrong(place, "is ", begin, ", expected a multiple of the element's ", item, " bytes");
    }
    if (end < begin) {
      return Wrong(place, "is ", begin, ", which lies behind ", end, ", where the ",
                   last ? "slice ends" : "next member begins", ": they overlap");
    }
    if ((end - begin) % item != 0) {
      return Wrong(where + ".slice_bytes", "is ", end, ", expected a multiple of the element's ",
                   item, " bytes");
    }
    counts.push_back((end - begin) / item);
  }
  return counts;
}

absl::Status CheckBytes(const Bucket& bucket, const BucketSpec& spec, const std::string& where) {
  const int64_t slices = ReducesWhole(spec.kind) ? 1 : spec.group_size;
  if (bucket.slice_bytes > kMaxBucketBytes / slices) {
    return Wrong(where + ".slice_bytes", "is ", bucket.slice_bytes, ", expected at most ",
                 kMaxBucketBytes / slices, " for ", slices, " slices");
  }
  if (bucket.bytes != 0 && bucket.bytes != slices * bucket.slice_bytes) {
    return Wrong(where + ".bytes", "is ", bucket.bytes, ", expected ", slices, " slices of ",
                 bucket.slice_bytes, " bytes");
  }
  return absl::OkStatus();
}

absl::StatusOr<BucketSpec> SpecOf(const Bucket& bucket, const StatedBucket& stated,
                                  const std::string& where) {
  BucketSpec spec;
  spec.name = bucket.name;
  spec.mesh_dim = stated.mesh_dim;
  spec.mode = bucket.mode;
  spec.copies = bucket.copies;
  if (!FromName(stated.kind, spec.kind) || !Bucketable(spec.kind)) {
    return Wrong(where + ".kind", "is \"", stated.kind,
                 "\", expected all_gather, reduce_scatter or all_reduce");
  }
  if (!FromName(stated.dtype, spec.dtype)) {
    return Wrong(where + ".dtype", "is \"", stated.dtype, "\", which is none");
  }
  if (!FromName(stated.reduce_op, spec.op)) {
    return Wrong(where + ".reduce_op", "is \"", stated.reduce_op, "\", which is none");
  }
  if (stated.group_size < 1 || stated.group_size > kMaxGroup) {
    return Wrong(where + ".group_size", "is ", stated.group_size, ", expected 1 to ", kMaxGroup);
  }
  if (stated.lane < 0 || stated.lane > kMaxGroup) {
    return Wrong(where + ".lane", "is ", stated.lane, ", expected 0 to ", kMaxGroup);
  }
  spec.group_size = static_cast<int32_t>(stated.group_size);
  spec.lane = static_cast<int32_t>(stated.lane);
  ASSIGN_OR_RETURN(spec.counts, CountsOf(bucket, ItemSize(spec.dtype), where));
  RETURN_IF_ERROR(CheckBytes(bucket, spec, where));
  return spec;
}

}  // namespace

absl::StatusOr<PlanSpec> SpecOf(const PlanFile& file) {
  PlanSpec plan;
  plan.graph = file.plan.graph_digest;
  for (size_t k = 0; k < file.plan.buckets.size(); ++k) {
    const std::string where = absl::StrCat("buckets[", k, "]");
    if (k >= file.stated.size()) return Wrong(where, "says nothing about its collectives");
    ASSIGN_OR_RETURN(BucketSpec spec, SpecOf(file.plan.buckets[k], file.stated[k], where));
    plan.buckets.push_back(std::move(spec));
  }
  for (const Step& step : file.plan.order) {
    if (step.kind == Step::Kind::kNode) continue;
    plan.order.push_back({step.kind == Step::Kind::kStart, step.id});
  }
  RETURN_IF_ERROR(Validate(plan));
  return plan;
}

}  // namespace bucketd::agent
