#include "client/cost_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/once_call.h"
#include "grpcpp/client_context.h"

#include "passes/base/status_macros.h"

namespace bucketd::client {
namespace {

using Stub = v1::CostProfiles::Stub;

constexpr size_t kBatch = 1000;

grpc::Status SendAll(grpc::ClientContext& context, const std::shared_ptr<grpc::Channel>& channel,
                     const v1::ReportHeader& header, absl::Span<const v1::CollectiveSample> samples,
                     v1::ReportCostsResponse& response) {
  const auto writer = Stub(channel).ReportCosts(&context, &response);
  v1::ReportCostsRequest message;
  *message.mutable_header() = header;
  bool open = writer->Write(message);
  while (open && !samples.empty()) {
    const absl::Span<const v1::CollectiveSample> batch =
        samples.first(std::min(samples.size(), kBatch));
    samples.remove_prefix(batch.size());
    v1::SampleBatch& out = *message.mutable_batch();
    out.clear_samples();
    for (const v1::CollectiveSample& sample : batch) *out.add_samples() = sample;
    open = writer->Write(message);  // false: the server has answered already
  }
  writer->WritesDone();
  return writer->Finish();
}

}  // namespace

CostClient::CostClient(std::string address, const ClientTls& tls,
                       std::chrono::milliseconds deadline)
    : servers_(std::move(address), ChannelOptions{.tls = tls}), deadline_(deadline) {}

absl::StatusOr<v1::ListProfilesResponse> CostClient::List(const std::string& name) {
  v1::ListProfilesRequest request;
  request.set_name(name);
  return CallOnce(servers_, {.deadline = deadline_}, &Stub::ListProfiles, request);
}

absl::StatusOr<v1::GetProfileResponse> CostClient::Get(const std::string& spec) {
  v1::GetProfileRequest request;
  request.set_profile(spec);
  return CallOnce(servers_, {.deadline = deadline_}, &Stub::GetProfile, request);
}

absl::StatusOr<v1::ImportProfileResponse> CostClient::Import(
    const v1::ImportProfileRequest& request) {
  return CallOnce(servers_, {.deadline = deadline_}, &Stub::ImportProfile, request);
}

absl::StatusOr<v1::ProposeProfileResponse> CostClient::Propose(const std::string& name) {
  v1::ProposeProfileRequest request;
  request.set_name(name);
  return CallOnce(servers_, {.deadline = deadline_}, &Stub::ProposeProfile, request);
}

absl::StatusOr<v1::PromoteProfileResponse> CostClient::Promote(const std::string& name,
                                                               uint32_t version) {
  v1::PromoteProfileRequest request;
  request.set_name(name);
  request.set_version(version);
  return CallOnce(servers_, {.deadline = deadline_}, &Stub::PromoteProfile, request);
}

absl::StatusOr<v1::RollbackProfileResponse> CostClient::Rollback(const std::string& name) {
  v1::RollbackProfileRequest request;
  request.set_name(name);
  return CallOnce(servers_, {.deadline = deadline_}, &Stub::RollbackProfile, request);
}

absl::StatusOr<v1::ReportCostsResponse> CostClient::Report(
    const v1::ReportHeader& header, absl::Span<const v1::CollectiveSample> samples) {
  v1::ReportCostsResponse response;
  const auto send = [&](grpc::ClientContext& context,
                        const std::shared_ptr<grpc::Channel>& channel) {
    return SendAll(context, channel, header, samples, response);
  };
  // Reporters spread over the servers.
  const OnceOptions once{.deadline = deadline_,
                         .about = absl::StrCat("report/", header.reporter())};
  RETURN_IF_ERROR(CallOnce(servers_, once, "ReportCosts", send));
  return response;
}

}  // namespace bucketd::client
