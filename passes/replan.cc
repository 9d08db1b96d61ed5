#include "passes/replan.h"

#include "absl/strings/str_cat.h"

#include "passes/base/int128.h"
#include "passes/pass/fit_memory.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"

namespace bucketd {

absl::StatusOr<ReplanVerdict> JudgeReplan(const Graph& graph, const Plan& pinned, const Plan& fresh,
                                          const Costs& costs, int64_t threshold_ppm) {
  const absl::Status legal = VerifyPlan(graph, pinned);
  if (!legal.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the pinned plan is not legal for this graph: ", legal.message()));
  }
  ReplanVerdict verdict;
  verdict.pinned_ps = Simulate(graph, pinned, costs).prediction.total_ps;
  verdict.fresh_ps = Simulate(graph, fresh, costs).prediction.total_ps;
  constexpr int64_t kMillion = 1'000'000;
  const Int128 gain = Int128{verdict.pinned_ps} - verdict.fresh_ps;
  if (verdict.pinned_ps > 0) {
    verdict.gain_ppm = static_cast<int64_t>(gain * kMillion / verdict.pinned_ps);
  }
  verdict.replace = gain * kMillion > Int128{verdict.pinned_ps} * threshold_ppm;
  return verdict;
}

std::string WhyNotPinned(const Graph& graph, const Costs& costs, const PlanOptions& options,
                         const Plan& pinned, const Plan& fresh) {
  if (pinned.numerics != fresh.numerics || pinned.backend != fresh.backend) {
    return absl::StrCat("it keeps numerics ", Name(pinned.numerics), " on ", pinned.backend,
                        "; asked for are ", Name(fresh.numerics), " on ", fresh.backend);
  }
  PassContext context(graph, costs, options);
  context.program_order = fresh.program_order;
  const int64_t limit = MemoryLimit(context);
  const int64_t peak = Simulate(graph, pinned, costs).prediction.peak_bytes;
  if (peak > limit && peak > fresh.prediction.peak_bytes) {
    return absl::StrCat("it needs ", peak, " bytes; the limit is ", limit);
  }
  return "";
}

Plan UnderCostsOf(const Graph& graph, const Costs& costs, const Plan& fresh, Plan plan) {
  Predict(graph, costs, plan);
  plan.program_order = fresh.program_order;
  plan.lower_bound_ps = fresh.lower_bound_ps;
  plan.cost_profile = fresh.cost_profile;
  plan.diagnostics.clear();
  return plan;
}

}  // namespace bucketd
