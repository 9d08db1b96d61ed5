// The connections to the servers of one address (addresses.h), and what is known of each.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/addresses.h"
#include "client/channel.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace bucketd::v1 {
class GetCapabilitiesResponse;
}

namespace bucketd::client {

// Until `end`; 0 once it is over.
std::chrono::milliseconds Left(std::chrono::steady_clock::time_point end);

// To one server. Thread-safe.
class ServerChannel {
 public:
  ServerChannel(const ServerAddress& server, const ChannelOptions& options);

  const std::string& target() const { return target_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // A cheap call that any server answers; one that drains says so. With a deadline in `context`.
  grpc::Status Ping(grpc::ClientContext& context);

  // Somebody answered, whatever the answer.
  void Answered();
  // It drains or is gone: others are asked first for a while, `least` or more; for a second the
  // first time, and up to half a minute.
  void Leave(std::chrono::milliseconds least);
  // Answered, and not left since.
  bool met() const { return met_; }
  // For how long others are still asked first.
  std::chrono::milliseconds Aside() const;

  // What the client made of its capabilities; null: it did not ask yet.
  std::shared_ptr<const v1::GetCapabilitiesResponse> capabilities() const;
  void Remember(const v1::GetCapabilitiesResponse& capabilities);

 private:
  const std::string target_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::atomic<bool> met_{false};
  mutable std::mutex mutex_;
  std::chrono::steady_clock::time_point aside_until_{};
  int times_aside_ = 0;
  std::shared_ptr<const v1::GetCapabilitiesResponse> capabilities_;
};

using ServerList = std::vector<std::shared_ptr<ServerChannel>>;

// As LookUp (addresses.h).
using LookUpName = std::function<absl::StatusOr<std::vector<ServerAddress>>(
    const std::string&, std::chrono::milliseconds)>;

// All of them: those that the address lists, or stood for when it was looked up last. Of one that
// it stands for no more nothing is kept; its connection ends with the last call to it. They share
// what watches the files of TLS. Thread-safe.
class ServerChannels {
 public:
  // Never fails and does not connect. Where there are several, gRPC repeats no call: there is
  // another server to ask.
  ServerChannels(std::string address, const ChannelOptions& options, LookUpName look_up = LookUp);

  const std::string& address() const { return address_; }
  // Whether the address names one server, which then may come and go.
  bool one() const { return one_; }
  // Whether InOrder would look nothing up.
  bool names_known();

  // In the order of addresses.h, within `patience` whatever the resolver does. INVALID_ARGUMENT
  // where the address is invalid, UNAVAILABLE where it is a name that nobody knows until then.
  // Names are looked up again after `names_hold`; that takes a second at most, and what they stood
  // for holds where it takes longer.
  absl::StatusOr<ServerList> InOrder(absl::string_view about, std::chrono::milliseconds patience,
                                     std::chrono::milliseconds names_hold = kNamesHold);

  static constexpr std::chrono::milliseconds kNamesHold{30'000};

 private:
  absl::StatusOr<std::vector<ServerAddress>> LookUpAgain(const std::string& name,
                                                         std::chrono::milliseconds patience,
                                                         std::chrono::milliseconds hold);

  std::shared_ptr<ServerChannel> NewChannel(const ServerAddress& server);  // with the lock

  const std::string address_;
  const absl::StatusOr<std::vector<std::string>> entries_;
  const bool one_;
  const LookUpName look_up_;
  std::mutex mutex_;
  ChannelOptions options_;
  std::map<std::string, std::shared_ptr<ServerChannel>> channels_;  // by target
  struct Known {
    std::chrono::steady_clock::time_point when{};
    std::vector<ServerAddress> servers;
  };
  std::map<std::string, Known> names_;
};

// Those of whom nothing bad is known, in their order; then the others, by when they may be back.
ServerList Preferred(ServerList servers);

// Asks servers in turn, one of whom nothing bad is known first, until one answers. None takes the
// time of the others. Looks names up again meanwhile: `servers` may be others then. UNAVAILABLE
// where nobody answered within `patience`: what each of them said.
absl::StatusOr<std::shared_ptr<ServerChannel>> FindOneOfSeveral(ServerChannels& channels,
                                                                absl::string_view about,
                                                                std::chrono::milliseconds patience,
                                                                ServerList& servers);

}  // namespace bucketd::client
