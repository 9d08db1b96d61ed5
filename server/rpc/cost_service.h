// The CostProfiles service of proto/cost_service.proto.
#pragma once

#include <memory>

#include "grpcpp/impl/service_type.h"

#include "server/rpc/service_parts.h"

namespace bucketd {

// `parts` outlives the service.
std::unique_ptr<grpc::Service> MakeCostService(const ServiceParts& parts);

}  // namespace bucketd
