// What jobs agreed on, kept beyond the process: a pin for each scope, one record for each job, and
// a hold on each pinned plan, so that no eviction takes it. Pins end when the job is released or
// when they have not been used for their time to live and somebody sweeps: until then they stand.
// Who sweeps goes by its own clock, so servers' clocks may differ by less than the time to live.
// Several servers may have the store open: each record is written, and taken away, only if it is
// still what was read. Thread-safe. Every call but the accessors may block on the store: never on a
// gRPC thread. (pins.cc; what counts, expires and makes room: pins_room.cc.)
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/base/digest.h"
#include "server/base/clock.h"
#include "server/base/stripes.h"
#include "server/jobs/agreement_metrics.h"
#include "server/jobs/machine/pin.h"
#include "server/jobs/pin_index.h"
#include "server/store/store.h"
#include "server/tenants/quotas.h"

namespace bucketd {

// What the ranks of a scope have agreed on, and what their job's generation is like.
struct Agreeing {
  JobName job;
  std::string scope;
  JobMemory memory;
  Pin pin;
  absl::string_view plan;  // its bytes
  bool unless_planning_is_off = false;
  Actor by;
};
struct Agreed {
  bool planning_is_off = false;        // nothing was written, as was asked for
  std::optional<JobMemory> elsewhere;  // nothing was written: the generation is like this
  std::optional<Pin> pin;              // else that stands
};

// Of a job and a scope, as somebody has read them just now: the values of Pins::NamesOf().
struct ScopeRecords {
  std::string scope;
  Store::Values values;
};

class Pins {
 public:
  // All outlive this but the last.
  Pins(Store& store, AgreementMetrics& metrics, Quotas& quotas,
       std::chrono::milliseconds time_to_live)
      : store_(store),
        metrics_(metrics),
        quotas_(quotas),
        time_to_live_(time_to_live),
        index_([&quotas](auto tenant) { return quotas.LimitOf(Quota::kPins, tenant); }) {}

  // Counts what is there and drops what has expired. Before the first call of anything else; errors
  // are the store's, and leave the pins that could not be read uncounted.
  absl::Status Open();

  // nullopt: there is none, or it is of a format that we do not know. Errors are the store's.
  struct Loaded {
    absl::StatusOr<std::optional<JobMemory>> job;
    absl::StatusOr<std::optional<Pin>> pin;
  };
  // With `records` the store is not asked.
  Loaded LoadScope(absl::string_view tenant, absl::string_view job, absl::string_view scope,
                   const ScopeRecords* records = nullptr);
  static std::vector<RecordName> NamesOf(absl::string_view tenant, absl::string_view job,
                                         absl::string_view scope);
  // The pinned plan's bytes, checked against the pin. NOT_FOUND or DATA_LOSS if they are lost.
  absl::StatusOr<std::string> LoadPlan(const Pin& pin);

  // ABORTED of both: the store knows of a later generation, which another server has seen. PutJob
  // returns what stands: of one generation the first word holds, on whether it is planned and on
  // what each name stands for; it is another one than `memory`'s if another server was first.
  absl::StatusOr<JobMemory> PutJob(absl::string_view tenant, absl::string_view job,
                                   const JobMemory& memory, const Actor& by);
  // The generation, the pin and its hold on the plan, in one transaction, and before it the plan if
  // the store has none: when this returns they survive the process. Of two servers that have the
  // store open the first one's pin holds for all.
  // Where the tenant's quota is used up, its weakest job makes room (pin_index.h), once the store
  // has been asked what other servers have released; QUOTA_USED_UP of both if there is none; else
  // errors are the store's.
  absl::StatusOr<Agreed> Agree(const Agreeing& what);

