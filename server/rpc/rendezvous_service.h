// The Agents service on gRPC: a thin adapter over Rendezvous.
#pragma once

#include <memory>

#include "grpcpp/impl/service_type.h"

#include "server/agents/rendezvous.h"
#include "server/rpc/service_parts.h"

namespace bucketd {

// Both outlive the service.
std::unique_ptr<grpc::Service> MakeRendezvousService(Rendezvous& rendezvous,
                                                     const ServiceParts& parts);

}  // namespace bucketd
