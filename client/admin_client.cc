#include "client/admin_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "grpcpp/client_context.h"

namespace bucketd::client {
namespace {

using Stub = v1::Admin::Stub;

template <typename Request, typename Response>
using Rpc = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

struct Call {
  Stub& stub;
  const std::string& address;
  std::chrono::milliseconds deadline;
  const char* name;

  template <typename Request, typename Response>
  absl::StatusOr<Response> Make(Rpc<Request, Response> rpc, const Request& request) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    Response response;
    const grpc::Status status = (stub.*rpc)(&context, request, &response);
    if (status.ok()) return response;
    return FromRpc(status, absl::StrCat(name, " at ", address));
  }
};

}  // namespace

AdminClient::AdminClient(std::string address, std::chrono::milliseconds deadline)
    : address_(std::move(address)),
      deadline_(deadline),
      stub_(v1::Admin::NewStub(MakeChannel(address_, ChannelOptions{}))) {}

#define BUCKETD_CALL(name, request)                                                     \
  Call{*stub_, address_, deadline_, #name}.Make<v1::name##Request, v1::name##Response>( \
      &Stub::name, request)

absl::StatusOr<v1::GetStatusResponse> AdminClient::GetStatus() {
  return BUCKETD_CALL(GetStatus, v1::GetStatusRequest());
}
absl::StatusOr<v1::ListPlansResponse> AdminClient::ListPlans(const v1::ListPlansRequest& request) {
  return BUCKETD_CALL(ListPlans, request);
}
absl::StatusOr<v1::EvictPlansResponse> AdminClient::EvictPlans(
    const v1::EvictPlansRequest& request) {
  return BUCKETD_CALL(EvictPlans, request);
}
absl::StatusOr<v1::ListJobsResponse> AdminClient::ListJobs(const v1::ListJobsRequest& request) {
  return BUCKETD_CALL(ListJobs, request);
}
absl::StatusOr<v1::PinJobResponse> AdminClient::PinJob(const v1::PinJobRequest& request) {
  return BUCKETD_CALL(PinJob, request);
}
absl::StatusOr<v1::UnpinJobResponse> AdminClient::UnpinJob(const v1::UnpinJobRequest& request) {
  return BUCKETD_CALL(UnpinJob, request);
}
absl::StatusOr<v1::SetPlanningResponse> AdminClient::SetPlanning(
    const v1::SetPlanningRequest& request) {
  return BUCKETD_CALL(SetPlanning, request);
}

#undef BUCKETD_CALL

}  // namespace bucketd::client
