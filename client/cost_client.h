// The CostProfiles service of a running server, as calls that always end by their deadline. Errors
// as FromRpc (channel.h) makes them. Nothing is repeated: a report sent twice would be held twice,
// and the rest is what people do and watch.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client_tls.h"
#include "client/server_channel.h"

#include "proto/cost_service.grpc.pb.h"

namespace bucketd::client {

// Thread-safe.
class CostClient {
 public:
  // As addresses.h says; of several servers the first that answers is asked. Connects at the first
  // call.
  explicit CostClient(std::string address, const ClientTls& tls = {},
                      std::chrono::milliseconds deadline = std::chrono::seconds(15));

  absl::StatusOr<v1::ListProfilesResponse> List(const std::string& name);
  // `spec` as plan requests name a profile.
  absl::StatusOr<v1::GetProfileResponse> Get(const std::string& spec);
  absl::StatusOr<v1::ImportProfileResponse> Import(const v1::ImportProfileRequest& request);
  // One stream; samples travel in batches.
  absl::StatusOr<v1::ReportCostsResponse> Report(const v1::ReportHeader& header,
                                                 absl::Span<const v1::CollectiveSample> samples);
  absl::StatusOr<v1::ProposeProfileResponse> Propose(const std::string& name);
  absl::StatusOr<v1::PromoteProfileResponse> Promote(const std::string& name, uint32_t version);
  absl::StatusOr<v1::RollbackProfileResponse> Rollback(const std::string& name);

 private:
  ServerChannels servers_;
  const std::chrono::milliseconds deadline_;
};

}  // namespace bucketd::client
