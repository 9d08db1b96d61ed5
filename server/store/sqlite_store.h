// The store as a SQLite database in a folder, for one machine. Several processes may have one
// folder open: during a rolling restart the new server reads what the old one still writes.
//
// README.md describes the files, what is checked when, and what each kind of damage leads to.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/base/status_macros.h"
#include "server/store/acknowledged.h"
#include "server/store/audit_trim.h"
#include "server/store/reserve.h"
#include "server/store/sqlite_db.h"
#include "server/store/store.h"
#include "server/store/store_observer.h"

namespace bucketd {

struct SqliteStoreOptions : StoreOptions {
  std::string directory = {};  // made if absent; "": in memory, gone with the store
  // How long a write waits for another process's.
  std::chrono::milliseconds busy_timeout{1000};
  int64_t max_pages = 0;      // of the file, a hard bound; 0: none
  int64_t reserve_bytes = 0;  // reserve.h; 0: on a full disk nothing can be taken away
  int32_t page_size = 4096;   // of a store that is made; small ones make small test files
};

class SqliteStore final : public Store {
 public:
  //   NOT_FOUND            (read-only) there is no store
  //   FAILED_PRECONDITION  another program's file, a later version's store, no folder
  //   DATA_LOSS            what every access needs is damaged
  //   UNAVAILABLE, RESOURCE_EXHAUSTED  as for every call
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(SqliteStoreOptions options);
  ~SqliteStore() override;  // writes what is pending, ends the log

  absl::StatusOr<std::optional<std::string>> GetPlan(absl::string_view key) override;
  absl::Status PutPlan(absl::string_view key, absl::string_view tenant,
                       absl::string_view plan) override;
  absl::Status HoldPlan(absl::string_view key, absl::string_view holder, WallTime expires) override;
  absl::Status ReleaseHolds(absl::string_view holder) override;
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf, absl::string_view key) override;
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override;
  absl::Status WriteTogether(const Changes& changes) override;
  absl::StatusOr<std::vector<Record>> ListRecords(Shelf shelf, absl::string_view prefix,
                                                  absl::string_view from, int32_t limit) override;
  absl::StatusOr<std::vector<StoredPlan>> ListPlans(const PlanSelection& selection,
                                                    int32_t limit) override;
  absl::StatusOr<int64_t> EvictPlans(const PlanSelection& selection,
                                     const AuditLine* line = nullptr) override;
  absl::StatusOr<int64_t> KeepWithin(absl::string_view tenant, int64_t most) override;
  absl::StatusOr<std::map<std::string, int64_t>> PlanBytes() override;
  absl::StatusOr<StoreStats> Stats() override;
  absl::StatusOr<ScanResult> ScanPlans(SeeValue see) override;
  absl::StatusOr<ScanResult> ScanRecords(SeeValue see) override;
  absl::StatusOr<std::vector<AuditEntry>> ListAudit(const AuditSelection& selection,
                                                    int32_t limit) override;
  absl::StatusOr<int64_t> AddAudit(absl::Span<const AuditEntry> entries) override;
  absl::StatusOr<int64_t> Version() override;

  // Memory only; written by Maintain().
  void NoteUse(absl::string_view key) override;
  // Writes uses, lets holds run out, evicts by age and size, merges the log into the database.
  // O(what there is to do).
  absl::Status Maintain();

  // SQLite's own check of all structures: lines for people, none if all is well; at most `limit`.
  absl::StatusOr<std::vector<std::string>> CheckStructure(int32_t limit);
  // That were acknowledged and are gone, as was found when the store was opened.
  int64_t lost_commits() const { return lost_commits_; }

 private:
  // Plans and records differ in their tables alone. Parameters: ?1 the shelf (0 for plans), ?2 the
  // key of the index (for plans the digest of the key).
  struct Sql {
    const char* read;        // checksum, key, value, used; of records 0 for used
    const char* locate;      // value, bytes
    const char* read_value;  // ?1 value: all of it
    const char* put_value;   // ?1 value, ?2 key, ?3 bytes
    const char* drop_value;  // ?1 value
    const char* list;  // ?1 shelf, ?2 first key, ?3 limit: key of the index, tenant, graph, bytes
  };
  static const Sql kPlanSql, kRecordSql;
  struct Row {
    std::string key, value;
    int64_t used = 0;
  };
  struct Location {  // where a value is, as the index says
    int64_t value = 0;
    int64_t bytes = 0;
  };
  struct Victim {
    std::string hash;
    Location at;
    bool readable = true;  // else its value stays behind, unreachable
  };

