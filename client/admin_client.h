// The Admin service of a running server, as calls that always end by their deadline. Errors as
// FromRpc (channel.h) makes them. Nothing is repeated: the operator is there and sees what
// happened.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/client_tls.h"
#include "client/once_call.h"
#include "client/server_channel.h"

#include "proto/admin.grpc.pb.h"

namespace bucketd::client {

// Thread-safe.
class AdminClient {
 public:
  // As addresses.h says; of several servers the first that answers is asked. Connects at the first
  // call.
  explicit AdminClient(std::string address, const ClientTls& tls = {})
      : servers_(std::move(address), ChannelOptions{.tls = tls}) {}

  // Each gives an absl::StatusOr of its response.
  auto GetStatus() { return Call(&Stub::GetStatus, {}); }
  auto ListPlans(const v1::ListPlansRequest& request) { return Call(&Stub::ListPlans, request); }
  auto EvictPlans(const v1::EvictPlansRequest& request) { return Call(&Stub::EvictPlans, request); }
  auto ListJobs(const v1::ListJobsRequest& request) { return Call(&Stub::ListJobs, request); }
  auto PinJob(const v1::PinJobRequest& request) { return Call(&Stub::PinJob, request); }
  auto UnpinJob(const v1::UnpinJobRequest& request) { return Call(&Stub::UnpinJob, request); }
  auto SetPlanning(const v1::SetPlanningRequest& request) {
    return Call(&Stub::SetPlanning, request);
  }
  auto ListAudit(const v1::ListAuditRequest& request) { return Call(&Stub::ListAudit, request); }
  auto ListTenants() { return Call(&Stub::ListTenants, {}); }

 private:
  using Stub = v1::Admin::Stub;

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(Rpc<Stub, Request, Response> rpc, const Request& request) {
    return CallOnce(servers_, {}, rpc, request);
  }

  ServerChannels servers_;
};

}  // namespace bucketd::client
