#include "client/cost_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "grpcpp/client_context.h"

namespace bucketd::client {
namespace {

using Stub = v1::CostProfiles::Stub;

constexpr size_t kBatch = 1000;

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

CostClient::CostClient(std::string address, std::chrono::milliseconds deadline)
    : address_(std::move(address)),
      deadline_(deadline),
      stub_(v1::CostProfiles::NewStub(MakeChannel(address_, ChannelOptions{}))) {}

#define BUCKETD_CALL(name, request)                                                     \
  Call{*stub_, address_, deadline_, #name}.Make<v1::name##Request, v1::name##Response>( \
      &Stub::name, request)

absl::StatusOr<v1::ListProfilesResponse> CostClient::List(const std::string& name) {
  v1::ListProfilesRequest request;
  request.set_name(name);
  return BUCKETD_CALL(ListProfiles, request);
}

absl::StatusOr<v1::GetProfileResponse> CostClient::Get(const std::string& spec) {
  v1::GetProfileRequest request;
  request.set_profile(spec);
  return BUCKETD_CALL(GetProfile, request);
}

absl::StatusOr<v1::ImportProfileResponse> CostClient::Import(
    const v1::ImportProfileRequest& request) {
  return BUCKETD_CALL(ImportProfile, request);
}

absl::StatusOr<v1::ProposeProfileResponse> CostClient::Propose(const std::string& name) {
  v1::ProposeProfileRequest request;
  request.set_name(name);
  return BUCKETD_CALL(ProposeProfile, request);
}

absl::StatusOr<v1::PromoteProfileResponse> CostClient::Promote(const std::string& name,
                                                               uint32_t version) {
  v1::PromoteProfileRequest request;
  request.set_name(name);
  request.set_version(version);
  return BUCKETD_CALL(PromoteProfile, request);
}

absl::StatusOr<v1::RollbackProfileResponse> CostClient::Rollback(const std::string& name) {
  v1::RollbackProfileRequest request;
  request.set_name(name);
  return BUCKETD_CALL(RollbackProfile, request);
}

#undef BUCKETD_CALL

absl::StatusOr<v1::ReportCostsResponse> CostClient::Report(
    const v1::ReportHeader& header, absl::Span<const v1::CollectiveSample> samples) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline_);
  v1::ReportCostsResponse response;
  const auto writer = stub_->ReportCosts(&context, &response);
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
  const grpc::Status status = writer->Finish();
  if (status.ok()) return response;
  return FromRpc(status, absl::StrCat("ReportCosts at ", address_));
}

}  // namespace bucketd::client
