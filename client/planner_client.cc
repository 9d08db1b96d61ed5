#include "client/planner_client.h"

#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/channel.h"
#include "client/errors.h"
#include "client/retrying_client.h"
#include "client/watched_call.h"

#include "passes/base/status_macros.h"
#include "proto/planner.grpc.pb.h"

namespace bucketd::client {
namespace {

using std::chrono::steady_clock;
using Time = RetryingClient::Time;
using Stub = v1::Planner::Stub;

constexpr uint32_t kGraphFormatVersion = 1;
constexpr int kAsks = 5;    // for the graph, during one GetPlan
constexpr int kBreaks = 4;  // of an upload in a row without a byte of progress

ChannelOptions ChannelFor(const ClientOptions& options) {
  // A broken upload goes on where it stopped, which gRPC cannot know.
  return {.retried = {"bucketd.v1.Planner"},
          .not_retried = {"bucketd.v1.Planner/UploadGraph"},
          .own_connection = options.own_connection,
          .tls = options.tls};
}

// MAJOR.MINOR.PATCH; what is no number counts as 0.
std::array<int, 3> Version(absl::string_view text) {
  std::array<int, 3> version{};
  size_t i = 0;
  for (const absl::string_view part : absl::StrSplit(text, '.')) {
    if (i == version.size() || !absl::SimpleAtoi(part, &version[i])) break;
    ++i;
  }
  return version;
}

absl::Status ProtocolError(absl::string_view message) {
  return MakeError(absl::StatusCode::kInternal, kProtocol, message);
}

// A graph in the form in which it travels.
struct Payload {
  v1::Codec codec = v1::CODEC_UNSPECIFIED;
  std::string data;
  int64_t size = 0;
  Digest sha256{};
};

absl::StatusOr<Payload> Pack(std::string plain, const v1::GetCapabilitiesResponse& service) {
  const auto size = static_cast<int64_t>(plain.size());
  if (service.max_graph_bytes() > 0 && size > service.max_graph_bytes()) {
    return MakeError(absl::StatusCode::kResourceExhausted, "GRAPH_TOO_LARGE",
                     absl::StrCat("the graph takes ", size, " bytes, the service accepts ",
                                  service.max_graph_bytes()));
  }
  Payload payload{.codec = v1::CODEC_UNSPECIFIED, .data = {}, .size = size, .sha256 = {}};
  payload.sha256 = Sha256(plain);
  const auto& codecs = service.codecs();
  if (std::find(codecs.begin(), codecs.end(), v1::CODEC_ZSTD) == codecs.end()) {
    payload.data = std::move(plain);
    return payload;
  }
  payload.codec = v1::CODEC_ZSTD;
  payload.data.resize(ZSTD_compressBound(plain.size()));
  const size_t packed =
      ZSTD_compress(payload.data.data(), payload.data.size(), plain.data(), plain.size(), 1);
  if (ZSTD_isError(packed) != 0) return ProtocolError(ZSTD_getErrorName(packed));
  payload.data.resize(packed);
  return payload;
}

v1::GetPlanRequest RequestFor(const std::string& tenant, const PlanQuery& query) {
  v1::GetPlanRequest request;
  request.set_tenant(tenant);
  request.set_graph_digest(std::string(AsBytes(query.digest)));
  *request.mutable_mesh() = query.mesh;
  *request.mutable_options() = query.options;
  request.set_client_version(kClientVersion);
  if (!query.job.has_value()) return request;
  v1::Job& job = *request.mutable_job();
  job.set_id(query.job->id);
  job.set_generation(query.job->generation);
  job.set_scope(query.job->scope);
  for (const uint32_t rank : query.job->ranks) job.add_rank(rank);
  job.set_size(query.job->size);
  job.set_fresh(query.job->fresh);
  return request;
}

// One GetPlan: what is asked, of whom, until when.
struct Asking {
  absl::StatusOr<PlanReply> GetPlan(const PlanQuery& query);
  // Of the server that the route leads to now.
  absl::StatusOr<v1::GetCapabilitiesResponse> Capabilities();
  absl::StatusOr<PlanReply> Check(v1::PlanReply& reply) const;
  // Puts a small graph into the request, and sends a large one.
  absl::Status Hand(const v1::GetCapabilitiesResponse& service);
  absl::Status Upload(int64_t chunk_bytes);
  absl::Status Send(int64_t chunk_bytes, int64_t from, bool& gone);
  absl::StatusOr<v1::QueryUploadResponse> Query();

