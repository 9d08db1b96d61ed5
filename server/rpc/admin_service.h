// The Admin service of proto/admin.proto on gRPC, with a thread of its own, so that an operator
// gets through while everything else is busy and no gRPC thread waits for a disk.
#pragma once

#include <memory>

#include "grpcpp/impl/service_type.h"

#include "server/admin/admin.h"
#include "server/base/metrics.h"
#include "server/rpc/admission.h"

namespace bucketd {

// All outlive the service, and the service outlives the gRPC server's Shutdown.
std::unique_ptr<grpc::Service> MakeAdminService(Admin& admin, const Admission& admission,
                                                ServerMetrics& metrics);

}  // namespace bucketd
