// The part of PostgresStore that keeps records.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"

#include "passes/base/status_macros.h"
#include "server/store/postgres/pg_sql.h"
#include "server/store/postgres/postgres_store.h"

namespace bucketd {
namespace {

// Pins and leases are many, and nobody polls for them: one row that each job writes would hold up
// all.
void CountChange(Shelf shelf, std::vector<PgStatement>& statements) {
  if (shelf == Shelf::kPins || shelf == Shelf::kReplicas) return;
  statements.emplace_back("UPDATE bucketd_schema SET changes = changes + 1 WHERE id = 1");
}

// With the next two parameters.
PgStatement Named(PgStatement statement, const RecordName& name) {
  return std::move(statement).Int(static_cast<int64_t>(name.shelf)).Bytes(name.key);
}

// ReplaceRecord's, in the row; `id` is the write's.
PgStatement Change(const RecordName& name, const std::optional<std::string>& before,
                   const std::optional<absl::string_view>& after, int64_t id) {
  if (!after.has_value()) {
    return Named(PgStatement(
                     "DELETE FROM bucketd_record WHERE shelf = $1 AND key = $2 AND value = $3"),
                 name)
        .Bytes(before);
  }
  const std::string checksum(AsBytes(ValueChecksum(name.key, *after)));
  if (before.has_value()) {
    return Named(PgStatement("UPDATE bucketd_record SET value = $4, checksum = $5, write_id = $6 "
                             "WHERE shelf = $1 AND key = $2 AND value = $3"),
                 name)
        .Bytes(before)
        .Bytes(after)
        .Bytes(checksum)
        .Int(id);
  }
  return Named(PgStatement("INSERT INTO bucketd_record(shelf, key, value, checksum, write_id) "
                           "VALUES($1, $2, $3, $4, $5) ON CONFLICT(shelf, key) DO NOTHING"),
               name)
      .Bytes(after)
      .Bytes(checksum)
      .Int(id);
}

// PutRecord's and EraseRecord's.
PgStatement Set(const RecordName& name, const std::optional<absl::string_view>& after, int64_t id) {
  if (!after.has_value()) {
    return Named(PgStatement("DELETE FROM bucketd_record WHERE shelf = $1 AND key = $2"), name);
  }
  return Named(PgStatement("INSERT INTO bucketd_record(shelf, key, value, checksum, write_id) "
                           "VALUES($1, $2, $3, $4, $5) ON CONFLICT(shelf, key) DO UPDATE SET "
                           "value = excluded.value, checksum = excluded.checksum, "
                           "write_id = excluded.write_id"),
               name)
      .Bytes(after)
      .Bytes(AsBytes(ValueChecksum(name.key, *after)))
      .Int(id);
}

PgStatement RowOf(const RecordName& name) {
  return Named(PgStatement("SELECT value, checksum, write_id FROM bucketd_record WHERE shelf = $1 "
                           "AND key = $2"),
               name);
}

// Rows are locked in the order of their names, so that no two transactions wait for each other.
std::vector<const RecordChange*> InOrder(const Changes& changes) {
  std::vector<const RecordChange*> order;
  for (const RecordChange& change : changes.records) order.push_back(&change);
  std::sort(order.begin(), order.end(), [](const RecordChange* a, const RecordChange* b) {
    return std::tie(a->record.shelf, a->record.key) < std::tie(b->record.shelf, b->record.key);
  });
  return order;
}

}  // namespace

void AddHold(const PlanHeld& hold, std::vector<PgStatement>& statements) {
  const std::string hash = HashOf(hold.key);
  statements.push_back(
      PgStatement("SELECT 1 FROM bucketd_plan WHERE hash = $1 FOR UPDATE").Bytes(hash));
  statements.push_back(
      PgStatement("INSERT INTO bucketd_hold(plan, holder, expires) SELECT hash, $2, $3 FROM "
                  "bucketd_plan WHERE hash = $1 ON CONFLICT(plan, holder) DO UPDATE SET "
                  "expires = excluded.expires")
          .Bytes(hash)
          .Bytes(hold.holder)
          .Int(MsOf(hold.expires)));
  statements.push_back(
      PgStatement("UPDATE bucketd_plan SET held_until = (SELECT MAX(expires) FROM bucketd_hold "
                  "WHERE plan = $1) WHERE hash = $1 AND EXISTS (SELECT 1 FROM bucketd_hold WHERE "
                  "plan = $1)")
          .Bytes(hash));
}

PgStatement PostgresStore::RecordsSql(absl::Span<const RecordName> names) {
  std::string sql;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&sql, i == 0 ? "" : " UNION ALL ", "SELECT CAST(", i,
                    " AS BIGINT), value, checksum FROM bucketd_record WHERE shelf = $", 2 * i + 1,
                    " AND key = $", 2 * i + 2);
  }
  PgStatement read(std::move(sql));
  for (const RecordName& name : names) read = Named(std::move(read), name);
  return read;
}

