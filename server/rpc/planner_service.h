// bucketd.v1.Planner over gRPC's callback API: from messages to calls of the broker and back, and
// nothing else. No handler blocks or works long.
#pragma once

#include <memory>

#include "server/rpc/service_parts.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bucketd {

// `parts` outlives the service.
std::unique_ptr<grpc::Service> MakePlannerService(const ServiceParts& parts);

}  // namespace bucketd
