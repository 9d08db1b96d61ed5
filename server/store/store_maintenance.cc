// The part of SqliteStore that keeps it within its bounds.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/store/sqlite_store.h"
#include "server/store/store_file.h"
#include "server/store/stored_value.h"

namespace bucketd {
namespace {

constexpr size_t kBatch = 256;        // plans that one transaction takes away
constexpr size_t kSmallBatch = 8;     // on a full disk: some pages of the log a plan
constexpr size_t kMaxUses = 1 << 16;  // noted between two flushes; more are forgotten
constexpr int kLongLogPages = 1000;   // then it is merged before its time

}  // namespace

absl::StatusOr<int64_t> SqliteStore::Version() { return Number("PRAGMA data_version"); }

absl::StatusOr<std::vector<SqliteStore::Victim>> SqliteStore::OldestPlans(
    int64_t bytes, int64_t used_before, absl::string_view except,
    const std::optional<std::string>& tenant) {
  std::vector<Victim> victims;
  const absl::MutexLock lock(&reader_->mutex());
  Statement rows = reader_->Query(
      "SELECT hash, value, bytes FROM plans WHERE used < ?1 AND hash != ?2 AND (?4 IS NULL OR "
      "tenant = ?4) AND NOT EXISTS (SELECT 1 FROM holds WHERE plan = hash AND expires > ?3) "
      "ORDER BY used",
      used_before, except, NowMillis(), SqlOptional{tenant});
  while (bytes > 0) {
    ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) break;
    victims.push_back({std::string(rows.Bytes(0)), {rows.Int(1), rows.Int(2)}, true});
    bytes -= victims.back().at.bytes;
  }
  return victims;
}

absl::StatusOr<std::vector<SqliteStore::Victim>> SqliteStore::MakeRoom(
    int64_t coming, const std::optional<Location>& old, absl::string_view hash) {
  ASSIGN_OR_RETURN(const int64_t held, Number("SELECT plan_bytes FROM totals WHERE id = 1"));
  int64_t beyond = held + coming - (old.has_value() ? old->bytes : 0) - options_.max_bytes;
  if (beyond <= 0) return std::vector<Victim>();
  RETURN_IF_ERROR(FlushUses());
  ASSIGN_OR_RETURN(std::vector<Victim> victims, OldestPlans(beyond, INT64_MAX, hash));
  for (Victim& victim : victims) {
    victim.readable = IsReadable(kPlanSql, victim.at.value);
    beyond -= victim.at.bytes;
  }
  if (beyond <= 0) return victims;
  return absl::ResourceExhaustedError(absl::StrCat("a plan of ", coming,
                                                   " bytes has no room among ", options_.max_bytes,
                                                   " bytes; plans that jobs hold are not evicted"));
}

