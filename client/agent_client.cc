#include "client/agent_client.h"

#include <utility>

#include "client/channel.h"
#include "client/unary_call.h"

namespace bucketd::client {
namespace {

using Stub = v1::Agents::Stub;

constexpr std::chrono::seconds kShortCall{15};

}  // namespace

AgentClient::AgentClient(std::string address, const ClientTls& tls)
    : address_(std::move(address)),
      stub_(v1::Agents::NewStub(MakeChannel(address_, ChannelOptions{.tls = tls}))) {}

// A context that was cancelled before its call begins ends it as it begins.
template <typename Rpc, typename Request>
auto AgentClient::Wait(const char* name, Rpc rpc, const Request& request,
                       std::chrono::milliseconds patience) {
  grpc::ClientContext context;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.insert(&context);
    if (stopped_) context.TryCancel();
  }
  auto response = UnaryCalls<Stub>{*stub_, address_, patience}.Make(name, rpc, request, context);
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(&context);
  return response;
}

absl::StatusOr<v1::RendezvousResponse> AgentClient::Rendezvous(const v1::RendezvousRequest& request,
                                                               std::chrono::milliseconds patience) {
  return Wait("Rendezvous", &Stub::Rendezvous, request, patience);
}

absl::StatusOr<v1::WatchEpochResponse> AgentClient::WatchEpoch(const v1::WatchEpochRequest& request,
                                                               std::chrono::milliseconds patience) {
  return Wait("WatchEpoch", &Stub::WatchEpoch, request, patience);
}

absl::StatusOr<v1::EndEpochResponse> AgentClient::EndEpoch(const v1::EndEpochRequest& request) {
  return UnaryCalls<Stub>{*stub_, address_, kShortCall}.Make("EndEpoch", &Stub::EndEpoch, request);
}

void AgentClient::StopWaiting() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  for (grpc::ClientContext* context : waiting_) context->TryCancel();
}

}  // namespace bucketd::client
