// The Agents service on gRPC: a thin adapter over Rendezvous.
#pragma once

#include <chrono>
#include <memory>

#include "grpcpp/impl/service_type.h"

#include "server/agents/rendezvous.h"
#include "server/base/metrics.h"
#include "server/rpc/admission.h"

namespace bucketd {

// `max_wait` bounds calls without a deadline. All of it outlives the service, and the service the
// gRPC server's Shutdown.
std::unique_ptr<grpc::Service> MakeRendezvousService(Rendezvous& rendezvous,
                                                     const Admission& admission,
                                                     ServerMetrics& metrics,
                                                     std::chrono::milliseconds max_wait);

}  // namespace bucketd
