#include "server/rpc/mutual_tls.h"

#include <string>
#include <utility>

#include <grpc/grpc_security.h>

namespace bucketd {
namespace {

grpc_ssl_client_certificate_request_type TypeOf(ClientCertificates wanted) {
  switch (wanted) {
    case ClientCertificates::kRequired:
      return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    case ClientCertificates::kWelcome:
      return GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
    case ClientCertificates::kNotAsked:
      return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  }
  return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

// gRPC's own reloading credentials compare times of files by the second and read the files one by
// one, so a new key may meet the old certificate. The C API asks us instead: what it gets is whole.
class Credentials final : public grpc::ServerCredentials {
 public:
  Credentials(ClientCertificates wanted, std::function<std::shared_ptr<const TlsFiles>()> now)
      : now_(std::move(now)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(TypeOf(wanted), Fetch,
                                                                            this))) {}
  ~Credentials() override { grpc_server_credentials_release(credentials_); }
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // Called under a lock of the listener's.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto& credentials = *static_cast<Credentials*>(self);
    std::shared_ptr<const TlsFiles> files = credentials.now_();
    if (files == credentials.given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {files->key.c_str(), files->certificate.c_str()};
    // gRPC wants authorities even where it asks nobody for a certificate.
    const std::string& authorities =
        files->client_ca.empty() ? files->certificate : files->client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    credentials.given_ = std::move(files);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::function<std::shared_ptr<const TlsFiles>()> now_;
  std::shared_ptr<const TlsFiles> given_;
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MutualTls(
    ClientCertificates wanted, std::function<std::shared_ptr<const TlsFiles>()> now) {
  return std::make_shared<Credentials>(wanted, std::move(now));
}

}  // namespace bucketd
