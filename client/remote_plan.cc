#include "client/remote_plan.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/errors.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "passes/plan/raw_ids.h"
#include "passes/plan/verify.h"
#include "proto/graph.pb.h"

namespace bucketd::client {
namespace {

absl::Status Illegal(const absl::Status& status) {
  return MakeError(absl::StatusCode::kInternal, kProtocol,
                   absl::StrCat("the server's plan is none for this graph: ", status.message()));
}

// Ids are in range afterwards.
absl::Status Check(const NormalizedGraph& normalized, const Digest& digest, const Plan& plan) {
  if (plan.graph_digest != digest) {
    return Illegal(
        absl::InvalidArgumentError(absl::StrCat("it is for ", ToHex(plan.graph_digest))));
  }
  const absl::Status legal = VerifyPlan(normalized.graph, plan);
  if (!legal.ok()) return Illegal(legal);
  // Those that it says that the graph has, ParsePlan has checked.
  for (const Diagnostic& diagnostic : plan.diagnostics) {
    for (const NodeId id : diagnostic.nodes) {
      if (id >= normalized.graph.size()) {
        return Illegal(absl::InvalidArgumentError("a diagnostic names no node"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> PlanCaptured(PlannerClient& planner, const CapturedGraph& captured,
                                  const PlanOptions& options, const std::string& cost_profile,
                                  std::chrono::milliseconds deadline) {
  ASSIGN_OR_RETURN(const NormalizedGraph normalized, Normalize(captured.graph));
  PlanQuery query;
  query.digest = GraphDigest(normalized.graph);
  MeshToProto(captured.mesh, query.mesh);
  OptionsToProto(options, query.options);
  query.options.set_cost_profile(cost_profile);
  query.graph = [&]() -> absl::StatusOr<std::string> {
    v1::Graph message;
    GraphToProto(normalized.graph, message);
    return message.SerializeAsString();
  };
  query.deadline = deadline;
  ASSIGN_OR_RETURN(const PlanReply reply, planner.GetPlan(query));
  absl::StatusOr<Plan> plan = ParsePlan(reply.plan);
  if (!plan.ok()) return Illegal(plan.status());
  RETURN_IF_ERROR(Check(normalized, query.digest, *plan));
  ToRawIds(captured.graph, normalized, *plan);
  const absl::Status legal = VerifyPlan(captured.graph, *plan);
  if (!legal.ok()) return Illegal(legal);
  return plan;
}

}  // namespace bucketd::client
