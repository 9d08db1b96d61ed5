// What outlives the process: computed plans, holds that keep them, and small records (pins of jobs,
// cost profiles, settings). What the server knows of a store is this file and store_observer.h;
// open_store.cc alone names an engine.
//
// Every value carries a checksum and is compared with it when it is read. Absent, damaged and
// unreadable are three answers, never mixed up:
//   std::nullopt   there is no such value
//   DATA_LOSS      there was one and it is damaged; it has been taken away, so that the next read
//                  finds none. A setting stays: until it is written anew, what it said is unknown
//   UNAVAILABLE    the store cannot be read or written now; whether there is a value is unknown
//   RESOURCE_EXHAUSTED  (writes) no space; what was there before is untouched. What takes something
//                  away and what writes a setting has room where others have none any more
// A write that returned OK survives kill -9 of the process.
//
// Thread-safe. Every call may block on the disk: never on a gRPC thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "server/store/audit.h"

namespace bucketd {

// Records live on shelves; a key is unique on its shelf. kReplicas says which servers are up and
// what each of them has taken on: of no use to another store, so that scans and copies leave it
// out.
enum class Shelf { kPins = 1, kProfiles = 2, kCostSamples = 3, kSettings = 4, kReplicas = 5 };
inline constexpr std::array kShelves = {Shelf::kPins, Shelf::kProfiles, Shelf::kCostSamples,
                                        Shelf::kSettings};

// The setting that is there while planning is off. Its absence means something, too: in a store
// that has lost what it cannot name, it is damaged.
inline constexpr char kPlanningOffSetting[] = "planning-off";

struct Record {
  std::string key;
  std::string value;
};

// The first that comes after it.
std::string KeyBehind(absl::string_view key);

struct RecordName {
  Shelf shelf{};
  std::string key;
};

// What is written together: all of it or nothing.
struct RecordChange {
  RecordName record;
  std::optional<std::string> before;  // what it is expected to be, as ReplaceRecord does
  std::string after;
  AuditLine line;  // `what` "": none
};
struct PlanHeld {
  std::string key, holder;
  WallTime expires;
};
struct Changes {
  std::optional<RecordName> unless;  // this is there, or damaged
  std::optional<PlanHeld> hold;
  std::vector<RecordChange> records;  // of different names
};

// What stands under a name, and whether the call that says so has put it there.
struct Standing {
  std::string value;
  bool put = false;
};
// What is read behind something else, in the same trip.
struct ReadBehind {
  std::string plan_key;  // "": no plan
  std::vector<RecordName> names;
  // What GetPlan and GetRecords say. Empty: nothing was read.
  std::optional<absl::StatusOr<std::optional<std::string>>> plan;
  std::vector<absl::StatusOr<std::optional<std::string>>> values;

  void Forget() {
    plan.reset();
    values.clear();
  }
};

// A stored plan, without its bytes.
struct StoredPlan {
  std::string key;  // plan_key.h: the whole text
  std::string tenant;
  int64_t bytes = 0;
  WallTime created;
  WallTime used;  // exact to the minute
  bool held = false;
};

struct StoreStats {
  int64_t plans = 0;
  int64_t plan_bytes = 0;
  int64_t held_plans = 0;
  int64_t records = 0;
  int64_t file_bytes = 0;              // on disk, with the log
  std::optional<WallTime> oldest_use;  // of the plan that was used longest ago: what retention is
};

// Which plans to take away; a plan that is held stays whatever is asked.
struct PlanSelection {
  std::optional<std::string> tenant = {};
  std::optional<std::string> key = {};           // exactly this one
  std::optional<std::string> graph_digest = {};  // lower-case hex, 64 characters
  std::optional<WallTime> not_used_since = {};
};

struct PlanHold {
  std::string holder;
  WallTime expires;
};

// One value as a scan finds it. DATA_LOSS: damaged; then what is not known is empty.
struct ScannedValue {
  Shelf shelf{};     // of records
  std::string name;  // of plans the digest of the key in hexadecimal, of records the key
  std::string key, value;
  std::string tenant, graph_digest;  // of plans; the digest "" if the key has none
  std::vector<PlanHold> holds;       // of plans, in the order of their holders; expired ones too
  int64_t bytes = 0;                 // of key and value, as stored
  absl::Status status;
};
// Another status than OK ends the scan, and is what it returns.
using SeeValue = absl::FunctionRef<absl::Status(const ScannedValue&)>;

struct ScanResult {
  int64_t values = 0;
  int64_t damaged = 0;
  // Stretches of the index that cannot be read; how many values they hold is not known.
  int64_t unreadable_regions = 0;
};

class Store {
 public:
  virtual ~Store() = default;

  // Plans are the serialised bucketd.v1.Plan. A read counts as a use.
  virtual absl::StatusOr<std::optional<std::string>> GetPlan(absl::string_view key) = 0;
  // The plan was used without having been read: for who keeps plans in memory. Cheap; the store may
  // remember it late, or not at all.
  virtual void NoteUse(absl::string_view key) = 0;
  // Replaces what was there. Evicts by size and age as the store was told to.
  virtual absl::Status PutPlan(absl::string_view key, absl::string_view tenant,
                               absl::string_view plan) = 0;
  // PutPlan, and with it goes a record, if it is still this one. In one trip where the engine can.
  virtual absl::Status PutPlanAndErase(absl::string_view key, absl::string_view tenant,
                                       absl::string_view plan, Shelf shelf, const Record& record);