  RetryingClient& calls;
  Route route;
  const Time until;
  v1::GetPlanRequest request;
  std::optional<Payload> payload = {};  // once the service wants the graph
};

absl::StatusOr<PlanReply> Asking::GetPlan(const PlanQuery& query) {
  std::string asked;  // who was asked, and how often
  for (int asks = 0; asks < kAsks;) {
    RETURN_IF_ERROR(Capabilities().status());
    v1::GetPlanResponse answer;
    RETURN_IF_ERROR(calls.Call(route, "GetPlan", until, Unary(&Stub::GetPlan, request, answer)));
    if (answer.has_plan()) {
      return Check(*answer.mutable_plan());
    }
    if (answer.has_unplanned()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, kUnplanned, answer.unplanned().why());
    }
    if (!answer.has_graph_required()) break;
    asks = route.target() == asked ? asks + 1 : 1;
    asked = route.target();
    ASSIGN_OR_RETURN(const v1::GetCapabilitiesResponse service, Capabilities());
    if (!payload.has_value()) {
      ASSIGN_OR_RETURN(std::string plain, query.graph());
      ASSIGN_OR_RETURN(payload, Pack(std::move(plain), service));
    }
    RETURN_IF_ERROR(Hand(service));
  }
  return ProtocolError(absl::StrCat(route.target(), " gave no plan for graph ",
                                    ToHex(query.digest).substr(0, 12), " in ", kAsks, " answers"));
}

absl::StatusOr<v1::GetCapabilitiesResponse> Asking::Capabilities() {
  if (route.server() != nullptr) {
    if (const auto known = route.server()->capabilities()) return *known;
  }
  v1::GetCapabilitiesResponse answer;
  RETURN_IF_ERROR(
      calls.Call(route, "GetCapabilities", until, Unary(&Stub::GetCapabilities, {}, answer)));
  if (Version(answer.min_client_version()) > Version(kClientVersion)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CLIENT_TOO_OLD",
                     absl::StrCat(route.target(), " (version ", answer.server_version(),
                                  ") wants clients of version ", answer.min_client_version(),
                                  " or later, this is ", kClientVersion));
  }
  if (answer.graph_format_version() != kGraphFormatVersion) {
    return ProtocolError(absl::StrCat(route.target(), " reads graphs of format ",
                                      answer.graph_format_version(), ", this client writes ",
                                      kGraphFormatVersion));
  }
  route.server()->Remember(answer);
  return answer;
}

absl::StatusOr<PlanReply> Asking::Check(v1::PlanReply& reply) const {
  PlanReply checked{
      .plan = std::move(*reply.mutable_plan()), .sha256 = {}, .source = reply.source()};
  checked.sha256 = Sha256(checked.plan);
  if (AsBytes(checked.sha256) == absl::string_view(reply.plan_sha256())) return checked;
  return ProtocolError(absl::StrCat("the plan from ", route.target(), " is damaged: SHA-256 ",
                                    ToHex(checked.sha256), " is not what was announced"));
}

absl::Status Asking::Send(int64_t chunk_bytes, int64_t from, bool& gone) {
  v1::UploadGraphResponse answer;
  const auto attempt = [&](grpc::ClientContext& context,
                           const std::shared_ptr<grpc::Channel>& channel) {
    const auto writer = Stub(channel).UploadGraph(&context, &answer);
    v1::UploadGraphRequest message;
    v1::UploadHeader& header = *message.mutable_header();
    header.set_tenant(request.tenant());
    header.set_graph_digest(request.graph_digest());
    header.set_codec(payload->codec);
    header.set_size(payload->size);
    header.set_content_sha256(std::string(AsBytes(payload->sha256)));
    header.set_resume_offset(from);
    bool open = writer->Write(message);  // false: the service has answered, or is gone
    for (auto at = static_cast<size_t>(from); open && at < payload->data.size();
         at += static_cast<size_t>(chunk_bytes)) {
      message.set_chunk(payload->data.substr(at, static_cast<size_t>(chunk_bytes)));
      open = writer->Write(message);
    }
    writer->WritesDone();
    return writer->Finish();
  };
  calls.CountUpload(from > 0);
  RETURN_IF_ERROR(calls.Once(route, "UploadGraph", until, attempt, gone));
  if (answer.graph_digest() == request.graph_digest()) return absl::OkStatus();
  return ProtocolError(absl::StrCat(route.target(), " stored another graph than was sent"));
}

