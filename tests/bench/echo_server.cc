// The floor under the planner service: the same gRPC method in the same API (callback, raw bytes),
// which answers every GetPlan with the bytes of a file and looks at nothing. service_bench.cc
// measures one against the other.
//
//   echo_server unix:/path REPLY_FILE
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/byte_buffer.h"

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

int Main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: echo_server ADDRESS REPLY_FILE\n");
    return 2;
  }
  std::ifstream file(argv[2], std::ios::binary);
  std::stringstream reply;
  reply << file.rdbuf();
  EchoService service(reply.str());
  grpc::ServerBuilder builder;
  builder.AddListeningPort(argv[1], grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!file || server == nullptr) {
    std::fprintf(stderr, "echo_server: cannot serve %s on %s\n", argv[2], argv[1]);
    return 1;
  }
  server->Wait();
  return 0;
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) { return bucketd::Main(argc, argv); }
