#include "server/jobs/replan.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"

namespace bucketd {

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
