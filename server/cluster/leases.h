// What one replica does for all: a job's agreement, the computation of a plan. A lease is a record
// in the store that says who; it is taken by compare-and-set where nobody holds it, or whoever does
// has ended (membership.h). It has no time of its own: it lasts as long as its holder, or until it
// is given back. Leases save work and bring callers together; they keep nothing safe (store.h,
// ReplaceRecord, does). Thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "server/base/stripes.h"
#include "server/base/worker_pool.h"
#include "server/cluster/cluster_metrics.h"
#include "server/cluster/membership.h"
#include "server/cluster/replica_id.h"
#include "server/store/store.h"

namespace bucketd {

struct LeaseName {
  LeaseOf of = LeaseOf::kJob;
  std::string key;  // of a job or a plan, as it stands in the store

  friend auto operator<=>(const LeaseName&, const LeaseName&) = default;
};
LeaseName JobLease(absl::string_view tenant, absl::string_view job);
LeaseName PlanLease(absl::string_view plan_key);

struct Lease {
  ReplicaId holder;
  uint64_t term = 0;
  bool mine = false;
};

class Leases {
 public:
  // All outlive this.
  Leases(Store& store, Membership& membership, ClusterMetrics& metrics, Membership::Now now);
  ~Leases();  // Stop()s

  // Whether this one holds it, from memory.
  bool Holds(const LeaseName& name) const;
  // As Holds, and that counts as a use.
  bool Use(const LeaseName& name);
  size_t held(LeaseOf of) const;

  // Blocks on the store. What stands, once this one has taken what nobody holds. UNAVAILABLE: the
  // store cannot say. FAILED_PRECONDITION: nobody holds it, and this one takes nothing on: it
  // drains, or others may have ended it. `behind` has answers if it was read behind the lease that
  // stands; mostly both are one trip to the store. `is_others`: another one was found to hold it;
  // then that is read first, so that who asks again and again writes nothing.
  absl::StatusOr<Lease> Take(const LeaseName& name, ReadBehind* behind = nullptr,
                             bool is_others = false);
  // As it stands in the store, for whoever takes it away there together with something else, and
  // then says so. Nothing: this one does not hold it.
  std::optional<Record> RecordOf(const LeaseName& name) const;
  void GaveBack(const LeaseName& name);
  // Blocks on the store. Gives back all of that kind, and takes none any more.
  void HandOver(LeaseOf of);
  // On another thread, soon, unless it is taken once more until then.
  void ReleaseSoon(const LeaseName& name);
  // Blocks on the store. Gives back what it did not take when it was given back: others wait for
  // whoever holds a plan's.
  void GiveBackOwed();
  // Blocks on the store; one at a time. Gives back those of jobs that were not used for `idle`, and
  // takes away those of replicas that have ended, some at a time; none where others may have ended
  // this one.
  void Sweep(std::chrono::milliseconds idle);
  // What was to be released soon may not be. Before the store goes.
  void Stop();

 private:
  struct Held {
    uint64_t session = 0;  // of the membership
    uint64_t term = 0;     // as it stands in the store
    uint64_t taken = 0;    // another number with each Take()
    SteadyTime used;
  };

  static std::optional<LeaseName> NameIn(absl::string_view key);
  bool HoldsNow(const LeaseName& name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsOf(uint64_t session, const LeaseName& name) const;
  absl::Status MayTake(LeaseOf of) const;
  absl::StatusOr<Lease> TakeOnce(const LeaseName& name, ReadBehind* behind, bool is_others);
  struct Found {
    std::optional<std::string> value;
    bool put = false;      // by this call
    absl::Status refused;  // why it was not, though it was tried
  };
  absl::StatusOr<Found> Put(const LeaseName& name, ReadBehind* behind);
  absl::StatusOr<Found> Find(const LeaseName& name);
  absl::StatusOr<Lease> TakeFrom(const LeaseName& name, const std::optional<std::string>& value,
                                 const std::optional<Lease>& was);
  void Keep(const LeaseName& name, uint64_t session, uint64_t term);
  // Its term, if it was held.
  std::optional<uint64_t> Drop(const LeaseName& name);
  void Release(const LeaseName& name);
  void ReleaseNow(const LeaseName& name);  // REQUIRES: its stripe
  void Owe(const LeaseName& name);
  uint64_t TakenAs(const LeaseName& name) const;  // 0: it is not held
  absl::StatusOr<std::optional<std::string>> OwnRecord(const std::string& key);
  std::vector<LeaseName> HeldWhere(
      const std::function<bool(const LeaseName&, const Held&)>& fits) const;
  void SweepRecord(const Record& record);

  Store& store_;
  Membership& membership_;
  ClusterMetrics& metrics_;
  const Membership::Now now_;
  Stripes writing_;  // by the name's key, over what is read and then written
  mutable absl::Mutex mutex_;
  std::map<LeaseName, Held> held_ ABSL_GUARDED_BY(mutex_);
  uint64_t takes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<LeaseName> owed_ ABSL_GUARDED_BY(mutex_);
  std::array<bool, kLeaseKinds> handed_over_ ABSL_GUARDED_BY(mutex_) = {};
  std::string swept_;    // Sweep() goes on from it; one at a time
  WorkerPool releases_;  // last: what it runs uses the rest
};

}  // namespace bucketd
