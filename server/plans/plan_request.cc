#include "server/plans/plan_request.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/plan_key.h"
#include "passes/planner.h"
#include "server/base/errors.h"

namespace bucketd {

Shares::Path ShareOf(const PlanRequest& request) {
  return ShareOf(request.tenant, request.asker.peer, request.asker.tenant_is_known);
}

std::string GraphKey(absl::string_view tenant, const Digest& digest) {
  return absl::StrCat(tenant, absl::string_view("\0", 1), AsBytes(digest));
}

absl::StatusOr<Digest> ReadDigest(absl::string_view field, absl::string_view bytes) {
  absl::StatusOr<Digest> digest = DigestFromBytes(bytes);
  if (digest.ok()) return digest;
  return MakeError(Reason::kDigestMalformed,
                   absl::StrCat(field, ": a SHA-256 has 32 bytes, this has ", bytes.size()));
}

void SetProfile(PlanRequest& request, std::shared_ptr<const KeyedProfile> profile) {
  request.profile = std::move(profile);
  request.key = PlanKey(request.tenant, request.digest, request.mesh, request.options,
                        *request.profile, kPlannerVersion);
}

absl::Status Hold(PlanRequest& request, size_t ranks, ByteRoom::Held held) {
  const auto graph =
      request.graph == nullptr ? 0 : static_cast<int64_t>(request.graph->data.size());
  RETURN_IF_ERROR(held.Resize(kHeldTimes * static_cast<int64_t>(request.key.size()) + graph +
                              kHeldOfRank * static_cast<int64_t>(ranks)));
  if (graph > 0) request.graph->held = held.Split(graph);
  request.held = std::move(held);
  return absl::OkStatus();
}

}  // namespace bucketd
