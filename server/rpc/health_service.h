// gRPC's health checking protocol (proto/health.proto), for whoever connects: no caller is asked
// who it is. In place of gRPC's own service, which also has watches: calls that never end, of which
// nobody counts how many there are. Thread-safe.
#pragma once

#include <atomic>
#include <string>

#include "proto/health.grpc.pb.h"

namespace bucketd {

class HealthService final : public grpc::health::v1::Health::WithRawCallbackMethod_Check<
                                grpc::health::v1::Health::WithRawCallbackMethod_Watch<
                                    grpc::health::v1::Health::Service>> {
 public:
  // Answers for the whole server, and for the service of this name. Not serving at first.
  explicit HealthService(std::string service) : service_(std::move(service)) {}

  void SetServing(bool value) { serving_ = value; }

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  const std::string service_;
  std::atomic<bool> serving_ = false;
};

}  // namespace bucketd
