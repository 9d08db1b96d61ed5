// bucketd.v1.Peers: what other replicas ask of this one.
#pragma once

#include <cstdint>
#include <memory>

#include "server/rpc/service_parts.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bucketd {

// `parts` outlives the service, and has routes. `incarnation`: this replica's.
std::unique_ptr<grpc::Service> MakePeerService(const ServiceParts& parts, uint64_t incarnation);

}  // namespace bucketd