  // Keeps the job's pins until `expires` at least; how many there are. From the job's next use on
  // its usual time to live counts again.
  absl::StatusOr<int64_t> Extend(absl::string_view tenant, absl::string_view job, WallTime expires,
                                 const Actor& by);
  // Lets go of everything that is kept for the job; how many pins there were.
  absl::StatusOr<int64_t> Release(absl::string_view tenant, absl::string_view job, const Actor& by);
  // Takes away what has expired, and counts what other servers have pinned. O(pins).
  void DropExpired();

  // Another server has let go of everything that was kept for the job.
  void ForgetJob(absl::string_view tenant, absl::string_view job);

  // Those of which something is kept.
  std::vector<std::string> Jobs(absl::string_view tenant) const;

 private:
  struct Names {
    std::string job, pin;
  };
  using Value = std::optional<std::string>;
  struct Found {
    absl::StatusOr<Value> job, pin;
    bool planning_is_off = false;
  };
  // What is to be written over what was found.
  struct Draft {
    absl::StatusOr<Agreed> agreed;
    Changes changes;
  };
  Found Read(const Names& names);
  void See(const Names& names, const Found& found);
  Draft Over(const Found& found, const Names& names, const Agreeing& what) const;
  void Written(const RecordChange& change);
  absl::Status StorePlan(const Agreeing& what);
  // What a record was when it was last read or written here, so that it need not be read again to
  // be replaced. It may be something else by now.
  void See(const std::string& key, const Value& value);
  std::optional<Found> Seen(const Names& names) const;

  // -- REQUIRES of all that follow, down to Displace(): the tenant's writing_
  // Writes what `next` makes of the record that is there, though others write it, too. With the
  // line that it asks for: `what` "" is none.
  using Next = absl::FunctionRef<absl::StatusOr<std::string>(
      const std::optional<std::string>& before, AuditLine& line)>;
  absl::Status Update(const std::string& key, const Actor& by, Next next);
  // Counts what other servers have pinned and released of the tenant's, if that was long ago;
  // false: it was not. O(its pins).
  bool CountIfDue(absl::string_view tenant, bool has_room);
  void CountAgain(const std::string& prefix);
  // For a record that is new. Takes away a few at once where many are too many.
  absl::Status MakeRoom(absl::string_view tenant, const std::string& key, uint32_t ranks);
  absl::StatusOr<int64_t> ReleaseAll(const std::string& prefix, const Actor& by);
  bool IsAsCounted(const Record& record) const;
  // Unless another server has used the job since it was counted here.
  absl::Status Displace(const std::string& prefix);
  void Count(const std::string& key, WallTime expires, uint32_t ranks);
  // Unless it has another expiry than `expires` by now; nullopt: whatever it has.
  void Forget(const std::string& key, const std::optional<WallTime>& expires);
  void ForgetAll(const std::string& prefix);
  void EraseAll(const std::string& prefix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: it has gone meanwhile.
  absl::StatusOr<bool> ExtendRecord(const std::string& key, const std::string& holder,
                                    WallTime expires, const Actor& by);
  absl::Status Sweep();
  absl::Status SweepRecord(const Record& record);
  // ABORTED: it is another one by now.
  absl::Status EraseRecord(const Record& record, absl::string_view what, const Actor& by);
  WallTime Expiry() const;
  bool HasRoomForPlan(absl::string_view tenant, int64_t bytes) const;
  absl::Status Refused(Quota quota, absl::string_view tenant);
  // After the index has changed.
  void ShowUse(absl::string_view tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store& store_;
  AgreementMetrics& metrics_;
  Quotas& quotas_;
  const std::chrono::milliseconds time_to_live_;
  // By tenant, over each sequence of writes, which is as long as what is let go of is large; before
  // mutex_, and never held together with gRPC's threads.
  Stripes writing_;
  mutable absl::Mutex mutex_;
  struct Counted {
    SteadyTime at;        // for a pin or job that is new
    SteadyTime for_room;  // where there was none
  };
  std::map<std::string, Counted, std::less<>> counted_ ABSL_GUARDED_BY(mutex_);  // by tenant
  PinIndex index_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Value> seen_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