  explicit SqliteStore(SqliteStoreOptions options) : options_(std::move(options)) {}
  absl::Status Connect();
  absl::Status ConnectWithReserve();
  absl::Status FindLostCommits(const Acknowledged::Content& promised);
  absl::Status MarkLost(const std::vector<Acknowledged::Entry>& keys, int64_t last_commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  bool TakeLost(int64_t shelf, absl::string_view index_key, bool keep);
  WallTime Now() const { return options_.clock(); }
  int64_t NowMillis() const { return MsOf(Now()); }

  // What a reader of the index is told: damage there is no damaged value.
  static absl::Status IndexError(const absl::Status& status);
  // DATA_LOSS: the value is damaged; UNAVAILABLE: the index is, or anything else is wrong.
  absl::StatusOr<std::optional<Row>> ReadRow(const Sql& sql, int64_t shelf,
                                             absl::string_view index_key);
  // Counts, and takes away what is damaged.
  absl::StatusOr<std::optional<Row>> GetRow(const Sql& sql, int64_t shelf,
                                            absl::string_view index_key, absl::string_view key);
  absl::Status ForgetDamaged(const Sql& sql, int64_t shelf, absl::string_view index_key,
                             absl::string_view key);
  static absl::StatusOr<std::optional<Location>> Locate(SqliteDb& db, const Sql& sql, int64_t shelf,
                                                        absl::string_view index_key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(db.mutex());
  absl::StatusOr<std::optional<Location>> Locate(const Sql& sql, int64_t shelf,
                                                 absl::string_view index_key);
  // Reads it whole: to delete a value, SQLite must be able to.
  bool IsReadable(const Sql& sql, int64_t value);
  struct Selected {
    Victim victim;
    StoredPlan plan;
  };
  absl::StatusOr<std::vector<Selected>> Select(const PlanSelection& selection, int64_t limit,
                                               bool held_too);
  absl::Status Scan(const Sql& sql, int64_t shelf, SeeValue see, ScanResult& result);
  absl::Status ListFrom(const Sql& sql, int64_t shelf, absl::string_view from,
                        std::vector<ScannedValue>& found);
  absl::Status ShowValue(const Sql& sql, int64_t shelf, ScannedValue value, SeeValue see,
                         ScanResult& result);
  absl::StatusOr<std::vector<PlanHold>> HoldsOf(absl::string_view hash);

  // What a transaction does, with the connection's lock.
  using Change = absl::FunctionRef<absl::Status(SqliteDb&)>;
  // What the acknowledgement is about: 0 and the digest of a plan's key, or a Shelf and a key.
  using About = std::pair<int64_t, absl::string_view>;
  // One transaction. Counted. On a full disk the reserve is there for what makes room, and for
  // settings.
  enum class Room { kDisk, kReserve };
  absl::Status Write(absl::Span<const About> about, Room room, Change change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  // Of one statement, which makes room.
  template <typename... Args>
  absl::Status WriteOne(const char* sql, const Args&... args)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    return Write({}, Room::kReserve, [&](SqliteDb& db) {
      db.mutex().AssertHeld();
      return db.Run(sql, args...);
    });
  }
  absl::StatusOr<int64_t> CommitInReserve(Change change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  // `change` may be made again from the start.
  absl::StatusOr<int64_t> Commit(Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::StatusOr<int64_t> CommitOnce(SqliteDb& db, Change change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_, db.mutex());
  absl::Status StillThere(SqliteDb& db) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(db.mutex());
  // Behind one that has waited in vain for another process nobody waits as long, until one is let
  // in: all writes stand in one line.
  absl::Status Begin(SqliteDb& db) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_, db.mutex());

  // Write, and the lines with it.
  using Lines = std::vector<const AuditLine*>;
  absl::Status WriteAudited(absl::Span<const About> about, Room room, const Lines& lines,
                            Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status AddLine(SqliteDb& db, const AuditEntry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(db.mutex());
  absl::Status AddAuditTable();
  absl::Status TrimAudit();
  absl::Status EraseAuditBefore(int64_t oldest);
  absl::StatusOr<std::vector<AuditCount>> CountAudit();
  absl::StatusOr<std::vector<AuditLineAt>> AuditLinesBefore(int64_t number, int32_t limit);
  absl::Status EraseAudit(const std::vector<int64_t>& numbers);

  bool IsStill(int64_t shelf, absl::string_view key, const std::optional<std::string>& expected);
  // A record that is to be written, as it was found.
  struct Target {
    int64_t shelf = 0;
    absl::string_view key;
    absl::StatusOr<std::optional<Location>> at;
    bool readable = false;
  };
  Target Find(int64_t shelf, absl::string_view key);
  // Each write has an id of its own: it is the value that was found.
  static absl::StatusOr<bool> IsThere(SqliteDb& db, const Target& target)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(db.mutex());
  static absl::Status PutValue(SqliteDb& db, const Target& target,
                               const std::optional<absl::string_view>& value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(db.mutex());
  static absl::Status PutHold(SqliteDb& db, absl::string_view key, absl::string_view holder,
                              WallTime expires) ABSL_EXCLUSIVE_LOCKS_REQUIRED(db.mutex());

  // Those used longest ago, until they have that many bytes; of a tenant's or of all.
  absl::StatusOr<std::vector<Victim>> OldestPlans(
      int64_t bytes, int64_t used_before, absl::string_view except,
      const std::optional<std::string>& tenant = std::nullopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::StatusOr<std::vector<Victim>> MakeRoom(int64_t coming, const std::optional<Location>& old,
                                               absl::string_view hash)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::StatusOr<bool> DropPlan(SqliteDb& db, const Victim& victim, bool even_held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(db.mutex());
  absl::Status Evict(std::vector<Victim> victims, const AuditLine* line, int64_t& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status FlushUses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status DropExpiredHolds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);

  absl::Status EvictOld();
  absl::Status Checkpoint();
  void StartMaintenance();
  bool WaitForWork(const std::stop_token& stop, std::chrono::steady_clock::time_point next);
  void MaintainForEver(const std::stop_token& stop);
  static int LogGrew(void* store, sqlite3* db, const char* name, int pages);
  // The one number of the one row.
  template <typename... Args>
  absl::StatusOr<int64_t> Number(const char* sql, const Args&... args) {
    const absl::MutexLock lock(&reader_->mutex());
    Statement row = reader_->Query(sql, args...);
    RETURN_IF_ERROR(row.Step().status());
    return row.Int(0);
  }

  SqliteStoreOptions options_;
  // A reader waits neither for a writer's fsync nor for a checkpoint. In memory there is one
  // connection for all.
  std::unique_ptr<SqliteDb> writer_, own_reader_, checkpointer_;
  SqliteDb* reader_ = nullptr;
  std::unique_ptr<Acknowledged> acknowledged_;
  std::unique_ptr<Reserve> reserve_;  // null: none
  // One write at a time; taken before the lock of a connection.
  absl::Mutex write_mutex_;
  absl::Mutex checkpoint_mutex_;
  bool wrote_ ABSL_GUARDED_BY(write_mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(write_mutex_) =
      false;  // another process let the last one wait in vain

  int64_t lost_commits_ = 0;
  absl::Mutex lost_mutex_;
  // Could not be written into the database.
  absl::flat_hash_set<std::string> lost_unmarked_ ABSL_GUARDED_BY(lost_mutex_);

  absl::Mutex uses_mutex_;
  // By digest of the key; ms since 1970.
  absl::flat_hash_map<std::string, int64_t> uses_ ABSL_GUARDED_BY(uses_mutex_);

  std::mutex maintenance_mutex_;
  std::condition_variable_any wake_;
  std::atomic<bool> log_is_long_{false};
  std::jthread maintenance_;
};

}  // namespace bucketd
