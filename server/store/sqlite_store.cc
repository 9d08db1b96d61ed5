#include "server/store/sqlite_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/store/store_file.h"
#include "server/store/stored_value.h"

namespace bucketd {

const SqliteStore::Sql SqliteStore::kPlanSql = {
    .read =
        "SELECT p.checksum, v.key, v.value, p.used FROM plans p "
        "LEFT JOIN plan_values v ON v.id = p.value WHERE p.hash = ?2 AND ?1 = 0",
    .locate = "SELECT value, bytes FROM plans WHERE hash = ?2 AND ?1 = 0",
    .read_value = "SELECT key, value FROM plan_values WHERE id = ?1",
    .put_value = "INSERT INTO plan_values(id, key, value) VALUES(?1, ?2, ?3)",
    .drop_value = "DELETE FROM plan_values WHERE id = ?1",
    .list =
        "SELECT hash, tenant, graph, bytes FROM plans WHERE ?1 = 0 AND hash >= ?2 "
        "ORDER BY hash LIMIT ?3",
};

const SqliteStore::Sql SqliteStore::kRecordSql = {
    .read =
        "SELECT r.checksum, v.key, v.value, 0 FROM records r "
        "LEFT JOIN record_values v ON v.id = r.value WHERE r.shelf = ?1 AND r.key = ?2",
    .locate = "SELECT value, 0 FROM records WHERE shelf = ?1 AND key = ?2",
    .read_value = "SELECT key, value FROM record_values WHERE id = ?1",
    .put_value = "INSERT INTO record_values(id, key, value) VALUES(?1, ?2, ?3)",
    .drop_value = "DELETE FROM record_values WHERE id = ?1",
    .list =
        "SELECT key, '', '', 0 FROM records WHERE shelf = ?1 AND key >= ?2 "
        "ORDER BY key LIMIT ?3",
};

namespace {

constexpr int64_t kUseStepMillis = 60'000;
constexpr int kMoreAttempts = 3;
// Another process's write takes a few milliseconds.
constexpr std::chrono::milliseconds kBusyAgain{20};

}  // namespace

absl::Status SqliteStore::IndexError(const absl::Status& status) {
  if (!absl::IsDataLoss(status)) return status;
  return absl::UnavailableError(absl::StrCat(
      "the index is damaged, `bucketctl store verify` says where: ", status.message()));
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(SqliteStoreOptions options) {
  if (!options.clock) options.clock = WallNow;
  auto store = std::unique_ptr<SqliteStore>(new SqliteStore(std::move(options)));
  const absl::Status connected = store->ConnectWithReserve();
  if (connected.ok()) return store;
  const std::string& directory = store->options_.directory;
  if (absl::StrContains(connected.message(), directory)) return connected;
  return absl::Status(connected.code(), absl::StrCat(directory, ": ", connected.message()));
}

// SQLite makes its log when the first connection opens it: on a full disk that, too, needs room.
absl::Status SqliteStore::ConnectWithReserve() {
  if (options_.directory.empty() || options_.read_only) return Connect();
  RETURN_IF_ERROR(MakeStoreFolder(options_.directory));
  if (options_.reserve_bytes > 0) {
    reserve_ =
        std::make_unique<Reserve>(StorePaths(options_.directory).reserve, options_.reserve_bytes);
  }
  absl::Status connected = Connect();
  while (absl::IsResourceExhausted(connected) && reserve_ != nullptr && reserve_->Release()) {
    connected = Connect();
  }
  if (connected.ok() && reserve_ != nullptr) reserve_->Fill();
  return connected;
}

absl::Status SqliteStore::Connect() {
  const std::string& directory = options_.directory;
  const bool read_only = options_.read_only;
  const auto open = [&] { return OpenStoreDb(directory, read_only, options_.busy_timeout); };
  if (directory.empty()) {
    ASSIGN_OR_RETURN(writer_, open());
    reader_ = writer_.get();
  } else {
    const StorePaths paths(directory);
    if (!read_only) RETURN_IF_ERROR(CreateStoreIfAbsent(directory, options_.page_size));
    RETURN_IF_ERROR(CheckStoreFile(paths.database));
    // Before the database: another process may be writing, and this must not be the newer one.
    ASSIGN_OR_RETURN(const Acknowledged::Content promised, Acknowledged::Read(paths.acknowledged));
    if (!read_only) {
      ASSIGN_OR_RETURN(acknowledged_, Acknowledged::Open(paths.acknowledged));
      ASSIGN_OR_RETURN(writer_, open());
    }
    ASSIGN_OR_RETURN(own_reader_, open());
    reader_ = own_reader_.get();
    RETURN_IF_ERROR(FindLostCommits(promised));
  }
  if (writer_ != nullptr && options_.max_pages > 0) {
    RETURN_IF_ERROR(
        writer_->Exec(absl::StrCat("PRAGMA max_page_count = ", options_.max_pages).c_str()));
  }
  if (writer_ != nullptr) {
    RETURN_IF_ERROR(AddAuditTable());
    StartMaintenance();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SqliteStore::Row>> SqliteStore::ReadRow(const Sql& sql, int64_t shelf,
                                                                     absl::string_view index_key) {
  if (TakeLost(shelf, index_key, /*keep=*/true)) {
    return absl::DataLossError("the commit that wrote it is gone from the log");
  }
  const absl::MutexLock lock(&reader_->mutex());
  {
    Statement found = reader_->Query(sql.read, shelf, index_key);
    const absl::StatusOr<bool> row = found.Step();
    if (row.ok() && !*row) return std::nullopt;
    if (row.ok()) {
      Row result{std::string(found.Bytes(1)), std::string(found.Bytes(2)), found.Int(3)};
      if (!found.IsNull(1) && found.Bytes(0) == AsBytes(ValueChecksum(result.key, result.value))) {
        return result;
      }
      return absl::DataLossError("the value does not match its checksum");
    }
    if (!absl::IsDataLoss(row.status())) return row.status();
  }
  // Damage in the value, or in the index on the way to it?
  const absl::StatusOr<std::optional<Location>> location = Locate(*reader_, sql, shelf, index_key);
  if (!location.ok()) return IndexError(location.status());
  if (!location->has_value()) return std::nullopt;
  return absl::DataLossError("the pages of the value are damaged");
}

absl::StatusOr<std::optional<SqliteStore::Row>> SqliteStore::GetRow(const Sql& sql, int64_t shelf,
                                                                    absl::string_view index_key,
                                                                    absl::string_view key) {
  absl::StatusOr<std::optional<Row>> row = ReadRow(sql, shelf, index_key);
  if (row.ok() && row->has_value() && (*row)->key != key) {
    row = absl::DataLossError("the value belongs to another key");
  }
  TellRead(*options_.observer, shelf == 0 ? StoreValue::kPlan : StoreValue::kRecord, row.status(),
           row.ok() && row->has_value());
  const bool stays = options_.read_only || shelf == static_cast<int64_t>(Shelf::kSettings);
  if (!absl::IsDataLoss(row.status()) || stays) return row;
  const absl::Status gone = ForgetDamaged(sql, shelf, index_key, key);
  if (!gone.ok()) {
    options_.observer->Problem(
        false, absl::StrCat("a damaged value cannot be taken away: ", gone.message()));
  }
  return row;
}

absl::Status SqliteStore::ForgetDamaged(const Sql& sql, int64_t shelf, absl::string_view index_key,
                                        absl::string_view key) {
  const absl::MutexLock lock(&write_mutex_);
  TakeLost(shelf, index_key, /*keep=*/false);
  // Somebody may have put it again.
  const absl::StatusOr<std::optional<Row>> row = ReadRow(sql, shelf, index_key);
  const bool damaged =
      row.ok() ? row->has_value() && (*row)->key != key : absl::IsDataLoss(row.status());
  if (!damaged) return absl::OkStatus();
  return Commit([&](SqliteDb& db) -> absl::Status {
           db.mutex().AssertHeld();
           ASSIGN_OR_RETURN(const std::optional<Location> at, Locate(db, sql, shelf, index_key));
           if (!at.has_value()) return absl::OkStatus();
           if (shelf != 0) {
             return db.Run("DELETE FROM records WHERE shelf = ?1 AND key = ?2", shelf, index_key);
           }
           // The value stays, out of reach: to delete it SQLite would have to read it.
           return DropPlan(db, {std::string(index_key), *at, false}, /*even_held=*/true).status();
         })
      .status();
}

absl::StatusOr<std::optional<SqliteStore::Location>> SqliteStore::Locate(
    SqliteDb& db, const Sql& sql, int64_t shelf, absl::string_view index_key) {
  Statement found = db.Query(sql.locate, shelf, index_key);
  ASSIGN_OR_RETURN(const bool row, found.Step());
  if (!row) return std::nullopt;
  return Location{found.Int(0), found.Int(1)};
}

absl::StatusOr<std::optional<SqliteStore::Location>> SqliteStore::Locate(
    const Sql& sql, int64_t shelf, absl::string_view index_key) {
  const absl::MutexLock lock(&reader_->mutex());
  return Locate(*reader_, sql, shelf, index_key);
}

bool SqliteStore::IsReadable(const Sql& sql, int64_t value) {
  const absl::MutexLock lock(&reader_->mutex());
  const absl::StatusOr<bool> row = reader_->Query(sql.read_value, value).Step();
  return row.ok() && *row;
}

absl::StatusOr<int64_t> SqliteStore::Commit(Change change) {
  if (writer_ == nullptr) return absl::UnavailableError("the store is open for reading only");
  const absl::MutexLock lock(&writer_->mutex());
  absl::StatusOr<int64_t> commit = CommitOnce(*writer_, change);
  // Damage met on the way: a new value has a new random id, and so another page.
  for (int again = 0; again < kMoreAttempts && absl::IsDataLoss(commit.status()); ++again) {
    commit = CommitOnce(*writer_, change);
  }
  if (!commit.ok()) return IndexError(commit.status());
  return commit;
}

// Who writes into files that nobody finds any more keeps nothing.
absl::Status SqliteStore::StillThere(SqliteDb& db) const {
  int moved = 0;
  sqlite3_file_control(db.get(), "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  if (moved == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(options_.directory,
                   ": store.db was removed or replaced while this server uses it: put it back, or "
                   "start the server anew"));
}

absl::Status SqliteStore::Begin(SqliteDb& db) {
  RETURN_IF_ERROR(StillThere(db));
  const absl::Status begun = db.Exec("BEGIN IMMEDIATE");
  const bool busy = !begun.ok() && (sqlite3_errcode(db.get()) & 0xff) == SQLITE_BUSY;
  if (busy != busy_) {
    busy_ = busy;
    const auto wait = busy ? std::min(kBusyAgain, options_.busy_timeout) : options_.busy_timeout;
    sqlite3_busy_timeout(db.get(), static_cast<int>(wait.count()));
  }
  return begun;
}

absl::StatusOr<int64_t> SqliteStore::CommitOnce(SqliteDb& db, Change change) {
  RETURN_IF_ERROR(Begin(db));
  int64_t commit = 0;
  const auto run = [&]() -> absl::Status {
    db.mutex().AssertHeld();
    RETURN_IF_ERROR(change(db));
    {
      Statement count =
          db.Query("UPDATE totals SET commits = commits + 1 WHERE id = 1 RETURNING commits");
      RETURN_IF_ERROR(count.Step().status());
      commit = count.Int(0);
    }
    return db.Exec("COMMIT");
  };
  const absl::Status status = run();
  if (status.ok()) return commit;
  // SQLite may have done it already.
  if (sqlite3_get_autocommit(db.get()) == 0) db.Exec("ROLLBACK").IgnoreError();
  return status;
}

// As little of the reserve as it takes, and all of it is taken back as far as there is room.
absl::StatusOr<int64_t> SqliteStore::CommitInReserve(Change change) {
  absl::StatusOr<int64_t> commit = Commit(change);
  if (reserve_ == nullptr || !absl::IsResourceExhausted(commit.status())) return commit;
  do {
    Checkpoint().IgnoreError();  // what is merged gives its place in the log free
    commit = Commit(change);
  } while (absl::IsResourceExhausted(commit.status()) && reserve_->Release());
  Checkpoint().IgnoreError();
  reserve_->Fill();
  return commit;
}

absl::Status SqliteStore::Write(absl::Span<const About> about, Room room, Change change) {
  const absl::StatusOr<int64_t> commit =
      room == Room::kReserve ? CommitInReserve(change) : Commit(change);
  TellWrote(*options_.observer, commit.status());
  RETURN_IF_ERROR(commit.status());
  wrote_ = true;
  for (const auto& [what, key] : about) {
    TakeLost(what, key, /*keep=*/false);
    if (acknowledged_ != nullptr) acknowledged_->Add(static_cast<uint8_t>(what), *commit, key);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> SqliteStore::GetPlan(absl::string_view key) {
  ASSIGN_OR_RETURN(std::optional<Row> row, GetRow(kPlanSql, 0, HashOf(key), key));
  if (!row.has_value()) return std::nullopt;
  if (NowMillis() - row->used >= kUseStepMillis) NoteUse(key);
  return std::move(row->value);
}

absl::Status SqliteStore::PutPlan(absl::string_view key, absl::string_view tenant,
                                  absl::string_view plan) {
  const std::string hash = HashOf(key);
  const auto bytes = static_cast<int64_t>(key.size() + plan.size());
  const absl::MutexLock lock(&write_mutex_);
  const absl::StatusOr<std::optional<Location>> old = Locate(kPlanSql, 0, hash);
  using Victims = absl::StatusOr<std::vector<Victim>>;
  const Victims victims = old.ok() ? MakeRoom(bytes, *old, hash) : Victims(old.status());
  if (!victims.ok()) {
    return Write({{0, hash}}, Room::kDisk, [&](SqliteDb&) { return victims.status(); });
  }
  const bool old_readable = old->has_value() && IsReadable(kPlanSql, (*old)->value);
  const int64_t now = NowMillis();
  const Digest checksum = ValueChecksum(key, plan);
  const std::optional<std::string> graph = GraphIn(key);
  int64_t evicted = 0, evicted_bytes = 0;

  const absl::Status written = Write({{0, hash}}, Room::kDisk, [&](SqliteDb& db) -> absl::Status {
    db.mutex().AssertHeld();
    evicted = evicted_bytes = 0;
    ASSIGN_OR_RETURN(const std::optional<Location> before, Locate(db, kPlanSql, 0, hash));
    if (before.has_value() && old_readable && before->value == (*old)->value) {
      RETURN_IF_ERROR(db.Run(kPlanSql.drop_value, before->value));
    }
    const int64_t id = RandomId();
    RETURN_IF_ERROR(db.Run(kPlanSql.put_value, id, key, plan));
    RETURN_IF_ERROR(
        db.Run("INSERT INTO plans(hash, value, tenant, graph, bytes, created, used, checksum) "
               "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7) ON CONFLICT(hash) DO UPDATE SET value = ?2, "
               "tenant = ?3, graph = ?4, bytes = ?5, created = ?6, used = ?6, checksum = ?7",
               hash, id, SqlText{tenant}, SqlOptional{graph}, bytes, now, AsBytes(checksum)));
    for (const Victim& victim : *victims) {
      ASSIGN_OR_RETURN(const bool gone, DropPlan(db, victim, /*even_held=*/false));
      if (!gone) continue;
      ++evicted;
      evicted_bytes += victim.at.bytes;
    }
    return db.Run("UPDATE totals SET plans = plans + ?1, plan_bytes = plan_bytes + ?2 WHERE id = 1",
                  int64_t{before.has_value() ? 0 : 1},
                  bytes - (before.has_value() ? before->bytes : 0));
  });
  RETURN_IF_ERROR(written);
  if (evicted > 0) options_.observer->Evicted(evicted, evicted_bytes);
  return absl::OkStatus();
}

absl::StatusOr<bool> SqliteStore::DropPlan(SqliteDb& db, const Victim& victim, bool even_held) {
  RETURN_IF_ERROR(
      db.Run("DELETE FROM plans WHERE hash = ?1 AND value = ?2 AND (?3 OR NOT EXISTS "
             "(SELECT 1 FROM holds WHERE plan = ?1 AND expires > ?4))",
             victim.hash, victim.at.value, even_held, NowMillis()));
  if (db.changes() == 0) return false;  // another process was here
  RETURN_IF_ERROR(db.Run("DELETE FROM holds WHERE plan = ?1", victim.hash));
  RETURN_IF_ERROR(
      db.Run("UPDATE totals SET plans = plans - 1, plan_bytes = plan_bytes - ?1 WHERE id = 1",
             victim.at.bytes));
  if (victim.readable) RETURN_IF_ERROR(db.Run(kPlanSql.drop_value, victim.at.value));
  return true;
}

absl::Status SqliteStore::HoldPlan(absl::string_view key, absl::string_view holder,
                                   WallTime expires) {
  const absl::MutexLock lock(&write_mutex_);
  return Write({}, Room::kDisk, [&](SqliteDb& db) {
    db.mutex().AssertHeld();
    return PutHold(db, key, holder, expires);
  });
}

absl::Status SqliteStore::PutHold(SqliteDb& db, absl::string_view key, absl::string_view holder,
                                  WallTime expires) {
  const std::string hash = HashOf(key);
  RETURN_IF_ERROR(db.Run(
      "INSERT INTO holds(plan, holder, expires) SELECT hash, ?2, ?3 FROM plans WHERE hash = ?1 "
      "ON CONFLICT(plan, holder) DO UPDATE SET expires = ?3",
      hash, SqlText{holder}, MsOf(expires)));
  if (db.changes() > 0) return absl::OkStatus();
  return absl::NotFoundError("there is no such plan in the store");
}

absl::Status SqliteStore::ReleaseHolds(absl::string_view holder) {
  const absl::MutexLock lock(&write_mutex_);
  return WriteOne(
      "DELETE FROM holds WHERE holder = ?1 AND (SELECT substr(key, 1, length(?3)) FROM records "
      "WHERE shelf = ?2 AND key >= ?3 ORDER BY key LIMIT 1) IS NOT ?3",
      SqlText{holder}, static_cast<int64_t>(Shelf::kPins), holder);
}

absl::StatusOr<std::vector<Record>> SqliteStore::ListRecords(Shelf shelf, absl::string_view prefix,
                                                             absl::string_view from,
                                                             int32_t limit) {
  std::vector<std::string> keys;
  {
    const absl::MutexLock lock(&reader_->mutex());
    Statement rows =
        reader_->Query(kRecordSql.list, static_cast<int64_t>(shelf), std::max(prefix, from), limit);
    while (true) {
      const absl::StatusOr<bool> row = rows.Step();
      if (!row.ok()) return IndexError(row.status());
      if (!*row || !absl::StartsWith(rows.Bytes(0), prefix)) break;
      keys.emplace_back(rows.Bytes(0));
    }
  }
  std::vector<Record> records;
  for (const std::string& key : keys) {
    absl::StatusOr<std::optional<std::string>> value = GetRecord(shelf, key);
    if (!value.ok() && !absl::IsDataLoss(value.status())) return value.status();
    if (!value.ok() || !value->has_value()) continue;  // damaged and counted, or just erased
    records.push_back({key, **std::move(value)});
  }
  if (records.empty() && !keys.empty()) {
    return ListRecords(shelf, prefix, KeyBehind(keys.back()), limit);
  }
  return records;
}

}  // namespace bucketd
