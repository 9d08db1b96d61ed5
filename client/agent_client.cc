#include "client/agent_client.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/once_call.h"

#include "passes/base/status_macros.h"

namespace bucketd::client {
namespace {

using Stub = v1::Agents::Stub;

template <typename Request>
std::string GroupOf(const Request& request) {
  return absl::StrCat("group/", request.tenant(), "/", request.group());
}

}  // namespace

AgentClient::AgentClient(std::string address, const ClientTls& tls)
    : servers_(std::move(address), ChannelOptions{.tls = tls}) {}

// A context that was cancelled before its call begins ends it as it begins.
Attempt AgentClient::Stoppable(Attempt attempt) {
  return [this, attempt = std::move(attempt)](grpc::ClientContext& context,
                                              const std::shared_ptr<grpc::Channel>& channel) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.insert(&context);
      if (stopped_) context.TryCancel();
    }
    grpc::Status status = attempt(context, channel);
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.erase(&context);
    return status;
  };
}

std::string AgentClient::MetAt(const std::string& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return met_at_[group];
}

absl::StatusOr<v1::RendezvousResponse> AgentClient::Rendezvous(const v1::RendezvousRequest& request,
                                                               std::chrono::milliseconds patience) {
  v1::RendezvousResponse response;
  const std::string group = GroupOf(request);
  std::string asked;
  RETURN_IF_ERROR(CallOnce(servers_, {.deadline = patience, .about = group, .meets = true},
                           "Rendezvous", Stoppable(Unary(&Stub::Rendezvous, request, response)),
                           &asked));
  const std::lock_guard<std::mutex> lock(mutex_);
  met_at_[group] = asked;
  return response;
}

absl::StatusOr<v1::WatchEpochResponse> AgentClient::WatchEpoch(const v1::WatchEpochRequest& request,
                                                               std::chrono::milliseconds patience) {
  v1::WatchEpochResponse response;
  const std::string group = GroupOf(request);
  RETURN_IF_ERROR(CallOnce(servers_, {.deadline = patience, .about = group, .only = MetAt(group)},
                           "WatchEpoch", Stoppable(Unary(&Stub::WatchEpoch, request, response))));
  return response;
}

absl::StatusOr<v1::EndEpochResponse> AgentClient::EndEpoch(const v1::EndEpochRequest& request) {
  const std::string group = GroupOf(request);
  return CallOnce(servers_, {.about = group, .only = MetAt(group)}, &Stub::EndEpoch, request);
}

void AgentClient::StopWaiting() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  for (grpc::ClientContext* context : waiting_) context->TryCancel();
}

}  // namespace bucketd::client
