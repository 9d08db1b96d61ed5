// The Admin service of proto/admin.proto: who may call it, gRPC's types, and a thread of its own,
// so that an operator gets through while everything else is busy and no gRPC thread waits for a
// disk.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/impl/service_type.h"

#include "server/admin/admin.h"
#include "server/base/metrics.h"

namespace bucketd {

// Whether a caller at `peer`, as gRPC names it ("unix:...", "ipv4:127.0.0.1:4711"), may use the
// service under --admin=`policy`; else ADMIN_NOT_ALLOWED with what to do about it.
absl::Status CheckAdminPeer(absl::string_view policy, absl::string_view peer);

// Both outlive the service, and the service outlives the gRPC server's Shutdown.
std::unique_ptr<grpc::Service> MakeAdminService(Admin& admin, const std::string& policy,
                                                ServerMetrics& metrics);

}  // namespace bucketd
