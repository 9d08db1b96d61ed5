// The part of SqliteStore that keeps records.
#include <utility>

#include "passes/base/status_macros.h"
#include "server/store/sqlite_store.h"
#include "server/store/stored_value.h"

namespace bucketd {
namespace {

absl::Status Moved() { return absl::AbortedError("another value was written meanwhile"); }

}  // namespace

absl::StatusOr<std::optional<std::string>> SqliteStore::GetRecord(Shelf shelf,
                                                                  absl::string_view key) {
  ASSIGN_OR_RETURN(std::optional<Row> row,
                   GetRow(kRecordSql, static_cast<int64_t>(shelf), key, key));
  if (!row.has_value()) return std::nullopt;
  return std::move(row->value);
}

// What cannot be read is no value.
bool SqliteStore::IsStill(int64_t shelf, absl::string_view key,
                          const std::optional<std::string>& expected) {
  const absl::StatusOr<std::optional<Row>> row = ReadRow(kRecordSql, shelf, key);
  const bool some = row.ok() && row->has_value() && (*row)->key == key;
  return some == expected.has_value() && (!some || (*row)->value == *expected);
}

SqliteStore::Target SqliteStore::Find(int64_t shelf, absl::string_view key) {
  Target target{shelf, key, Locate(kRecordSql, shelf, key), false};
  target.readable =
      target.at.ok() && target.at->has_value() && IsReadable(kRecordSql, (*target.at)->value);
  return target;
}

absl::StatusOr<bool> SqliteStore::IsThere(SqliteDb& db, const Target& target) {
  RETURN_IF_ERROR(target.at.status());
  ASSIGN_OR_RETURN(const std::optional<Location> now,
                   Locate(db, kRecordSql, target.shelf, target.key));
  const std::optional<Location>& then = *target.at;
  return now.has_value() == then.has_value() && (!now.has_value() || now->value == then->value);
}

absl::Status SqliteStore::PutValue(SqliteDb& db, const Target& target,
                                   const std::optional<absl::string_view>& value) {
  ASSIGN_OR_RETURN(const bool there, IsThere(db, target));
  if (there && target.readable) RETURN_IF_ERROR(db.Run(kRecordSql.drop_value, (*target.at)->value));
  if (!value.has_value()) {
    return db.Run("DELETE FROM records WHERE shelf = ?1 AND key = ?2", target.shelf, target.key);
  }
  const int64_t id = RandomId();
  const Digest checksum = ValueChecksum(target.key, *value);
  RETURN_IF_ERROR(db.Run(kRecordSql.put_value, id, target.key, *value));
  return db.Run(
      "INSERT INTO records(shelf, key, value, checksum) VALUES(?1, ?2, ?3, ?4) "
      "ON CONFLICT(shelf, key) DO UPDATE SET value = ?3, checksum = ?4",
      target.shelf, target.key, id, AsBytes(checksum));
}

absl::Status SqliteStore::ChangeRecord(Shelf on, absl::string_view key,
                                       const std::optional<std::string>* before,
                                       const std::optional<absl::string_view>& after,
                                       const AuditLine* line) {
  const auto shelf = static_cast<int64_t>(on);
  const bool makes_room = !after.has_value() || on == Shelf::kSettings;
  const absl::MutexLock lock(&write_mutex_);
  const Target target = Find(shelf, key);
  if (before != nullptr && !IsStill(shelf, key, *before)) return Moved();
  const bool nothing_to_erase = !after.has_value() && target.at.ok() && !target.at->has_value();
  Lines lines;
  if (line != nullptr && !nothing_to_erase) lines = {line};
  const auto change = [&](SqliteDb& db) -> absl::Status {
    db.mutex().AssertHeld();
    ASSIGN_OR_RETURN(const bool there, IsThere(db, target));
    return before != nullptr && !there ? Moved() : PutValue(db, target, after);
  };
  return WriteAudited({{shelf, key}}, makes_room ? Room::kReserve : Room::kDisk, lines, change);
}

absl::Status SqliteStore::WriteTogether(const Changes& changes) {
  const absl::MutexLock lock(&write_mutex_);
  std::vector<Target> targets;  // and behind them what may not be there
  std::vector<About> about;
  Lines lines;
  for (const RecordChange& record : changes.records) {
    about.emplace_back(static_cast<int64_t>(record.record.shelf), record.record.key);
    targets.push_back(Find(about.back().first, about.back().second));
    if (!IsStill(about.back().first, about.back().second, record.before)) return Moved();
    if (!record.line.what.empty()) lines.push_back(&record.line);
  }
  if (changes.unless.has_value()) {
    const auto shelf = static_cast<int64_t>(changes.unless->shelf);
    targets.push_back(Find(shelf, changes.unless->key));
    // A damaged one is there.
    const absl::StatusOr<std::optional<Row>> row = ReadRow(kRecordSql, shelf, changes.unless->key);
    if (absl::IsUnavailable(row.status())) return row.status();
    if (!row.ok() || row->has_value()) return Moved();
  }
  return WriteAudited(about, Room::kDisk, lines, [&](SqliteDb& db) -> absl::Status {
    db.mutex().AssertHeld();
    for (const Target& target : targets) {
      ASSIGN_OR_RETURN(const bool there, IsThere(db, target));
      if (!there) return Moved();
    }
    if (changes.hold.has_value()) {
      const absl::Status held =
          PutHold(db, changes.hold->key, changes.hold->holder, changes.hold->expires);
      if (absl::IsNotFound(held)) return absl::AbortedError(held.message());
      RETURN_IF_ERROR(held);
    }
    for (size_t i = 0; i < changes.records.size(); ++i) {
      RETURN_IF_ERROR(PutValue(db, targets[i], changes.records[i].after));
    }
    return absl::OkStatus();
  });
}

}  // namespace bucketd
