// The engine that all replicas share, SQLite in memory, and the way to it: calls take virtual time,
// it may be away or slow, for one replica or for all, a commit's outcome may stay unknown, and a
// process may die or stop at any call, before it or when it is done and nobody has been told.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "server/store/sqlite_store.h"
#include "server/store/store.h"
#include "tests/server/simulation/history.h"
#include "tests/server/simulation/random.h"
#include "tests/server/simulation/threads.h"

namespace bucketd::simulation {

class Engine {
 public:
  Engine(Threads& threads, History& history, uint64_t seed);

  std::unique_ptr<Store> Connect(Process& process);
  // As it is, at once.
  Store& store() { return *store_; }

  // Until then nobody reaches it, or this address does not, or all wait long.
  void Away(Time until) { away_until_ = until; }
  void Away(const std::string& address, Time until) { away_from_[address] = until; }
  void Slow(Time until) { slow_until_ = until; }
  // In percent, of writes.
  void LoseOutcomes(int64_t percent) { lost_outcomes_ = percent; }
  // Called before each call of a process and when it is done; the process may be dead afterwards.
  enum class Moment { kBefore, kAfter };
  using Trap = std::function<void(Process&, const char* call, Moment)>;
  void SetTrap(Trap trap) { trap_ = std::move(trap); }
  // Called before a process asks for these.
  using SeeChanges = std::function<void(Process&, const Changes&)>;
  void SeeEach(SeeChanges see) { see_ = std::move(see); }

 private:
  friend class EngineClient;

  Time Latency();
  bool IsAway(const Process& process) const;
  // What a write has left.
  void Wrote(Shelf shelf, const std::string& key, const std::optional<std::string>& value);

  Threads& threads_;
  History& history_;
  Random random_;
  Process machine_;  // whose clock it has
  std::unique_ptr<SqliteStore> store_;
  int64_t version_ = 1;
  Time away_until_{0}, slow_until_{0};
  std::unordered_map<std::string, Time> away_from_;
  int64_t lost_outcomes_ = 0;
  Trap trap_;
  SeeChanges see_;
};

}  // namespace bucketd::simulation