absl::StatusOr<v1::QueryUploadResponse> Asking::Query() {
  v1::QueryUploadRequest question;
  question.set_tenant(request.tenant());
  question.set_graph_digest(request.graph_digest());
  question.set_codec(payload->codec);
  question.set_content_sha256(std::string(AsBytes(payload->sha256)));
  v1::QueryUploadResponse answer;
  RETURN_IF_ERROR(
      calls.Call(route, "QueryUpload", until, Unary(&Stub::QueryUpload, question, answer)));
  return answer;
}

absl::Status Asking::Upload(int64_t chunk_bytes) {
  int64_t from = 0;
  bool may_resume = true;
  for (int breaks = 0;;) {
    bool gone = false;
    const absl::Status sent = Send(chunk_bytes, from, gone);
    if (sent.ok()) return sent;
    if (calls.Obey(route, sent, "UploadGraph", until)) continue;
    if (!gone) {
      // What was held may be of other bytes, or be held no more: once more, from the start.
      if (from == 0) return sent;
      from = 0;
      may_resume = false;
      continue;
    }
    if (++breaks > kBreaks) return sent;
    RETURN_IF_ERROR(calls.AwaitReturn(route, "UploadGraph", until, sent));
    calls.Pause(breaks, until);
    ASSIGN_OR_RETURN(const v1::QueryUploadResponse held, Query());
    if (held.present()) return absl::OkStatus();
    const int64_t committed = held.committed_size();
    if (!may_resume || committed < 0 || committed > static_cast<int64_t>(payload->data.size())) {
      from = 0;
      continue;
    }
    if (committed > from) breaks = 0;
    from = committed;
  }
}

absl::Status Asking::Hand(const v1::GetCapabilitiesResponse& service) {
  if (static_cast<int64_t>(payload->data.size()) > service.max_inline_graph_bytes()) {
    const int64_t chunk_bytes = service.max_chunk_bytes() > 0 ? service.max_chunk_bytes() : 1 << 20;
    request.clear_graph();
    return Upload(chunk_bytes);
  }
  v1::GraphData& graph = *request.mutable_graph();
  graph.set_codec(payload->codec);
  graph.set_size(payload->size);
  graph.set_data(payload->data);
  return absl::OkStatus();
}

}  // namespace

struct PlannerClient::Impl {
  Impl(const std::string& address, const ClientOptions& options)
      : tenant(options.tenant), calls(address, options, ChannelFor(options)) {}

  const pid_t pid = getpid();
  const std::string tenant;
  RetryingClient calls;
};

PlannerClient::PlannerClient(const std::string& address, const ClientOptions& options)
    : impl_(std::make_unique<Impl>(address, options)) {}

PlannerClient::~PlannerClient() = default;

absl::StatusOr<PlanReply> PlannerClient::GetPlan(const PlanQuery& query) {
  const Time until = steady_clock::now() + query.deadline;
  if (getpid() != impl_->pid) {
    return absl::FailedPreconditionError(
        "this client was made before a fork: the child needs one of its own");
  }
  RetryingClient& calls = impl_->calls;
  Route route = query.job.has_value()
                    ? calls.NewRoute(absl::StrCat("job/", impl_->tenant, "/", query.job->id),
                                     /*meets=*/true)
                    : calls.NewRoute(absl::StrCat("graph/", ToHex(query.digest)));
  return Asking{calls, std::move(route), until, RequestFor(impl_->tenant, query)}.GetPlan(query);
}

ClientCounters PlannerClient::counters() const { return impl_->calls.counters(); }

}  // namespace bucketd::client
