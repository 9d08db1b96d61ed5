// The part of SqliteStore that keeps who changed what.
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/store/sqlite_store.h"

namespace bucketd {
namespace {

// AUTOINCREMENT: the number of a line that was trimmed is not given again.
constexpr char kTable[] = R"(
CREATE TABLE IF NOT EXISTS audit(
    number INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL UNIQUE, at INTEGER NOT NULL,
    who BLOB NOT NULL, peer BLOB NOT NULL, actor_tenant BLOB NOT NULL, tenant BLOB NOT NULL,
    what BLOB NOT NULL, subject BLOB NOT NULL, before BLOB NOT NULL, after BLOB NOT NULL)
)";

constexpr char kInsert[] =
    "INSERT INTO audit(id, at, who, peer, actor_tenant, tenant, what, subject, before, after) "
    "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT(id) DO NOTHING";

// An empty parameter stands for any.
constexpr char kList[] =
    "SELECT number, id, at, who, peer, actor_tenant, tenant, what, subject, before, after "
    "FROM audit WHERE number < ?1 AND at >= ?2 AND (?3 = 0 OR tenant = ?4) "
    "AND (length(?5) = 0 OR instr(who, ?5) > 0 OR instr(peer, ?5) > 0) "
    "AND (length(?6) = 0 OR what = ?6) "
    "ORDER BY number DESC LIMIT ?7";

// Lines are numbered as they come, so the oldest are among the first.
constexpr char kAnyOld[] =
    "SELECT EXISTS(SELECT 1 FROM (SELECT at FROM audit ORDER BY number LIMIT ?2) WHERE at < ?1)";
constexpr char kEraseOld[] =
    "DELETE FROM audit WHERE at < ?1 "
    "AND number IN (SELECT number FROM audit ORDER BY number LIMIT ?2)";

AuditEntry EntryIn(const Statement& row) {
  const auto text = [&](int column) { return std::string(row.Bytes(column)); };
  return {.id = row.Int(1),
          .number = row.Int(0),
          .when = WallAt(row.Int(2)),
          .line = {.by = {text(3), text(4), text(5)},
                   .tenant = text(6),
                   .what = text(7),
                   .subject = text(8),
                   .before = text(9),
                   .after = text(10)}};
}

}  // namespace

// Stores of earlier versions have none; those versions do not mind it.
absl::Status SqliteStore::AddAuditTable() {
  const absl::MutexLock lock(&writer_->mutex());
  return writer_->Exec(kTable);
}

absl::Status SqliteStore::AddLine(SqliteDb& db, const AuditEntry& entry) {
  const AuditLine& line = entry.line;
  return db.Run(kInsert, entry.id, MsOf(entry.when), AuditText(line.by.who),
                AuditText(line.by.peer), AuditText(line.by.tenant), AuditText(line.tenant),
                AuditText(line.what), AuditText(line.subject), AuditText(line.before),
                AuditText(line.after));
}

// A transaction that met damage is made again from its start, and then without the lines: what
// operators switch must not depend on the pages of a log.
absl::Status SqliteStore::WriteAudited(absl::Span<const About> about, Room room, const Lines& lines,
                                       Change change) {
  absl::Status damage;
  const absl::Status written = Write(about, room, [&](SqliteDb& db) -> absl::Status {
    db.mutex().AssertHeld();
    RETURN_IF_ERROR(change(db));
    for (const AuditLine* line : lines) {
      if (!damage.ok()) break;
      const absl::Status added = AddLine(db, {RandomId(), 0, Now(), *line});
      if (absl::IsDataLoss(added)) damage = added;
      RETURN_IF_ERROR(added);
    }
    return absl::OkStatus();
  });
  if (!written.ok() || damage.ok()) return written;
  for (const AuditLine* line : lines) {
    options_.observer->Problem(
        true, absl::StrCat("the audit log is damaged, so that this has no line in it: ", line->what,
                           " ", line->subject, ": ", damage.message()));
  }
  return written;
}

