// bucketd.v1.Peers: what other replicas ask of this one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "proto/admin.pb.h"
#include "server/rpc/service_parts.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bucketd {

// `parts` outlives the service, and has routes. `incarnation`: this replica's; `jobs`: its jobs.
std::unique_ptr<grpc::Service> MakePeerService(const ServiceParts& parts, uint64_t incarnation,
                                               std::function<std::vector<v1::JobStatus>()> jobs);

}  // namespace bucketd