  // Until `expires`, or until the holder lets go, no eviction takes the plan. The same holder and
  // key again moves `expires`. NOT_FOUND if there is no such plan.
  virtual absl::Status HoldPlan(absl::string_view key, absl::string_view holder,
                                WallTime expires) = 0;
  // All holds of this holder; no error if there are none. They stay where a key on Shelf::kPins
  // begins with the holder's name: another server has pinned for it meanwhile.
  virtual absl::Status ReleaseHolds(absl::string_view holder) = 0;

  virtual absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                               absl::string_view key) = 0;
  // The same for whom a damaged one is none, as it is for ReplaceRecord.
  absl::StatusOr<std::optional<std::string>> FindRecord(Shelf shelf, absl::string_view key);
  using Values = std::vector<absl::StatusOr<std::optional<std::string>>>;
  // Each as GetRecord answers for it, in one go; they may have changed between each other.
  virtual Values GetRecords(absl::Span<const RecordName> names) {
    Values values;
    for (const RecordName& name : names) values.push_back(GetRecord(name.shelf, name.key));
    return values;
  }
  // With a line in the audit log, as all that take one: both are written or neither is, and no line
  // where nothing has changed. A log that is damaged does not keep what it is about from changing:
  // that is told to the observer.
  absl::Status PutRecord(Shelf shelf, absl::string_view key, absl::string_view value,
                         const AuditLine* line = nullptr) {
    return ChangeRecord(shelf, key, nullptr, value, line);
  }
  absl::Status EraseRecord(Shelf shelf, absl::string_view key, const AuditLine* line = nullptr) {
    return ChangeRecord(shelf, key, nullptr, std::nullopt, line);
  }
  // PutRecord, or for nullopt EraseRecord, if the value is still `before` (nullopt: there is none,
  // or a damaged one), whoever else has the store open. ABORTED: it is not, and nothing was
  // written; or it was erased by this call, whose answer the engine's link has lost once.
  absl::Status ReplaceRecord(Shelf shelf, absl::string_view key,
                             const std::optional<std::string>& before,
                             const std::optional<absl::string_view>& after,
                             const AuditLine* line = nullptr) {
    return ChangeRecord(shelf, key, &before, after, line);
  }
  // Any of the three; `before` null: whatever is there.
  virtual absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                                    const std::optional<std::string>* before,
                                    const std::optional<absl::string_view>& after,
                                    const AuditLine* line) = 0;
  // What stands once `value` is put where there is no record, or a damaged one; then reads what is
  // asked `behind` that. In one trip where the engine can. ABORTED: what was there has gone
  // meanwhile.
  virtual absl::StatusOr<Standing> PutIfAbsent(Shelf shelf, absl::string_view key,
                                               absl::string_view value,
                                               ReadBehind* behind = nullptr);
  // HoldPlan, and ReplaceRecord of each record, in one transaction. ABORTED: a record is not what
  // it was expected to be, `unless` is there, or there is no such plan; nothing was written.
  virtual absl::Status WriteTogether(const Changes& changes) = 0;
  // In key order, keys that start with `prefix`, at most `limit` from `from` on. Damaged ones are
  // left out and counted, so pages may be short: the list is over where a page is empty, and goes
  // on with KeyBehind the last of one.
  virtual absl::StatusOr<std::vector<Record>> ListRecords(Shelf shelf, absl::string_view prefix,
                                                          absl::string_view from,
                                                          int32_t limit) = 0;
  // All of them, by pages of so many. Another status than OK ends it, and is what it returns.
  absl::Status ForEachRecord(Shelf shelf, absl::string_view prefix, int32_t page,
                             absl::FunctionRef<absl::Status(const Record&)> see);

  // The most recently used first, at most `limit`.
  virtual absl::StatusOr<std::vector<StoredPlan>> ListPlans(const PlanSelection& selection,
                                                            int32_t limit) = 0;
  // How many went. `line` is written once for each transaction, and says how many after.
  virtual absl::StatusOr<int64_t> EvictPlans(const PlanSelection& selection,
                                             const AuditLine* line = nullptr) = 0;
  // Of the tenant's plans those used longest ago go until the rest takes at most `most` bytes, or
  // all that are left are held. What they take then.
  virtual absl::StatusOr<int64_t> KeepWithin(absl::string_view tenant, int64_t most) = 0;
  // Bytes of plans by tenant. O(plans).
  virtual absl::StatusOr<std::map<std::string, int64_t>> PlanBytes() = 0;
  virtual absl::StatusOr<StoreStats> Stats() = 0;
  // Every plan in the order of its key's digest, every record in key order, shelf by shelf, each
  // checked; what is written meanwhile may be seen or not. No use of a plan, and damage neither
  // ends a scan nor is taken away. `see` may not call the store.
  virtual absl::StatusOr<ScanResult> ScanPlans(SeeValue see) = 0;
  virtual absl::StatusOr<ScanResult> ScanRecords(SeeValue see) = 0;
  // The newest first, at most `limit`. Lines beyond the store's bounds go with its maintenance.
  virtual absl::StatusOr<std::vector<AuditEntry>> ListAudit(const AuditSelection& selection,
                                                            int32_t limit) = 0;
  // As they are, behind those that are there; without those whose id is there already. How many.
  virtual absl::StatusOr<int64_t> AddAudit(absl::Span<const AuditEntry> entries) = 0;
  // Another number than before once another process has written; whoever wants to notice that asks
  // again and again. Costs less than any read. Own writes may count too.
  virtual absl::StatusOr<int64_t> Version() = 0;
  // The process is about to end: whoever waits for an engine that does not answer fails in a
  // second, what is asked from now on has a second in all, and nothing is answered after five.
  virtual void Hurry() {}

 protected:
  // By GetPlan and GetRecords.
  void Fill(ReadBehind& behind);
};

}  // namespace bucketd
