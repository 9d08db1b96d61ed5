// A listener that asks each caller for a certificate, and shows the server's as it is now.
#pragma once

#include <functional>
#include <memory>

#include "grpcpp/security/server_credentials.h"

#include "server/identity/tls_files.h"

namespace bucketd {

// `now` is asked at each new connection, and gives something always. Only certificates of its
// authorities connect; who they are is Admission's business. The result outlives the gRPC server,
// which keeps no hold of it.
std::shared_ptr<grpc::ServerCredentials> MutualTls(
    std::function<std::shared_ptr<const TlsFiles>()> now);

}  // namespace bucketd
