// A socket ring whose ranks are threads of one process.
#pragma once

#include <array>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "gpu_agent/comm/ring.h"

namespace bucketd::agent {

inline std::vector<std::unique_ptr<Communicator>> RingOfThreads(int ranks) {
  std::vector<RingPeers> peers(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<int, 2> pair{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) != 0) {
      std::abort();
    }
    RingPeers& here = peers[static_cast<size_t>(rank)];
    here.rank = rank;
    here.size = ranks;
    here.transport = "unix sockets";
    here.right = Fd(pair[0]);
    peers[static_cast<size_t>((rank + 1) % ranks)].left = Fd(pair[1]);
  }
  std::vector<std::unique_ptr<Communicator>> ring;
  for (RingPeers& here : peers) {
    ring.push_back(RingCommunicator::Create(std::move(here), {}).value());
  }
  return ring;
}

}  // namespace bucketd::agent
