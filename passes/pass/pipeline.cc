#include "passes/pass/pipeline.h"

#include <chrono>

#include "absl/strings/str_cat.h"

#include "passes/base/cancellation.h"
#include "passes/plan/verify.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

int64_t Since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

// Equal if two plans have the same buckets in the same order of steps, up to collisions. Cheap
// enough to ask after every pass.
uint64_t Fingerprint(const Plan& plan) {
  uint64_t hash = 1469598103934665603u;
  const auto add = [&](uint64_t value) {
    hash = (hash ^ value) * 1099511628211u;
    hash ^= hash >> 29;
  };
  for (const Bucket& bucket : plan.buckets) {
    add(bucket.members.size());
    for (const NodeId member : bucket.members) add(static_cast<uint64_t>(member));
    add(static_cast<uint64_t>(bucket.mode) * 4 + static_cast<uint64_t>(bucket.copies));
  }
  for (const Step& step : plan.order) {
    add(static_cast<uint64_t>(step.id) * 4 + static_cast<uint64_t>(step.kind));
  }
  return hash;
}

}  // namespace

absl::Status Pipeline::Run(PassContext& context, Plan& plan, const AfterPass& after) const {
  for (const std::unique_ptr<Pass>& pass : passes_) {
    if (IsCancelled()) return absl::CancelledError("the plan is not wanted any more");
    if (pass->needs_tags() && context.tags.of.size() != context.graph.collectives().size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(pass->name(), ": tag-collectives has to run before"));
    }
    if (pass->is_first_to_bucket() && !plan.buckets.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          pass->name(),
          ": the plan has buckets already; it has to run before passes that make them"));
    }
    const uint64_t before = Fingerprint(plan);
    const Clock::time_point begin = Clock::now();
    const absl::StatusOr<bool> changed = pass->Run(context, plan);
    const int64_t run_ns = Since(begin);
    if (!changed.ok()) {
      return absl::Status(changed.status().code(),
                          absl::StrCat(pass->name(), ": ", changed.status().message()));
    }
    const Clock::time_point verify_begin = Clock::now();
    const absl::Status legal = VerifyPlan(context.graph, plan);
    if (!legal.ok()) {
      return absl::InternalError(
          absl::StrCat("pass ", pass->name(), " made an illegal plan: ", legal.message()));
    }
    if (!*changed && Fingerprint(plan) != before) {
      return absl::InternalError(
          absl::StrCat("pass ", pass->name(), " changed the plan and denies it"));
    }
    if (after == nullptr) continue;
    after({std::string(pass->name()), *changed, run_ns, Since(verify_begin)}, context, plan);
  }
  return absl::OkStatus();
}

}  // namespace bucketd
