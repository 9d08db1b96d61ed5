// What one replica forwards to another, as it is read there, and what it is told.
#pragma once

#include <optional>

#include "absl/status/statusor.h"

#include "proto/peer.pb.h"
#include "server/cluster/replica_id.h"
#include "server/rpc/job_routes.h"

namespace bucketd {

// Its deadline is left open. Errors carry a reason.
absl::StatusOr<RanksCall> ReadForwarded(const v1::ForwardRequest& request);
// As JobRoutes::Here is told. With a plan's bytes where they are wanted, and where nobody else may
// have them.
v1::ForwardReply ForwardReplyOf(const std::optional<JobRoutes::Answer>& answer,
                                const std::optional<ReplicaId>& holder, bool with_plan);

}  // namespace bucketd
