// Replicas on one engine, the wires between them, and time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/graphs/graph_store.h"
#include "tests/server/simulation/engine.h"
#include "tests/server/simulation/history.h"
#include "tests/server/simulation/network.h"
#include "tests/server/simulation/node.h"
#include "tests/server/simulation/random.h"
#include "tests/server/simulation/threads.h"

namespace bucketd::simulation {

class World {
 public:
  World(uint64_t seed, int replicas, int traced_job = -1);
  // No replica runs any more.
  ~World() = default;

  Threads threads;
  Random random;
  History history;
  Engine engine;
  Network network;

  int replicas() const { return static_cast<int>(slots_.size()); }
  std::string AddressOf(int replica) const;
  // Null: it is not up, or takes no connections any more.
  Node* Serving(int replica) const;
  Node* Serving(const std::string& address) const;
  Node* NodeOf(const Process& process) const;  // null: it is gone
  // Of the replica, from its start to its end; null: it is down.
  Process* ProcessOf(int replica) const { return slots_[Index(replica)].process; }

  // ---- what happens to replicas
  void Start(int replica);
  // Its memory is lost; it starts again after a while, or not for `down` kNever.
  void Kill(int replica, Time down);
  void Kill(const Process& process, Time down);
  void Pause(Process& process, Time duration);
  // As on SIGTERM.
  void Drain(int replica, Time down);
  // And lets them end.
  void KillAll();

  // ---- calls of ranks
  // At that replica; `done` hears of it, whatever becomes of it.
  void Call(const RankCallPtr& call, int replica);
  // By whoever made it: nobody waits for its answer any more.
  void GiveUp(const RankCallPtr& call, int replica);
  // What a node says to it.
  void Answer(const Process& by, const RankCallPtr& call, const JobRoutes::Answer& answer);
  Subject RankOf(uint64_t call) const;
  uint64_t NewCall(const Subject& rank);

  // In the process's name: now, or when it goes on.
  void Deliver(Process& process, std::function<void()> run);
  Time ComputeTime();
  GraphPtr GraphOf(const Digest& digest) const { return graphs_.at(digest); }
  void AddGraph(const Digest& digest, GraphPtr graph) { graphs_[digest] = std::move(graph); }

 private:
  struct Slot {
    Process* process = nullptr;
    std::unique_ptr<Node> node;
    bool serving = false;
    bool ending = false;                    // somebody ends it already
    std::map<uint64_t, RankCallPtr> calls;  // that it may not have answered
  };
  static size_t Index(int replica) { return static_cast<size_t>(replica); }
  int ReplicaOf(const Process& process) const;
  void End(int replica, Time down);
  void Silent(Process& process);
  void BreakCalls(int replica, const char* why);

  bool over_ = false;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<Subject> ranks_;  // by call
  std::map<Digest, GraphPtr> graphs_;
};

}  // namespace bucketd::simulation
