#include "client/agent_client.h"

#include <utility>

#include "client/channel.h"
#include "client/unary_call.h"

namespace bucketd::client {
namespace {

using Stub = v1::Agents::Stub;

constexpr std::chrono::seconds kShortCall{15};

}  // namespace

AgentClient::AgentClient(std::string address)
    : address_(std::move(address)),
      stub_(v1::Agents::NewStub(MakeChannel(address_, ChannelOptions{}))) {}

absl::StatusOr<v1::RendezvousResponse> AgentClient::Rendezvous(const v1::RendezvousRequest& request,
                                                               std::chrono::milliseconds patience) {
  return UnaryCalls<Stub>{*stub_, address_, patience}.Make("Rendezvous", &Stub::Rendezvous,
                                                           request);
}

absl::StatusOr<v1::WatchEpochResponse> AgentClient::WatchEpoch(const v1::WatchEpochRequest& request,
                                                               std::chrono::milliseconds patience) {
  return UnaryCalls<Stub>{*stub_, address_, patience}.Make("WatchEpoch", &Stub::WatchEpoch,
                                                           request);
}

absl::StatusOr<v1::EndEpochResponse> AgentClient::EndEpoch(const v1::EndEpochRequest& request) {
  return UnaryCalls<Stub>{*stub_, address_, kShortCall}.Make("EndEpoch", &Stub::EndEpoch, request);
}

}  // namespace bucketd::client