absl::StatusOr<std::vector<AuditEntry>> SqliteStore::ListAudit(const AuditSelection& selection,
                                                               int32_t limit) {
  const auto failed = [](const absl::Status& status) {
    return absl::UnavailableError(absl::StrCat("the audit log cannot be read: ", status.message()));
  };
  const absl::MutexLock lock(&reader_->mutex());
  {
    Statement table = reader_->Query("SELECT 1 FROM sqlite_master WHERE name = 'audit'");
    const absl::StatusOr<bool> found = table.Step();
    if (!found.ok()) return failed(found.status());
    if (!*found) return std::vector<AuditEntry>();  // an earlier version's, opened for reading
  }
  const std::string tenant = selection.tenant.value_or("");
  const int64_t since = selection.since.has_value() ? MsOf(*selection.since) : 0;
  Statement rows =
      reader_->Query(kList, selection.before_number.value_or(INT64_MAX), since,
                     selection.tenant.has_value(), tenant, selection.who, selection.what, limit);
  std::vector<AuditEntry> entries;
  while (true) {
    const absl::StatusOr<bool> row = rows.Step();
    if (!row.ok()) return failed(row.status());
    if (!*row) return entries;
    entries.push_back(EntryIn(rows));
  }
}

absl::StatusOr<int64_t> SqliteStore::AddAudit(absl::Span<const AuditEntry> entries) {
  int64_t added = 0;
  const absl::MutexLock lock(&write_mutex_);
  const absl::Status written = Write({}, Room::kDisk, [&](SqliteDb& db) -> absl::Status {
    db.mutex().AssertHeld();
    added = 0;
    for (const AuditEntry& entry : entries) {
      RETURN_IF_ERROR(AddLine(db, entry));
      added += db.changes();
    }
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(written);
  return added;
}

absl::Status SqliteStore::TrimAudit() {
  if (options_.audit.age.count() > 0) {
    RETURN_IF_ERROR(EraseAuditBefore(NowMillis() - options_.audit.age.count()));
  }
  // Two looks at the key: numbers have gaps, but lines without numbers there are none.
  ASSIGN_OR_RETURN(
      const int64_t many,
      Number("SELECT (SELECT MAX(number) FROM audit) - (SELECT MIN(number) FROM audit) >= ?1",
             options_.audit.lines));
  if (many == 0) return absl::OkStatus();
  return TrimAuditTable(
      {.count = [this] { return CountAudit(); },
       .list = [this](int64_t before, int32_t limit) { return AuditLinesBefore(before, limit); },
       .erase = [this](const auto& numbers) { return EraseAudit(numbers); }},
      options_.audit.lines);
}

// By pages, so that whoever reads a plan waits for one of them at most.
absl::Status SqliteStore::EraseAuditBefore(int64_t oldest) {
  while (true) {
    ASSIGN_OR_RETURN(const int64_t old, Number(kAnyOld, oldest, kAuditPage));
    if (old == 0) return absl::OkStatus();
    const absl::MutexLock lock(&write_mutex_);
    RETURN_IF_ERROR(WriteOne(kEraseOld, oldest, kAuditPage));
  }
}

// By pages, for the same reason.
absl::StatusOr<std::vector<AuditCount>> SqliteStore::CountAudit() {
  std::map<std::pair<std::string, std::string>, int64_t> counts;
  int64_t before = INT64_MAX;
  while (true) {
    ASSIGN_OR_RETURN(std::vector<AuditLineAt> page, AuditLinesBefore(before, kAuditPage));
    if (page.empty()) break;
    before = page.back().number;
    for (AuditLineAt& line : page) ++counts[{std::move(line.tenant), std::move(line.what)}];
  }
  std::vector<AuditCount> all;
  for (const auto& [of, lines] : counts) all.push_back({of.first, of.second, lines});
  return all;
}

absl::StatusOr<std::vector<AuditLineAt>> SqliteStore::AuditLinesBefore(int64_t number,
                                                                       int32_t limit) {
  const absl::MutexLock lock(&reader_->mutex());
  Statement rows = reader_->Query(
      "SELECT number, tenant, what FROM audit WHERE number < ?1 ORDER BY number DESC LIMIT ?2",
      number, limit);
  std::vector<AuditLineAt> lines;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return lines;
    lines.push_back({rows.Int(0), std::string(rows.Bytes(1)), std::string(rows.Bytes(2))});
  }
}

absl::Status SqliteStore::EraseAudit(const std::vector<int64_t>& numbers) {
  const absl::MutexLock lock(&write_mutex_);
  return Write({}, Room::kReserve, [&](SqliteDb& db) -> absl::Status {
    db.mutex().AssertHeld();
    for (const int64_t number : numbers) {
      RETURN_IF_ERROR(db.Run("DELETE FROM audit WHERE number = ?1", number));
    }
    return absl::OkStatus();
  });
}

}  // namespace bucketd
