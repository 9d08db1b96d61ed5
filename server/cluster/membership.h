// Which replicas are up. Each writes a record into the store they share and makes its number grow;
// who has not seen it grow for `dead_after`, by a clock of its own, takes the record away, if it is
// still the same: that is that replica's end, for all and for itself. So no two machines' clocks
// are ever compared, and whoever's record stands has lost nothing that it holds (leases.h). Time
// during which the store could not be read does not count: nobody could have been seen to live.
//
// A replica that could not write for somewhat less than `dead_after` has lapsed: others may have
// ended it without its knowing. That costs work at most; what must not happen twice is guarded
// where it is written (store.h, ReplaceRecord). Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/base/digest.h"
#include "server/base/clock.h"
#include "server/cluster/replica_id.h"
#include "server/store/store.h"

namespace bucketd {

// kSilent: it may be about to end.
enum class ReplicaState { kServing, kDraining, kSilent };
inline constexpr size_t kReplicaStates = static_cast<size_t>(ReplicaState::kSilent) + 1;
absl::string_view Name(ReplicaState state);

struct ReplicaView {
  ReplicaId id;
  ReplicaState state = ReplicaState::kServing;
  std::chrono::milliseconds unmoved{0};  // how long its number has not been seen to grow
  bool self = false;
};

// How one replica sees all of them: for operators.
struct ClusterView {
  std::vector<ReplicaView> replicas;  // it too, in the order of their addresses
  int64_t job_leases = 0;             // that it holds
  int64_t plan_leases = 0;
  std::string trouble;  // why it takes nothing on; "": it does
};

class Membership {
 public:
  using Now = std::function<SteadyTime()>;
  // `store` outlives this. `dead_after` is the same on all replicas.
  Membership(Store& store, ReplicaId self, std::chrono::milliseconds dead_after, Now now);

  // How often to Beat().
  std::chrono::milliseconds period() const { return dead_after_ / 5; }
  const ReplicaId& self() const { return self_; }

  // The following block on the store.
  // Writes that this one lives, then looks at the others and ends those that are dead. Errors are
  // the store's; ALREADY_EXISTS: a later server has taken this address, and this one takes nothing
  // on any more.
  absl::Status Beat();
  // Whether that process has ended, for all: it left, was started anew, or was found dead.
  absl::StatusOr<bool> IsGone(const ReplicaId& id);
  // The last word of a server that ends: what it holds is free. No Beat() behind it says otherwise.
  void Leave();

  // From the next Beat() on the others know.
  void BeginDrain();
  // Others may have taken, or may take, what this one holds.
  bool lapsed() const;
  // Another number whenever this one was ended and is back: what it held before is to be asked for
  // again.
  uint64_t session() const;
  // Why this one takes nothing on; "": it does.
  std::string Trouble() const;
  // Who is set up to find others dead after another time than this one; "": nobody.
  std::string Mismatch() const;
  // A later server has this one's address, which this one was not about to leave: it takes nothing
  // on again.
  bool superseded() const;
  // As last seen, this one too, in the order of their addresses.
  std::vector<ReplicaView> List() const;
  // Whom the thing of that name belongs to where the store cannot say: the same on all replicas
  // that have last seen the same others.
  ReplicaId HashedOwner(absl::string_view name) const;
  // Whose it were if this one did not count. Nothing: there is no other.
  std::optional<ReplicaId> HashedOther(absl::string_view name) const;

 private:
  struct Seen {
    uint64_t incarnation = 0;
    bool draining = false;
    uint32_t dead_ms = 0;
    SteadyTime since;   // `value` was seen first
    std::string value;  // the record, which each beat makes another one
  };

  absl::Status Renew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(beating_);
  absl::Status Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(beating_);
  void See(const Record& record, SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDead(const Seen& seen, SteadyTime now) const { return now - seen.since > dead_after_; }
  std::pair<std::optional<ReplicaId>, Digest> HighestOther(absl::string_view name) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool Lapsed(SteadyTime now) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  Store& store_;
  const ReplicaId self_;
  const std::chrono::milliseconds dead_after_;
  const Now now_;
  absl::Mutex beating_ ABSL_ACQUIRED_BEFORE(mutex_);  // over the store
  mutable absl::Mutex mutex_;
  std::optional<std::string> written_ ABSL_GUARDED_BY(beating_);  // the record as last seen or left
  bool was_ended_ ABSL_GUARDED_BY(beating_) = true;  // and has not got word of a new one yet
  uint64_t beat_ ABSL_GUARDED_BY(beating_) = 0;
  bool left_ ABSL_GUARDED_BY(beating_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool superseded_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t session_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<SteadyTime> renewed_ ABSL_GUARDED_BY(mutex_);  // the last Renew() began then
  SteadyTime looked_ ABSL_GUARDED_BY(mutex_);
  std::string error_ ABSL_GUARDED_BY(mutex_);                   // of the last Beat
  std::map<std::string, Seen> others_ ABSL_GUARDED_BY(mutex_);  // by address
};

}  // namespace bucketd
