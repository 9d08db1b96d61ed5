#include "server/rpc/health_service.h"

#include "absl/strings/str_cat.h"

#include "server/rpc/request_bytes.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class Refusal final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto asked = RequestBytes(request).Read<HealthCheckRequest>();
  if (!asked.ok()) {
    reactor->Finish(ToGrpcStatus(asked.status()));
  } else if (!asked->service().empty() && asked->service() != service_) {
    reactor->Finish({grpc::StatusCode::NOT_FOUND, absl::StrCat("here is ", service_, " alone")});
  } else {
    HealthCheckResponse answer;
    answer.set_status(serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
    *response = ToBytes(answer);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(grpc::CallbackServerContext*,
                                                                 const grpc::ByteBuffer*) {
  return new Refusal({grpc::StatusCode::UNIMPLEMENTED, "ask by Check, again and again"});
}

}  // namespace bucketd
