#include "client/admin_client.h"

#include <utility>

#include "client/unary_call.h"
#include "grpcpp/client_context.h"

namespace bucketd::client {
namespace {

using Calls = UnaryCalls<v1::Admin>;
using Stub = v1::Admin::Stub;

}  // namespace

AdminClient::AdminClient(std::string address, const ClientTls& tls,
                         std::chrono::milliseconds deadline)
    : servers_(std::move(address), ChannelOptions{.tls = tls}), deadline_(deadline) {}

#define BUCKETD_CALL(name, request) Calls{servers_, deadline_}.Make(#name, &Stub::name, request)

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
absl::StatusOr<v1::ListAuditResponse> AdminClient::ListAudit(const v1::ListAuditRequest& request) {
  return BUCKETD_CALL(ListAudit, request);
}
absl::StatusOr<v1::ListTenantsResponse> AdminClient::ListTenants() {
  return BUCKETD_CALL(ListTenants, v1::ListTenantsRequest());
}

#undef BUCKETD_CALL

}  // namespace bucketd::client