PostgresStore::Values PostgresStore::RecordsIn(const PgResult& rows,
                                               absl::Span<const RecordName> names) {
  Values values(names.size(), std::optional<std::string>());
  for (int row = 0; row < rows.rows(); ++row) {
    const auto i = static_cast<size_t>(rows.Int(row, 0));
    std::string value(rows.Bytes(row, 1));
    const bool whole = IsWhole(names[i].key, value, rows.Bytes(row, 2));
    if (!whole) ForgetRecord(names[i].shelf, names[i].key, value).IgnoreError();
    values[i] = whole ? absl::StatusOr<std::optional<std::string>>(std::move(value)) : Damaged();
  }
  for (const auto& value : values) TellRead(StoreValue::kRecord, value);
  return values;
}

PostgresStore::Values PostgresStore::GetRecords(absl::Span<const RecordName> names) {
  const absl::StatusOr<PgResult> found = Query(RecordsSql(names));
  if (found.ok()) return RecordsIn(*found, names);
  Values values(names.size(), found.status());
  for (const auto& value : values) TellRead(StoreValue::kRecord, value);
  return values;
}

absl::StatusOr<std::optional<std::string>> PostgresStore::GetRecord(Shelf shelf,
                                                                    absl::string_view key) {
  const RecordName name{shelf, std::string(key)};
  return std::move(GetRecords({&name, 1})[0]);
}

absl::Status PostgresStore::ForgetRecord(Shelf shelf, absl::string_view key,
                                         absl::string_view value) {
  if (shelf == Shelf::kSettings) return absl::OkStatus();
  return WriteOne(Change({shelf, std::string(key)}, std::string(value), std::nullopt, 0)).status();
}

// The condition stands in the write that it guards. What the row says after it decides, so that a
// write whose answer was lost is simply made again. Of an erasure nothing is left to tell whose it
// was: made again it is ABORTED, and whoever erases looks again at what stands.
absl::Status PostgresStore::ChangeRecord(Shelf shelf, absl::string_view key,
                                         const std::optional<std::string>* before,
                                         const std::optional<absl::string_view>& after,
                                         const AuditLine* line) {
  const absl::Status moved = absl::AbortedError("another value was written meanwhile");
  const RecordName name{shelf, std::string(key)};
  const int64_t id = NewWriteId();
  std::vector<PgStatement> statements;
  statements.push_back(
      Audited(before == nullptr ? Set(name, after, id) : Change(name, *before, after, id), line));
  if (before != nullptr) statements.push_back(RowOf(name));
  CountChange(shelf, statements);
  ASSIGN_OR_RETURN(const std::vector<PgResult> results, Write(statements));
  if (before == nullptr) return absl::OkStatus();
  const PgResult& stands = results[1];
  if (!after.has_value()) {
    const bool gone = before->has_value() ? results[0].affected() > 0 : stands.rows() == 0;
    return gone ? absl::OkStatus() : moved;
  }
  if (stands.rows() > 0 && stands.Int(0, 2) == id) return absl::OkStatus();
  if (before->has_value() || stands.rows() == 0) return moved;
  const std::string damaged(stands.Bytes(0, 0));
  if (IsWhole(key, damaged, stands.Bytes(0, 1))) return moved;
  return ReplaceRecord(shelf, key, damaged, after, line);  // a damaged value counts as none
}

absl::StatusOr<Standing> PostgresStore::PutIfAbsent(Shelf shelf, absl::string_view key,
                                                    absl::string_view value, ReadBehind* behind) {
  const RecordName name{shelf, std::string(key)};
  const int64_t id = NewWriteId();
  std::vector<PgStatement> statements;
  statements.push_back(Change(name, std::nullopt, value, id));
  statements.push_back(RowOf(name));
  const bool reads_plan = behind != nullptr && !behind->plan_key.empty();
  const bool reads_records = behind != nullptr && !behind->names.empty();
  if (reads_plan) statements.push_back(PlanSql(behind->plan_key));
  if (reads_records) statements.push_back(RecordsSql(behind->names));
  CountChange(shelf, statements);
  ASSIGN_OR_RETURN(const std::vector<PgResult> results, Write(statements));
  const PgResult& row = results[1];
  if (row.rows() == 0) return absl::AbortedError("what was there has gone meanwhile");
  Standing stands{std::string(row.Bytes(0, 0)), row.Int(0, 2) == id};
  if (IsWhole(key, stands.value, row.Bytes(0, 1))) {
    if (!stands.put) TellRead(StoreValue::kRecord, stands.value);
    if (reads_plan) behind->plan = PlanIn(results[2], behind->plan_key);
    if (reads_records) behind->values = RecordsIn(results[reads_plan ? 3 : 2], behind->names);
    return stands;
  }
  // A damaged value counts as none. The rest was read before this is there.
  TellRead(StoreValue::kRecord, Damaged());
  RETURN_IF_ERROR(ReplaceRecord(shelf, key, stands.value, value, nullptr));
  if (behind != nullptr) Fill(*behind);
  return Standing{std::string(value), true};
}

