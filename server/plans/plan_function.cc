#include "server/plans/plan_function.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/cost/costs.h"
#include "passes/io/proto_io.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "server/base/errors.h"
#include "server/plans/plan_request.h"

namespace bucketd {
namespace {

absl::Status CheckMesh(const Graph& graph, const Mesh& mesh) {
  for (const Group& group : graph.groups()) {
    const auto dim = std::find_if(mesh.dims.begin(), mesh.dims.end(),
                                  [&](const MeshDim& d) { return d.name == group.mesh_dim; });
    if (dim == mesh.dims.end()) {
      std::vector<std::string> names;
      for (const MeshDim& d : mesh.dims) names.push_back(d.name);
      return MakeError(Reason::kMeshInvalid,
                       absl::StrCat("the graph has a group over mesh dimension \"", group.mesh_dim,
                                    "\"; the mesh has [", absl::StrJoin(names, ", "), "]"));
    }
    if (dim->size != group.size) {
      return MakeError(Reason::kMeshInvalid,
                       absl::StrCat("mesh dimension \"", dim->name, "\" has ", dim->size,
                                    " ranks, the graph's group over it has ", group.size),
                       {.limit = dim->size, .actual = group.size});
    }
  }
  return absl::OkStatus();
}

absl::Status PlannerError(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return WithReason(Reason::kOptionsInvalid, status);
    case absl::StatusCode::kCancelled:
      return WithReason(Reason::kCancelled, status);
    case absl::StatusCode::kFailedPrecondition:
      return WithReason(Reason::kPlanImpossible, status);
    default:
      return WithReason(Reason::kPlannerBug, status);
  }
}

absl::StatusOr<std::string> Compute(const Graph& graph, const PlanRequest& request) {
  RETURN_IF_ERROR(CheckMesh(graph, request.mesh));
  const absl::StatusOr<Costs> costs = Costs::FromDeviceModel(graph, request.mesh, *request.profile);
  if (!costs.ok()) return WithReason(Reason::kGraphMalformed, costs.status());
  absl::StatusOr<Plan> plan = MakePlan(graph, *costs, request.options);
  if (!plan.ok()) return PlannerError(plan.status());
  plan->graph_digest = request.digest;  // clients refuse a plan that does not name their graph
  // Once more than the planner did itself: no illegal plan leaves this process, whatever made it.
  const absl::Status legal = VerifyPlan(graph, *plan);
  if (!legal.ok()) return WithReason(Reason::kPlannerBug, legal);
  return SerializePlan(graph, *plan);
}

}  // namespace

// Mode auto: tests/bench/results/planning.md; an effort more doubles it.
int64_t EstimatedMillis(const Graph& graph, const PlanOptions& options) {
  const auto nodes = static_cast<int64_t>(graph.size());
  if (options.mode != "auto") return 1 + nodes / 1000;
  const int64_t at_effort_5 = 140 + nodes / 76;
  return options.effort >= 5 ? at_effort_5 << (options.effort - 5)
                             : at_effort_5 >> (5 - options.effort);
}

absl::StatusOr<std::string> ComputePlan(const Graph& graph, const PlanRequest& request) {
  try {
    return Compute(graph, request);
  } catch (const std::exception& e) {  // the standard library's: out of memory
    return MakeError(Reason::kPlannerBug, absl::StrCat("planning ended with: ", e.what()));
  }
}

}  // namespace bucketd
