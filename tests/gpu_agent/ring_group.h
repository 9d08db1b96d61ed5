// Rings whose ranks are streams of this process.
#pragma once

#include <memory>
#include <string>

#include "gpu_agent/comm/ring_connect.h"
#include "tests/gpu_agent/communicator_factory.h"
#include "tests/temp_folder.h"

namespace bucketd::agent {

inline constexpr char kTestToken[] = "a token of the tests, 32 bytes..";

inline RingConnectOptions TestRing(const std::string& folder, int rank, int size, bool tcp) {
  return {.self = {.group = "dp", .epoch = 7, .rank = rank, .size = size},
          .token = kTestToken,
          .unix_folder = tcp ? "" : folder,
          .tcp_interface = tcp ? "127.0.0.1" : "",
          .deadline = absl::Now() + absl::Minutes(1)};
}

class RingGroup final : public CommunicatorGroup {
 public:
  RingGroup(const GroupOptions& options, bool tcp, RingOrder order = RingOrder::kNccl)
      : options_(options), tcp_(tcp), order_(order) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Make(int rank) override {
    auto rendezvous = FolderRendezvous::Open(folder_.path());
    if (!rendezvous.ok()) return rendezvous.status();
    auto peers = ConnectRing(TestRing(folder_.path(), rank, options_.size, tcp_), **rendezvous);
    if (!peers.ok()) return peers.status();
    return RingCommunicator::Create(
        *std::move(peers),
        {.timeout = options_.timeout, .max_segment = options_.max_segment, .order = order_});
  }

 private:
  const GroupOptions options_;
  const bool tcp_;
  const RingOrder order_;
  TempFolder folder_;
};

}  // namespace bucketd::agent
