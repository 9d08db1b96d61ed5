#include "server/plans/read_plan_request.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "proto/planner.pb.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/base/version.h"

namespace bucketd {
namespace {

// False unless `text` is MAJOR.MINOR.PATCH, numbers; what follows a '-' or '+' does not count.
bool ParseVersion(absl::string_view text, std::array<int32_t, 3>& version) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(text.substr(0, text.find_first_of("-+")), '.');
  if (parts.size() != version.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!absl::SimpleAtoi(parts[i], &version[i])) return false;
  }
  return true;
}

// A client that does not state its version is taken as it is.
absl::Status CheckClientVersion(absl::string_view text) {
  if (text.empty()) return absl::OkStatus();
  std::array<int32_t, 3> version{};
  std::array<int32_t, 3> least{};
  ParseVersion(kMinClientVersion, least);
  if (!ParseVersion(text, version)) {
    return MakeError(Reason::kRequestMalformed,
                     "client_version: expected MAJOR.MINOR.PATCH, e.g. 0.1.0");
  }
  if (version >= least) return absl::OkStatus();
  return MakeError(Reason::kClientTooOld,
                   absl::StrCat("this client is version ", text, "; the server needs at least ",
                                kMinClientVersion));
}

}  // namespace

absl::StatusOr<std::shared_ptr<PlanRequest>> ReadPlanRequest(v1::GetPlanRequest& message,
                                                             const CostCatalog& costs) {
  RETURN_IF_ERROR(CheckClientVersion(message.client_version()));
  RETURN_IF_ERROR(CheckTenant(message.tenant()));
  auto request = std::make_shared<PlanRequest>();
  ASSIGN_OR_RETURN(request->digest, ReadDigest("graph_digest", message.graph_digest()));

  absl::StatusOr<Mesh> mesh = MeshFromProto(message.mesh());
  if (!mesh.ok()) return WithReason(Reason::kMeshInvalid, mesh.status());
  absl::StatusOr<PlanOptions> options = OptionsFromProto(message.options(), *mesh);
  if (!options.ok()) return WithReason(Reason::kOptionsInvalid, options.status());
  request->profile_as_asked = message.options().cost_profile();
  ASSIGN_OR_RETURN(CostCatalog::ProfilePtr profile,
                   costs.Resolve(request->profile_as_asked, mesh->device_type));

  request->tenant = message.tenant();
  request->graph_key = GraphKey(request->tenant, request->digest);
  request->mesh = *std::move(mesh);
  request->options = *std::move(options);
  SetProfile(*request, std::move(profile));
  request->cached_only = message.cached_only();
  if (message.has_graph()) {
    request->graph = std::make_unique<InlineGraph>();
    request->graph->codec = message.graph().codec();
    request->graph->size = message.graph().size();
    request->graph->data = std::move(*message.mutable_graph()->mutable_data());
  }
  return request;
}

}  // namespace bucketd
