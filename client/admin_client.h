// The Admin service of a running server, as calls that always end by their deadline. Errors as
// FromRpc (channel.h) makes them. Nothing is repeated: the operator is there and sees what
// happened.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "client/client_tls.h"
#include "client/server_channel.h"

#include "proto/admin.grpc.pb.h"

namespace bucketd::client {

// Thread-safe.
class AdminClient {
 public:
  // As addresses.h says; of several servers the first that answers is asked. Connects at the first
  // call.
  explicit AdminClient(std::string address, const ClientTls& tls = {},
                       std::chrono::milliseconds deadline = std::chrono::seconds(15));

  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  absl::StatusOr<v1::ListPlansResponse> ListPlans(const v1::ListPlansRequest& request);
  absl::StatusOr<v1::EvictPlansResponse> EvictPlans(const v1::EvictPlansRequest& request);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::PinJobResponse> PinJob(const v1::PinJobRequest& request);
  absl::StatusOr<v1::UnpinJobResponse> UnpinJob(const v1::UnpinJobRequest& request);
  absl::StatusOr<v1::SetPlanningResponse> SetPlanning(const v1::SetPlanningRequest& request);
  absl::StatusOr<v1::ListAuditResponse> ListAudit(const v1::ListAuditRequest& request);
  absl::StatusOr<v1::ListTenantsResponse> ListTenants();

 private:
  ServerChannels servers_;
  const std::chrono::milliseconds deadline_;
};

}  // namespace bucketd::client
