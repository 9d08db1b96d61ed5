// What one replica forwards to another, as it is read there, and what it is told.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"

#include "proto/peer.pb.h"
#include "server/cluster/replica_id.h"
#include "server/rpc/job_routes.h"

namespace bucketd {

// Its deadline is left open. Errors carry a reason.
absl::StatusOr<RanksCall> ReadForwarded(const v1::ForwardRequest& request);
// As JobRoutes::Here is told; a plan by reference.
v1::ForwardReply ForwardReplyOf(const std::optional<JobRoutes::Answer>& answer,
                                const std::optional<ReplicaId>& holder);
// Whose bytes go with it: where they are wanted, and where nobody else may have them. Null: none.
PlanReplyPtr PlanBeside(const std::optional<JobRoutes::Answer>& answer, bool with_plan);
// `reply` with those bytes, which all that have them share: they may be thousands.
grpc::ByteBuffer BytesOf(const v1::ForwardReply& reply, const PlanReplyPtr& plan);

}  // namespace bucketd
