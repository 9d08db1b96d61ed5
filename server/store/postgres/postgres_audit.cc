// The part of PostgresStore that keeps who changed what.
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "server/store/postgres/pg_sql.h"
#include "server/store/postgres/postgres_store.h"

namespace bucketd {
namespace {

constexpr size_t kLinesATrip = 200;

std::string Columns(int first, int count) {
  std::string list;
  for (int i = first; i < first + count; ++i) absl::StrAppend(&list, ", $", i);
  return list;
}

}  // namespace

int64_t NewWriteId() {
  thread_local std::mt19937_64 numbers{(uint64_t{std::random_device{}()} << 32) |
                                       std::random_device{}()};
  return static_cast<int64_t>(numbers() >> 1);
}

PgStatement WithLine(PgStatement statement, const AuditEntry& entry, std::optional<int64_t> now) {
  const AuditLine& line = entry.line;
  return std::move(statement)
      .Int(entry.id)
      .Int(now)
      .Bytes(AuditText(line.by.who))
      .Bytes(AuditText(line.by.peer))
      .Bytes(AuditText(line.by.tenant))
      .Bytes(AuditText(line.tenant))
      .Bytes(AuditText(line.what))
      .Bytes(AuditText(line.subject))
      .Bytes(AuditText(line.before))
      .Bytes(AuditText(line.after));
}

std::string InsertLineSql(int first, absl::string_view from, absl::string_view after) {
  return absl::StrCat(
      "INSERT INTO bucketd_audit(id, at, who, peer, actor_tenant, tenant, what, subject, before, "
      "after) SELECT $",
      first, ", ", NowSql(first + 1), Columns(first + 2, 7), ", ",
      after.empty() ? absl::StrCat("$", first + 9) : std::string(after), " ", from,
      " ON CONFLICT(id) DO NOTHING");
}

PgStatement PostgresStore::Audited(PgStatement statement, const AuditLine* line) const {
  if (line == nullptr) return statement;
  // Made again after a lost answer, it meets its own id.
  statement.Say(absl::StrCat("WITH done AS (", statement.sql(), " RETURNING key) ",
                             InsertLineSql(statement.parameters() + 1, "FROM done")));
  return WithLine(std::move(statement), {NewWriteId(), 0, {}, *line}, Now());
}

absl::StatusOr<std::vector<AuditEntry>> PostgresStore::ListAudit(const AuditSelection& selection,
                                                                 int32_t limit) {
  if (!has_audit_) return std::vector<AuditEntry>();
  std::optional<int64_t> since;
  if (selection.since.has_value()) since = MsOf(*selection.since);
  ASSIGN_OR_RETURN(
      const PgResult found,
      Query(PgStatement(
                "SELECT number, id, at, who, peer, actor_tenant, tenant, what, subject, "
                "before, after FROM bucketd_audit WHERE ($1 IS NULL OR number < $1) "
                "AND ($2 IS NULL OR at >= $2) AND ($3 IS NULL OR tenant = $3) "
                "AND (OCTET_LENGTH($4) = 0 OR POSITION($4 IN who) > 0 OR POSITION($4 IN peer) > 0) "
                "AND (OCTET_LENGTH($5) = 0 OR what = $5) ORDER BY number DESC LIMIT $6")
                .Int(selection.before_number)
                .Int(since)
                .Bytes(selection.tenant)
                .Bytes(selection.who)
                .Bytes(selection.what)
                .Int(limit)));
  std::vector<AuditEntry> entries;
  for (int row = 0; row < found.rows(); ++row) {
    const auto text = [&](int column) { return std::string(found.Bytes(row, column)); };
    entries.push_back({.id = found.Int(row, 1),
                       .number = found.Int(row, 0),
                       .when = WallAt(found.Int(row, 2)),
                       .line = {.by = {text(3), text(4), text(5)},
                                .tenant = text(6),
                                .what = text(7),
                                .subject = text(8),
                                .before = text(9),
                                .after = text(10)}});
  }
  return entries;
}

absl::StatusOr<int64_t> PostgresStore::AddAudit(absl::Span<const AuditEntry> entries) {
  int64_t added = 0;
  for (size_t begin = 0; begin < entries.size(); begin += kLinesATrip) {
    std::vector<PgStatement> statements;
    for (const AuditEntry& entry : entries.subspan(begin, kLinesATrip)) {
      statements.push_back(WithLine(PgStatement(InsertLineSql(1, "")), entry, MsOf(entry.when)));
    }
    ASSIGN_OR_RETURN(const std::vector<PgResult> results, Write(statements));
    for (const PgResult& result : results) added += result.affected();
  }
  return added;
}

absl::Status PostgresStore::TrimAudit() {
  RETURN_IF_ERROR(
      WriteOne(PgStatement(absl::StrCat("DELETE FROM bucketd_audit WHERE $2 > 0 AND at < ",
                                        NowSql(1), " - $2"))
                   .Int(Now())
                   .Int(options_.audit.age.count()))
          .status());
  // Numbers have gaps, but lines without numbers there are none.
  ASSIGN_OR_RETURN(const PgResult many,
                   Query(PgStatement("SELECT 1 WHERE (SELECT MAX(number) FROM bucketd_audit) - "
                                     "(SELECT MIN(number) FROM bucketd_audit) >= $1")
                             .Int(options_.audit.lines)));
  if (many.rows() == 0) return absl::OkStatus();
  return TrimAuditTable(
      {.count = [this] { return CountAudit(); },
       .list = [this](int64_t before, int32_t limit) { return AuditLinesBefore(before, limit); },
       .erase = [this](const auto& numbers) { return EraseAudit(numbers); }},
      options_.audit.lines);
}

absl::StatusOr<std::vector<AuditCount>> PostgresStore::CountAudit() {
  ASSIGN_OR_RETURN(const PgResult found,
                   Query(PgStatement("SELECT tenant, what, COUNT(*) FROM bucketd_audit "
                                     "GROUP BY tenant, what")));
  std::vector<AuditCount> counts;
  for (int row = 0; row < found.rows(); ++row) {
    counts.push_back(
        {std::string(found.Bytes(row, 0)), std::string(found.Bytes(row, 1)), found.Int(row, 2)});
  }
  return counts;
}

absl::StatusOr<std::vector<AuditLineAt>> PostgresStore::AuditLinesBefore(int64_t number,
                                                                         int32_t limit) {
  ASSIGN_OR_RETURN(const PgResult found,
                   Query(PgStatement("SELECT number, tenant, what FROM bucketd_audit "
                                     "WHERE number < $1 ORDER BY number DESC LIMIT $2")
                             .Int(number)
                             .Int(limit)));
  std::vector<AuditLineAt> lines;
  for (int row = 0; row < found.rows(); ++row) {
    lines.push_back(
        {found.Int(row, 0), std::string(found.Bytes(row, 1)), std::string(found.Bytes(row, 2))});
  }
  return lines;
}

absl::Status PostgresStore::EraseAudit(const std::vector<int64_t>& numbers) {
  return WriteOne(PgStatement(absl::StrCat("DELETE FROM bucketd_audit WHERE number IN (",
                                           absl::StrJoin(numbers, ", "), ")")))
      .status();
}

}  // namespace bucketd
