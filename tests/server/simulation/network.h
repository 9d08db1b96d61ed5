// The wires between replicas: messages take a while, and are lost or late where a wire is cut. As
// with TCP, what a cut outlasts breaks on both sides, and what it does not arrives when it is over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "server/rpc/peer_calls.h"
#include "tests/server/simulation/threads.h"

namespace bucketd::simulation {

class World;
class Peers;
struct Wire;

class Network {
 public:
  explicit Network(World& world) : world_(world) {}

  // The calls of a process to the others.
  std::unique_ptr<PeerCalls> Connect(Process& process);
  // Of two addresses, both ways.
  void Cut(const std::string& a, const std::string& b, Time until);
  // All its connections break.
  void Died(const Process& process);
  Time Delay();

 private:
  friend class Peers;
  friend struct Wire;

  Time CutUntil(const std::string& a, const std::string& b) const;
  // When a message that is sent now arrives; never: the connection breaks first.
  Time Arrival(const std::string& a, const std::string& b);
  void Send(const std::shared_ptr<Wire>& wire, v1::ForwardRequest request, Time deadline);
  void Reply(const std::shared_ptr<Wire>& wire, absl::StatusOr<v1::ForwardReply> reply);
  // Whoever serves it hears that nobody waits any more.
  void CancelThere(const std::shared_ptr<Wire>& wire);
  void Break(const std::shared_ptr<Wire>& wire, const char* why, Time when);

  World& world_;
  uint64_t last_id_ = 0;
  std::map<std::pair<std::string, std::string>, Time> cuts_;
  std::map<uint64_t, std::shared_ptr<Wire>> wires_;  // under way
};

}  // namespace bucketd::simulation