absl::Status PostgresStore::PutPlanAndErase(absl::string_view key, absl::string_view tenant,
                                            absl::string_view plan, Shelf shelf,
                                            const Record& record) {
  std::vector<PgStatement> statements = PlanPut(key, tenant, plan);
  statements.push_back(Change({shelf, record.key}, record.value, std::nullopt, 0));
  CountChange(shelf, statements);
  return Write(statements).status();
}

// All is written as if it were alone, and then asked whether it is there: if not, the last
// statement fails, and with it the transaction. A damaged value counts as none for whoever reads it
// again, which takes it away.
absl::Status PostgresStore::WriteTogether(const Changes& changes) {
  const int64_t id = NewWriteId();
  std::vector<PgStatement> statements;
  PgStatement there("");
  std::string rows;
  int64_t expected = 0;
  const auto expect = [&](absl::string_view from, absl::string_view where) {
    absl::StrAppend(&rows, rows.empty() ? "" : " UNION ALL ", "SELECT 1 FROM ", from, " WHERE ",
                    absl::Substitute(where, there.parameters() + 1, there.parameters() + 2,
                                     there.parameters() + 3));
    ++expected;
  };
  if (changes.hold.has_value()) {
    AddHold(*changes.hold, statements);
    expect("bucketd_hold", "plan = $$$0 AND holder = $$$1 AND expires = $$$2");
    there = PgStatement("")
                .Bytes(HashOf(changes.hold->key))
                .Bytes(changes.hold->holder)
                .Int(MsOf(changes.hold->expires));
  }
  for (const RecordChange* change : InOrder(changes)) {
    statements.push_back(Audited(Change(change->record, change->before, change->after, id),
                                 change->line.what.empty() ? nullptr : &change->line));
    CountChange(change->record.shelf, statements);
    expect("bucketd_record", "shelf = $$$0 AND key = $$$1 AND write_id = $$$2");
    there = Named(std::move(there), change->record).Int(id);
  }
  if (changes.unless.has_value()) {
    expect(
        "bucketd_schema",
        "id = 1 AND NOT EXISTS (SELECT 1 FROM bucketd_record WHERE shelf = $$$0 AND key = $$$1)");
    there = Named(std::move(there), *changes.unless);
  }
  there.Say(ExpectRowsSql(rows, expected));
  statements.push_back(std::move(there));
  return Write(statements).status();
}

absl::StatusOr<std::vector<Record>> PostgresStore::ListRecords(Shelf shelf,
                                                               absl::string_view prefix,
                                                               absl::string_view from,
                                                               int32_t limit) {
  ASSIGN_OR_RETURN(
      const PgResult found,
      Query(PgStatement("SELECT key, value, checksum FROM bucketd_record WHERE shelf = $1 AND "
                        "key >= $2 AND ($3 IS NULL OR key < $3) ORDER BY key LIMIT $4")
                .Int(static_cast<int64_t>(shelf))
                .Bytes(std::max(prefix, from))
                .Bytes(EndOfPrefix(prefix))
                .Int(limit)));
  std::vector<Record> records;
  for (int row = 0; row < found.rows(); ++row) {
    Record record{std::string(found.Bytes(row, 0)), std::string(found.Bytes(row, 1))};
    if (IsWhole(record.key, record.value, found.Bytes(row, 2))) {
      TellRead(StoreValue::kRecord, record.value);
      records.push_back(std::move(record));
      continue;
    }
    TellRead(StoreValue::kRecord, Damaged());
    ForgetRecord(shelf, record.key, record.value).IgnoreError();
  }
  if (records.empty() && found.rows() > 0) {
    return ListRecords(shelf, prefix, KeyBehind(found.Bytes(found.rows() - 1, 0)), limit);
  }
  return records;
}

}  // namespace bucketd
