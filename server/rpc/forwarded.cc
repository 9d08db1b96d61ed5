#include "server/rpc/forwarded.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/errors.h"
#include "server/rpc/plan_source.h"
#include "server/rpc/ranks_call.h"
#include "server/rpc/request_bytes.h"

namespace bucketd {
namespace {

// Of a field of so many bytes.
std::string HeaderOf(int field, size_t size) {
  using Format = google::protobuf::internal::WireFormatLite;
  std::string header;
  google::protobuf::io::StringOutputStream stream(&header);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(Format::MakeTag(field, Format::WIRETYPE_LENGTH_DELIMITED));
  out.WriteVarint64(size);
  out.Trim();
  return header;
}

}  // namespace

absl::StatusOr<RanksCall> ReadForwarded(const v1::ForwardRequest& request) {
  v1::GetPlanRequest message;
  if (!message.ParseFromString(request.request())) {
    return MakeError(Reason::kRequestMalformed, "not a serialised GetPlanRequest");
  }
  ASSIGN_OR_RETURN(RanksCall call, ReadRanksCall(message));
  const v1::ForwardedCaller& caller = request.caller();
  call.asker = {
      .peer = caller.host(),
      .by = {caller.name(), caller.host(), caller.tenant()},
      .tenant_is_known = caller.tenant_is_known(),
      .call = {caller.request_id(), caller.trace_id(), caller.span_id(), caller.parent_span_id()}};
  return call;
}

v1::ForwardReply ForwardReplyOf(const std::optional<JobRoutes::Answer>& answer,
                                const std::optional<ReplicaId>& holder) {
  v1::ForwardReply reply;
  if (!answer.has_value()) {
    v1::Moved& moved = *reply.mutable_moved();
    if (holder.has_value()) {
      moved.set_holder(holder->address);
      moved.set_incarnation(holder->incarnation);
    }
  } else if (!answer->ok()) {
    reply.set_error(SerializeRpcStatus(answer->status()));
  } else if ((*answer)->reply != nullptr) {
    const PlanReply& plan = *(*answer)->reply;
    v1::PlanReference& reference = *reply.mutable_plan();
    reference.set_key(plan.key);
    reference.set_plan_sha256(std::string(AsBytes(plan.plan_sha256)));
    reference.set_source(SourceOf((*answer)->outcome));
  } else if ((*answer)->outcome == PlanOutcome::kUnplanned) {
    reply.mutable_unplanned()->set_why((*answer)->unplanned);
  } else {
    reply.mutable_graph_required()->set_upload_lease_ms((*answer)->upload_lease_ms);
  }
  return reply;
}

PlanReplyPtr PlanBeside(const std::optional<JobRoutes::Answer>& answer, bool with_plan) {
  if (!answer.has_value() || !answer->ok()) return nullptr;
  return with_plan || !(*answer)->is_kept ? (*answer)->reply : nullptr;
}

// A message's field that comes in two parts is one for whoever parses it.
grpc::ByteBuffer BytesOf(const v1::ForwardReply& reply, const PlanReplyPtr& plan) {
  if (plan == nullptr) return ToBytes(reply);
  const absl::string_view bytes = PlanBytesOf(*plan);
  const std::string field = HeaderOf(v1::PlanReference::kPlanFieldNumber, bytes.size());
  const grpc::Slice slices[] = {
      absl::StrCat(reply.SerializeAsString(),
                   HeaderOf(v1::ForwardReply::kPlanFieldNumber, field.size() + bytes.size()),
                   field),
      Share(plan, bytes)};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace bucketd
