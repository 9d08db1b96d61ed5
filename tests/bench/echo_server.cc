// The floor under the planner service: the same gRPC method in the same API (callback, raw bytes),
// which answers every GetPlan with the bytes of a file and looks at nothing. service_bench.cc
// measures one against the other.
//
//   echo_server unix:/path REPLY_FILE
//   echo_server localhost:4711 REPLY_FILE FOLDER     mutual TLS: server.pem, server.key and ca.pem
//   there
#include <cstdio>
#include <string>

#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/byte_buffer.h"

#include "passes/base/read_file.h"
#include "proto/planner.grpc.pb.h"

namespace bucketd {
namespace {

class EchoReactor final : public grpc::ServerUnaryReactor {
 public:
  void OnDone() override { delete this; }
};

class EchoService final : public v1::Planner::WithRawCallbackMethod_GetPlan<v1::Planner::Service> {
 public:
  explicit EchoService(std::string reply) : reply_(std::move(reply)) {}

  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext*, const grpc::ByteBuffer*,
                                    grpc::ByteBuffer* response) override {
    const grpc::Slice slice(reply_.data(), reply_.size(), grpc::Slice::STATIC_SLICE);
    *response = grpc::ByteBuffer(&slice, 1);
    auto* reactor = new EchoReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::string reply_;
};

// "" if it cannot be read.
std::string FileText(const std::string& path) {
  return ReadFile(path, int64_t{1} << 30).value_or("");
}

std::shared_ptr<grpc::ServerCredentials> Credentials(const std::string& folder) {
  if (folder.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = FileText(folder + "/ca.pem");
  options.pem_key_cert_pairs = {
      {FileText(folder + "/server.key"), FileText(folder + "/server.pem")}};
  return grpc::SslServerCredentials(options);
}

int Main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: echo_server ADDRESS REPLY_FILE [FOLDER]\n");
    return 2;
  }
  const std::string reply = FileText(argv[2]);
  EchoService service(reply);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(argv[1], Credentials(argc == 4 ? argv[3] : ""));
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (reply.empty() || server == nullptr) {
    std::fprintf(stderr, "echo_server: cannot serve %s on %s\n", argv[2], argv[1]);
    return 1;
  }
  server->Wait();
  return 0;
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) { return bucketd::Main(argc, argv); }
