// What happened in a simulated world, and what must be true of it whatever went wrong: checked as
// it happens, each in constant time. A digest of all of it says whether two runs were the same one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

#include "tests/server/simulation/threads.h"

namespace bucketd::simulation {

// Whose rank or scope it is; of an event that is nobody's, job -1.
struct Subject {
  int job = -1;
  uint64_t generation = 0;
  int scope = 0;
  int rank = -1;
};

class History {
 public:
  // All events of job `traced` and of nobody are printed.
  History(Threads& threads, int traced) : threads_(threads), traced_(traced) {}

  // `what` is a literal.
  void Note(const char* what, const Subject& about, uint64_t value = 0);
  void Wrong(const Subject& about, const std::string& what);
  // "": all was well. The first thing that was not, with the last events of its job and of nobody.
  const std::string& wrong() const { return wrong_; }
  uint64_t digest() const { return digest_; }
  uint64_t events() const { return events_; }

  // ---- ranks
  // Asked first; a rank that asks again tells it once.
  void Asked(const Subject& rank);
  // `value`: as ValueOf says.
  void Agreed(const Subject& rank, const std::string& value);
  // By the agreement of this process, which keeps to what it said whatever the store says later.
  void Decided(const Subject& scope, const Process& where, const std::string& value);
  // "" : nobody was told anything.
  std::string AgreedOf(const Subject& scope) const;
  // Before `from` nobody could have been told that planning was off; after `until` it was on again.
  void SwitchedOff(Time from) { off_since_ = from; }
  void SwitchedOn() { off_since_ = kNever; }

  // ---- where calls wait
  // A call that speaks for a rank waits for the others there. The number is the same wherever the
  // call is.
  void Present(uint64_t call, const Subject& rank, const Process& where);
  void Absent(uint64_t call, const Process& where);
  void Ended(uint64_t call) {
    if (ended_.size() <= call) ended_.resize(call + 1);
    ended_[call] = true;
  }
  // Every five seconds: each rank is present once, and none of a call that has ended; for longer
  // than anything that breaks lasts.
  void CheckPresence();

  // ---- the store
  void Leased(const std::string& key, const std::string& holder, uint64_t incarnation);
  void Unleased(const std::string& key);
  // Says of itself that it holds it: then the store does, too.
  void Holds(const Subject& about, const std::string& key, const std::string& holder,
             uint64_t incarnation);
  void Pinned(const std::string& key, uint64_t generation, const std::string& sha256);
  void Unpinned(const std::string& key) { pins_.erase(key); }
  // Something that this process asked the store failed.
  void StoreFailed(const Process& of) { store_failed_ = failed_of_[&of] = threads_.now(); }
  bool StoreFailedSince(Time time) const { return store_failed_ >= time; }

  // ---- computations
  // Begins. `leased`: by whoever has the plan's lease. So there is one of a plan, and one more for
  // each that was in vain: whoever computed died, was taken for dead or could not save it. Without
  // the lease only whoever could not ask for it computes, and those are counted apart.
  void Computes(const std::string& key, const Process& where, bool leased);
  // Has ended, whatever came of it.
  void Computed(const std::string& key, const Process& where) { running_.erase({key, &where}); }
  void Saved(const std::string& key);
  int64_t computations() const { return computations_; }
  int64_t unleased() const { return unleased_; }
  int64_t plans() const { return plans_; }
  int64_t unplanned() const { return unplanned_; }
  const std::map<std::string, std::string>& acknowledged() const { return acknowledged_; }

 private:
  struct Event {
    Time at;
    const char* what;
    Subject about;
    int process;
    uint64_t value;
  };
  using Generation = std::pair<int, uint64_t>;
  struct Holder {
    std::string address;
    uint64_t incarnation = 0;
  };
  struct Pin {
    uint64_t generation = 0;
    std::string sha256;
  };
  struct Computation {
    const Process* where = nullptr;
    Time began{};
    bool saved = false;
  };
  struct Presence {
    Subject rank;
    std::vector<const Process*> where;
  };

  bool WasInTrouble(const Process& process, Time since) const;
  void Mix(uint64_t value);
  static std::string InWords(const Event& event);
  std::deque<Event>& LastOf(int job) { return last_[job]; }

  Threads& threads_;
  const int traced_;
  uint64_t digest_ = 0xcbf29ce484222325;
  uint64_t events_ = 0;
  std::string wrong_;
  std::map<int, std::deque<Event>> last_;
  std::map<std::tuple<int, uint64_t, int>, std::string> agreed_;
  std::map<std::tuple<int, int, uint64_t, int>, std::string> decided_;
  std::map<Generation, Time> began_;
  Time off_since_ = kNever;
  std::unordered_map<uint64_t, Presence> present_;
  std::unordered_map<uint64_t, int> suspects_;  // calls that were wrong in so many looks
  std::vector<bool> ended_;                     // by call
  std::unordered_map<std::string, Holder> leases_;
  std::unordered_map<std::string, Pin> pins_;
  Time store_failed_{-1};
  std::unordered_map<const Process*, Time> failed_of_;  // when it last found that
  std::unordered_map<std::string, Computation> computing_;
  std::set<std::pair<std::string, const Process*>> running_;
  int64_t computations_ = 0;
  int64_t unleased_ = 0;
  int64_t plans_ = 0;
  int64_t unplanned_ = 0;
  std::map<std::string, std::string> acknowledged_;  // by plan key the SHA-256
};

}  // namespace bucketd::simulation
