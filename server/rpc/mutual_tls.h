// A listener that asks callers for certificates, and shows the server's as it is now.
#pragma once

#include <functional>
#include <memory>

#include "grpcpp/security/server_credentials.h"

#include "server/identity/tls_files.h"

namespace bucketd {

enum class ClientCertificates {
  kRequired,
  kWelcome,   // whoever has none connects, too
  kNotAsked,  // there is no authority that could have signed one
};

// `now` is asked at each new connection, and gives something always. A certificate that is none of
// its authorities' does not connect; who callers are is Admission's business. The result outlives
// the gRPC server, which keeps no hold of it.
std::shared_ptr<grpc::ServerCredentials> MutualTls(
    ClientCertificates wanted, std::function<std::shared_ptr<const TlsFiles>()> now);

}  // namespace bucketd
