#include "server/replan.h"

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

__extension__ typedef __int128 Int128;
constexpr int64_t kMillion = 1'000'000;

}  // namespace

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
  const Int128 gain = Int128{verdict.pinned_ps} - verdict.fresh_ps;
  if (verdict.pinned_ps > 0) {
    verdict.gain_ppm = static_cast<int64_t>(gain * kMillion / verdict.pinned_ps);
  }
  verdict.replace = gain * kMillion > Int128{verdict.pinned_ps} * threshold_ppm;
  return verdict;
}

absl::StatusOr<ReplanVerdict> JudgeReplan(const Graph& graph, absl::string_view pinned,
                                          absl::string_view fresh, const PlanRequest& request,
                                          int64_t threshold_ppm) {
  ASSIGN_OR_RETURN(const Plan old_plan, ParsePlan(pinned));
  ASSIGN_OR_RETURN(const Plan new_plan, ParsePlan(fresh));
  ASSIGN_OR_RETURN(const Costs costs,
                   Costs::FromDeviceModel(graph, request.mesh, *request.profile));
  return JudgeReplan(graph, old_plan, new_plan, costs, threshold_ppm);
}

}  // namespace bucketd
