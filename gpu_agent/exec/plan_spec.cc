#include "gpu_agent/exec/plan_spec.h"

#include <numeric>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

absl::Status Wrong(const std::string& where, const auto&... what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what...));
}

absl::Status ValidateBucket(const BucketSpec& spec, const std::string& where) {
  if (!Bucketable(spec.kind)) {
    return Wrong(where, "is a ", Name(spec.kind),
                 ", expected all_gather, reduce_scatter or all_reduce");
  }
  const int64_t item = ItemSize(spec.dtype);
  if (item == 0) return Wrong(where, "has no dtype");
  if ((spec.op != ReduceOp::kNone) != Reduces(spec.kind)) {
    return Wrong(where, "reduces by \"", Name(spec.op), "\", which no ", Name(spec.kind), " does");
  }
  if (spec.group_size < 1 || spec.group_size > kMaxGroup) {
    return Wrong(where, "is over ", spec.group_size, " ranks, expected 1 to ", kMaxGroup);
  }
  if (spec.counts.empty()) return Wrong(where, "has no members");
  const int64_t slices = ReducesWhole(spec.kind) ? 1 : spec.group_size;
  int64_t left = kMaxBucketBytes / item / slices;
  for (size_t i = 0; i < spec.counts.size(); ++i) {
    if (spec.counts[i] < 0 || spec.counts[i] > left) {
      return Wrong(where, "member ", i, " has ", spec.counts[i], " elements, expected 0 to ", left);
    }
    left -= spec.counts[i];
  }
  return absl::OkStatus();
}

absl::Status ValidateOrder(const PlanSpec& plan) {
  enum class State : uint8_t { kNew, kStarted, kWaited };
  std::vector<State> states(plan.buckets.size(), State::kNew);
  for (const Turn& turn : plan.order) {
    if (turn.bucket < 0 || static_cast<size_t>(turn.bucket) >= states.size()) {
      return Wrong("order", "speaks of bucket ", turn.bucket, " of ", states.size());
    }
    State& state = states[static_cast<size_t>(turn.bucket)];
    if (state != (turn.start ? State::kNew : State::kStarted)) {
      return Wrong("order", Describe(plan, turn.bucket), " is ",
                   turn.start ? "started twice" : "waited for, but not under way");
    }
    state = turn.start ? State::kStarted : State::kWaited;
  }
  for (size_t k = 0; k < states.size(); ++k) {
    if (states[k] == State::kWaited) continue;
    return Wrong("order", Describe(plan, static_cast<int32_t>(k)), " is never ",
                 states[k] == State::kNew ? "started" : "waited for");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t FullBytes(const BucketSpec& spec) {
  const int64_t elements = std::accumulate(spec.counts.begin(), spec.counts.end(), int64_t{0});
  return elements * ItemSize(spec.dtype) * (ReducesWhole(spec.kind) ? 1 : spec.group_size);
}

std::string Describe(const PlanSpec& plan, int32_t bucket) {
  const std::string& name = plan.buckets[static_cast<size_t>(bucket)].name;
  return name.empty() ? absl::StrCat("bucket ", bucket)
                      : absl::StrCat("bucket ", bucket, " (", name, ")");
}

absl::Status Validate(const PlanSpec& plan) {
  if (plan.buckets.size() > kMaxBuckets) {
    return Wrong("buckets", "has ", plan.buckets.size(), ", expected at most ", kMaxBuckets);
  }
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    RETURN_IF_ERROR(ValidateBucket(plan.buckets[k], absl::StrCat("buckets[", k, "]")));
  }
  return ValidateOrder(plan);
}

}  // namespace bucketd::agent