absl::Status SqliteStore::Evict(std::vector<Victim> victims, const AuditLine* line, int64_t& gone) {
  size_t batch = kBatch;
  for (size_t begin = 0; begin < victims.size();) {
    const size_t end = std::min(begin + batch, victims.size());
    int64_t plans = 0, bytes = 0;
    for (size_t i = begin; i < end; ++i) {
      victims[i].readable = IsReadable(kPlanSql, victims[i].at.value);
    }
    const Room room = batch == kBatch ? Room::kDisk : Room::kReserve;
    AuditLine said = line == nullptr ? AuditLine() : *line;
    const Lines lines = line == nullptr ? Lines() : Lines{&said};
    const absl::Status written = WriteAudited({}, room, lines, [&](SqliteDb& db) -> absl::Status {
      db.mutex().AssertHeld();
      plans = bytes = 0;
      for (size_t i = begin; i < end; ++i) {
        ASSIGN_OR_RETURN(const bool dropped, DropPlan(db, victims[i], /*even_held=*/false));
        plans += dropped ? 1 : 0;
        bytes += dropped ? victims[i].at.bytes : 0;
      }
      said.after = EvictedText(plans);
      return absl::OkStatus();
    });
    if (absl::IsResourceExhausted(written) && batch > 1) {
      batch = batch == kBatch ? kSmallBatch : 1;
      continue;
    }
    RETURN_IF_ERROR(written);
    begin = end;
    gone += plans;
    if (plans > 0) options_.observer->Evicted(plans, bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, int64_t>> SqliteStore::PlanBytes() {
  std::map<std::string, int64_t> bytes;
  const absl::MutexLock lock(&reader_->mutex());
  Statement rows = reader_->Query("SELECT tenant, sum(bytes) FROM plans GROUP BY tenant");
  while (true) {
    ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return bytes;
    bytes[std::string(rows.Bytes(0))] = rows.Int(1);
  }
}

absl::StatusOr<int64_t> SqliteStore::KeepWithin(absl::string_view tenant, int64_t most) {
  const absl::MutexLock lock(&write_mutex_);
  const auto taken = [&] {
    return Number("SELECT ifnull(sum(bytes), 0) FROM plans WHERE tenant = ?1", SqlText{tenant});
  };
  ASSIGN_OR_RETURN(const int64_t bytes, taken());
  if (bytes <= most) return bytes;
  RETURN_IF_ERROR(FlushUses());
  ASSIGN_OR_RETURN(std::vector<Victim> victims,
                   OldestPlans(bytes - most, INT64_MAX, "", std::string(tenant)));
  int64_t gone = 0;
  RETURN_IF_ERROR(Evict(std::move(victims), nullptr, gone));
  return taken();
}

void SqliteStore::NoteUse(absl::string_view key) {
  const std::string hash = HashOf(key);
  const absl::MutexLock lock(&uses_mutex_);
  if (uses_.size() < kMaxUses) uses_[hash] = NowMillis();
}

absl::Status SqliteStore::FlushUses() {
  absl::flat_hash_map<std::string, int64_t> uses;
  {
    const absl::MutexLock lock(&uses_mutex_);
    uses.swap(uses_);
  }
  if (uses.empty()) return absl::OkStatus();
  return Write({}, Room::kReserve, [&](SqliteDb& db) -> absl::Status {
    db.mutex().AssertHeld();
    for (const auto& [hash, used] : uses) {
      RETURN_IF_ERROR(
          db.Run("UPDATE plans SET used = ?1 WHERE hash = ?2 AND used < ?1", used, hash));
    }
    return absl::OkStatus();
  });
}

absl::Status SqliteStore::DropExpiredHolds() {
  ASSIGN_OR_RETURN(const int64_t first, Number("SELECT ifnull(min(expires), 9e18) FROM holds"));
  if (first > NowMillis()) return absl::OkStatus();
  return WriteOne("DELETE FROM holds WHERE expires <= ?1", NowMillis());
}

absl::Status SqliteStore::EvictOld() {
  const absl::MutexLock lock(&write_mutex_);
  RETURN_IF_ERROR(FlushUses());
  RETURN_IF_ERROR(DropExpiredHolds());
  int64_t gone = 0;
  if (options_.max_age.count() > 0) {
    ASSIGN_OR_RETURN(std::vector<Victim> old,
                     OldestPlans(INT64_MAX, NowMillis() - options_.max_age.count(), ""));
    RETURN_IF_ERROR(Evict(std::move(old), nullptr, gone));
  }
  // The bound may be a lower one than before.
  ASSIGN_OR_RETURN(const int64_t bytes, Number("SELECT plan_bytes FROM totals WHERE id = 1"));
  ASSIGN_OR_RETURN(std::vector<Victim> beyond,
                   OldestPlans(bytes - options_.max_bytes, INT64_MAX, ""));
  return Evict(std::move(beyond), nullptr, gone);
}

absl::Status SqliteStore::Checkpoint() {
  if (acknowledged_ == nullptr) return absl::OkStatus();  // in memory, or for reading
  const absl::MutexLock one_at_a_time(&checkpoint_mutex_);
  if (checkpointer_ == nullptr) {
    ASSIGN_OR_RETURN(checkpointer_, OpenStoreDb(options_.directory, false, options_.busy_timeout));
  }
  ASSIGN_OR_RETURN(const int64_t commits, Number("SELECT commits FROM totals WHERE id = 1"));
  int pages = 0, merged = 0;
  {
    const absl::MutexLock lock(&checkpointer_->mutex());
    sqlite3* db = checkpointer_->get();
    const int rc =
        sqlite3_wal_checkpoint_v2(db, "main", SQLITE_CHECKPOINT_PASSIVE, &pages, &merged);
    if (rc != SQLITE_OK) return SqliteError(db, rc);
  }
  if (pages == merged) acknowledged_->Reset(commits);
  return absl::OkStatus();
}

absl::Status SqliteStore::Maintain() {
  if (options_.read_only) return absl::OkStatus();
  {
    const absl::MutexLock lock(&writer_->mutex());
    const absl::Status there = StillThere(*writer_);
    // A server that writes nothing has to hear of it, too.
    if (!there.ok()) options_.observer->Wrote(StoreWrite::kError, there.message());
    RETURN_IF_ERROR(there);
  }
  absl::Status done = EvictOld();
  done.Update(TrimAudit());  // of a damaged log plans know nothing
  done.Update(Checkpoint());
  if (reserve_ != nullptr) reserve_->Fill();
  return done;
}

// Until the log is long or `next`. False: the store ends.
bool SqliteStore::WaitForWork(const std::stop_token& stop,
                              std::chrono::steady_clock::time_point next) {
  std::unique_lock<std::mutex> lock(maintenance_mutex_);
  wake_.wait_until(lock, stop, next, [this] { return log_is_long_.exchange(false); });
  return !stop.stop_requested();
}

void SqliteStore::MaintainForEver(const std::stop_token& stop) {
  auto next = std::chrono::steady_clock::now() + options_.maintenance;
  while (WaitForWork(stop, next)) {
    const bool due = std::chrono::steady_clock::now() >= next;
    const absl::Status status = due ? Maintain() : Checkpoint();
    if (!status.ok()) {
      options_.observer->Problem(false, absl::StrCat("maintenance: ", status.message()));
    }
    if (due) next = std::chrono::steady_clock::now() + options_.maintenance;
  }
}

// Registered with the writer: called after each commit, with the length of the log.
int SqliteStore::LogGrew(void* store, sqlite3*, const char*, int pages) {
  auto& self = *static_cast<SqliteStore*>(store);
  if (pages < kLongLogPages || self.log_is_long_.exchange(true)) return SQLITE_OK;
  // The lock orders this before the thread's look at the flag.
  { const std::lock_guard<std::mutex> lock(self.maintenance_mutex_); }
  self.wake_.notify_one();
  return SQLITE_OK;
}

void SqliteStore::StartMaintenance() {
  if (options_.maintenance.count() <= 0) return;
  if (!options_.directory.empty()) sqlite3_wal_hook(writer_->get(), LogGrew, this);
  maintenance_ = std::jthread([this](const std::stop_token& stop) { MaintainForEver(stop); });
}

SqliteStore::~SqliteStore() {
  maintenance_ = std::jthread();  // ends the one that runs
  if (writer_ == nullptr || reader_ == nullptr) return;
  bool wrote = false;
  {
    const absl::MutexLock lock(&write_mutex_);
    FlushUses().IgnoreError();  // counted; a use that is forgotten costs nothing but age
    wrote = wrote_;
  }
  if (wrote) Checkpoint().IgnoreError();
}

absl::Status SqliteStore::FindLostCommits(const Acknowledged::Content& promised) {
  ASSIGN_OR_RETURN(const int64_t commits, Number("SELECT commits FROM totals WHERE id = 1"));
  if (commits >= promised.last_commit) {
    if (acknowledged_ != nullptr && promised.last_commit == 0) acknowledged_->Reset(commits);
    return absl::OkStatus();
  }
  lost_commits_ = promised.last_commit - commits;
  std::vector<Acknowledged::Entry> keys;
  for (const Acknowledged::Entry& entry : promised.entries) {
    if (entry.commit > commits) keys.push_back(entry);
  }
  if (commits < promised.merged) {
    keys.push_back(
        {static_cast<uint8_t>(Shelf::kSettings), promised.last_commit, kPlanningOffSetting});
  }
  for (const Acknowledged::Entry& entry : keys) {
    const absl::MutexLock lock(&lost_mutex_);
    lost_unmarked_.insert(absl::StrCat(int64_t{entry.what}, ":", entry.key));
  }
  options_.observer->Problem(
      true, absl::StrCat(lost_commits_,
                         " commits that were acknowledged are gone from the end of the store; "
                         "plans and records that they wrote: ",
                         keys.size()));
  if (options_.read_only) return absl::OkStatus();
  const absl::MutexLock lock(&write_mutex_);
  // Else it is told again at the next start, and until then known in memory.
  const bool marked = MarkLost(keys, promised.last_commit).ok();
  const absl::MutexLock lost(&lost_mutex_);
  if (marked) lost_unmarked_.clear();
  return absl::OkStatus();
}

// A row whose value is 0 speaks of a value that is not there: a read finds it damaged. What stood
// there before is older than what was acknowledged, and must not be given out.
absl::Status SqliteStore::MarkLost(const std::vector<Acknowledged::Entry>& keys,
                                   int64_t last_commit) {
  const auto mark = [&](SqliteDb& db, const Acknowledged::Entry& entry) -> absl::Status {
    db.mutex().AssertHeld();
    const absl::string_view key = entry.key;
    if (entry.what != 0) {
      return db.Run(
          "INSERT INTO records(shelf, key, value, checksum) VALUES(?1, ?2, 0, x'') "
          "ON CONFLICT(shelf, key) DO UPDATE SET value = 0, checksum = x''",
          entry.what, key);
    }
    ASSIGN_OR_RETURN(const std::optional<Location> before, Locate(db, kPlanSql, 0, key));
    RETURN_IF_ERROR(
        db.Run("INSERT INTO plans(hash, value, tenant, graph, bytes, created, used, checksum) "
               "VALUES(?1, 0, '', NULL, 0, ?2, ?2, x'') ON CONFLICT(hash) DO UPDATE SET value = 0, "
               "bytes = 0, checksum = x''",
               key, NowMillis()));
    return db.Run("UPDATE totals SET plans = plans + ?1, plan_bytes = plan_bytes - ?2 WHERE id = 1",
                  int64_t{before.has_value() ? 0 : 1}, before.has_value() ? before->bytes : 0);
  };
  return Write({}, Room::kReserve, [&](SqliteDb& db) -> absl::Status {
    db.mutex().AssertHeld();
    for (const Acknowledged::Entry& entry : keys) RETURN_IF_ERROR(mark(db, entry));
    return db.Run("UPDATE totals SET commits = ?1 WHERE id = 1", last_commit);
  });
}

bool SqliteStore::TakeLost(int64_t shelf, absl::string_view index_key, bool keep) {
  if (lost_commits_ == 0) return false;
  const absl::MutexLock lock(&lost_mutex_);
  if (lost_unmarked_.empty()) return false;
  const std::string key = absl::StrCat(shelf, ":", index_key);
  return keep ? lost_unmarked_.contains(key) : lost_unmarked_.erase(key) > 0;
}

}  // namespace bucketd
