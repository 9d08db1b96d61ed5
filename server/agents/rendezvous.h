// Ranks of a group meet: proto/agent.proto without the wire. In memory only: a server that starts
// again has forgotten who met; epochs.h sees to it that its next epochs are above those before.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "server/base/shares.h"
#include "server/base/timers.h"
#include "server/base/worker_pool.h"

namespace bucketd {

struct RendezvousLimits {
  uint32_t max_size = 16'384;
  size_t max_groups = 4'096;
  size_t max_endpoint_bytes = 256;
  size_t max_agrees_bytes = 64;
  size_t max_calls = 131'072;  // that wait for their group or watch an epoch
};

class Rendezvous {
 public:
  struct Call {
    std::string tenant, group;
    uint32_t rank = 0, size = 0;
    std::string endpoint, agrees;
    Shares::Path share = {};  // ShareOf whoever calls
  };
  struct Met {
    uint64_t epoch = 0;
    std::string token;
    std::vector<std::string> endpoints;  // by rank
    // The answer, made once by whoever needs it first: one for each of thousands of ranks, each as
    // long as all their endpoints, would take gigabytes.
    mutable std::once_flag encoded_once;
    mutable std::string encoded;
  };
  struct Epoch {
    std::string tenant, group;
    uint64_t number = 0;
    Shares::Path share = {};  // of who watches it
  };
  struct Fate {
    bool over = false;
    std::string why;
  };
  using OnMet = std::function<void(const absl::StatusOr<std::shared_ptr<const Met>>&)>;
  using OnFate = std::function<void(const absl::StatusOr<Fate>&)>;
  using Id = uint64_t;  // of a call that waits; 0: it has been answered

  // `timers` outlives this. `next_epoch` gives no number twice and does not block. `displaced`, if
  // any, hears of each group and each call that gave way to another one's.
  Rendezvous(Timers& timers, std::function<uint64_t()> next_epoch, RendezvousLimits limits = {},
             std::function<void()> displaced = nullptr);
  ~Rendezvous();

  // Each callback runs once, on the thread of whatever ended the wait, or on one of its own where
  // many hear of the same, and never after Cancel has returned true.
  Id Join(const Call& call, SteadyTime deadline, OnMet done);
  Id Watch(const Epoch& epoch, SteadyTime deadline, const OnFate& done);
  // An epoch that is over stays as it ended.
  absl::Status End(const Epoch& epoch, uint32_t rank, const std::string& why);
  // The server shuts down: DRAINING to all that wait and all that call from now on.
  void BeginDrain();
  // The caller went away. True: it had been waiting, and its callback will not run.
  bool Cancel(Id id);

 private:
  struct Waiter {
    Id id = 0;
    SteadyTime deadline;
    OnMet done;
    std::string endpoint;
  };
  struct Group {
    uint32_t size = 0;
    std::string agrees;
    std::map<uint32_t, Waiter> waiting;  // by rank
    std::set<uint32_t> gave_up;          // ranks that waited with these until their deadline
    uint64_t epoch = 0;                  // the last one; 0: none yet
    uint32_t epoch_size = 0;
    bool over = false;
    std::string why;
    std::map<Id, OnFate> watchers;  // of `epoch`
    Id number = 0;
    Shares::Path share;        // of whoever made its first call
    uint64_t spare_since = 0;  // 0: somebody waits or watches
  };
  using Key = std::pair<std::string, std::string>;  // tenant, group
  // Of a waiter or watcher.
  struct Place {
    Key group;
    uint32_t rank = 0;  // of a waiter
    Shares::Path share;
    Timers::Id timer = 0;
  };
  using Later = std::vector<std::function<void()>>;  // run without the lock

  absl::Status Check(const Call& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where there is no room, whoever has most gives way (base/shares.h).
  absl::StatusOr<Group*> FindOrMake(const Key& key, const Shares::Path& share, Later& later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Id> WatchLocked(const Epoch& epoch, SteadyTime deadline, const OnFate& done,
                                 Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoomForCall(const Shares::Path& share, Later& later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Id Enter(const Key& group, uint32_t rank, const Shares::Path& share, SteadyTime deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: it waits or watches.
  void LetCallGo(Id id, const absl::Status& why, Later& later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All that is known of it but its entry.
  void Erase(Group& group, const absl::Status& why, Later& later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(Group& group, const absl::Status& why, Later& later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetWatcherGo(Group& group, Id id, const absl::StatusOr<Fate>& fate, Later& later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After somebody has come or gone.
  void Touch(Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckAgainst(const Group& group, const Call& call) const;
  absl::StatusOr<Id> JoinLocked(const Call& call, SteadyTime deadline, const OnMet& done,
                                Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dismiss(Waiter& waiter, const absl::StatusOr<std::shared_ptr<const Met>>& answer,
               Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Meet(Group& group, Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked(Group& group, std::string why, Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TimeOut(Id id);
  void LetDueGo(Group& group, Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Missing(const Group& group) const;
  void Run(Later later);

  Timers& timers_;
  const std::function<uint64_t()> next_epoch_;
  const RendezvousLimits limits_;
  const std::function<void()> displaced_;
  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_use_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, Group> groups_ ABSL_GUARDED_BY(mutex_);
  std::map<Id, Key> by_number_ ABSL_GUARDED_BY(mutex_);  // groups
  Shares group_places_ ABSL_GUARDED_BY(mutex_);
  Shares call_places_ ABSL_GUARDED_BY(mutex_);
  std::map<Id, Place> where_ ABSL_GUARDED_BY(mutex_);  // calls
  WorkerPool answers_;                                 // last: what it runs uses the rest
};

}  // namespace bucketd
