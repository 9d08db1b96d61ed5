#include "client/remote_plan.h"

#include <utility>
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
  const NodeId size = normalized.graph.size();
  const auto is_node = [size](NodeId id) { return id >= 0 && id < size; };
  for (const Diagnostic& diagnostic : plan.diagnostics) {
    for (const NodeId id : diagnostic.nodes) {
      if (!is_node(id)) return Illegal(absl::InvalidArgumentError("a diagnostic names no node"));
    }
  }
  for (const NodeId at : {plan.prediction.peak_at, plan.program_order.peak_at}) {
    if (at != kNoNode && !is_node(at)) {
      return Illegal(absl::InvalidArgumentError("memory peaks at no node"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RemotePlan> PlanCaptured(PlannerClient& planner, const CapturedGraph& captured,
                                        const PlanOptions& options, const std::string& cost_profile,
                                        const std::optional<Job>& job,
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
  query.job = job;
  query.deadline = deadline;
  ASSIGN_OR_RETURN(const PlanReply reply, planner.GetPlan(query));
  absl::StatusOr<Plan> plan = ParsePlan(reply.plan);
  if (!plan.ok()) return Illegal(plan.status());
  RETURN_IF_ERROR(Check(normalized, query.digest, *plan));
  ToRawIds(captured.graph, normalized, *plan);
  const absl::Status legal = VerifyPlan(captured.graph, *plan);
  if (!legal.ok()) return Illegal(legal);
  return RemotePlan{*std::move(plan), reply.source};
}

}  // namespace bucketd::client
