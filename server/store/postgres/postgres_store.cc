#include "server/store/postgres/postgres_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/digest.h"
#include "passes/base/status_macros.h"
#include "server/store/postgres/pg_schema.h"
#include "server/store/postgres/pg_sql.h"
#include "server/store/stored_value.h"

namespace bucketd {
namespace {

// Engines beside PostgreSQL hold no larger values.
constexpr size_t kChunkBytes = size_t{256} << 10;

std::string HashOf(absl::string_view key) { return std::string(AsBytes(Sha256(key))); }

// Pins and leases are many, and nobody polls for them: one row that each job writes would hold up
// all.
void CountChange(Shelf shelf, std::vector<PgStatement>& statements) {
  if (shelf == Shelf::kPins || shelf == Shelf::kReplicas) return;
  statements.emplace_back("UPDATE bucketd_schema SET changes = changes + 1 WHERE id = 1");
}

PgStatement ReadRecord(Shelf shelf, absl::string_view key) {
  return PgStatement(
             "SELECT value, checksum, write_id FROM bucketd_record WHERE shelf = $1 AND key = $2")
      .Int(static_cast<int64_t>(shelf))
      .Bytes(key);
}

}  // namespace

PostgresStore::PostgresStore(PgTarget target, PostgresStoreOptions options)
    : options_(std::move(options)),
      pool_(std::move(target),
            {.connections = options_.connections, .call_timeout = options_.call_timeout}) {}

absl::StatusOr<std::unique_ptr<PostgresStore>> PostgresStore::Open(PostgresStoreOptions options) {
  ASSIGN_OR_RETURN(PgTarget target, PgTarget::Parse(options.url));
  options.url.clear();  // its password is in `target` alone
  std::unique_ptr<PostgresStore> store(new PostgresStore(std::move(target), std::move(options)));
  if (store->options_.read_only) {
    ASSIGN_OR_RETURN(const int64_t version, CheckPgSchema(store->pool_));
    store->has_audit_ = version >= kPgSchemaWithAudit;
  } else {
    RETURN_IF_ERROR(PreparePgSchema(store->pool_));
  }
  if (store->options_.maintenance.count() > 0) {
    store->maintenance_ = std::jthread([self = store.get()] { self->MaintainForEver(); });
  }
  return store;
}

std::optional<int64_t> PostgresStore::Now() const {
  if (!options_.clock) return std::nullopt;
  return options_.clock().time_since_epoch().count();
}

absl::StatusOr<std::vector<PgResult>> PostgresStore::Write(
    absl::Span<const PgStatement> statements) {
  absl::StatusOr<std::vector<PgResult>> results = pool_.Run(statements);
  if (options_.observer == nullptr) return results;
  const StoreWrite failed =
      absl::IsResourceExhausted(results.status()) ? StoreWrite::kNoSpace : StoreWrite::kError;
  options_.observer->Wrote(
      results.ok() ? StoreWrite::kOk : failed,
      results.ok() ? "" : absl::StrCat("cannot write: ", results.status().message()));
  return results;
}

absl::StatusOr<std::vector<PgResult>> PostgresStore::Query(const PgStatement& statement) {
  return pool_.Run({&statement, 1});
}

void PostgresStore::TellRead(StoreValue value,
                             const absl::StatusOr<std::optional<std::string>>& read) {
  if (options_.observer == nullptr) return;
  if (read.ok()) {
    options_.observer->Read(value, read->has_value() ? StoreRead::kHit : StoreRead::kMiss, "");
    return;
  }
  options_.observer->Read(value,
                          absl::IsDataLoss(read.status()) ? StoreRead::kDamaged : StoreRead::kError,
                          absl::StrCat("a value cannot be read: ", read.status().message()));
}

// ---- plans

absl::StatusOr<std::optional<std::string>> PostgresStore::GetPlan(absl::string_view key) {
  const std::string hash = HashOf(key);
  std::string damaged;  // its checksum
  const auto read = [&]() -> absl::StatusOr<std::optional<std::string>> {
    // One statement, so one snapshot: never the pieces of two plans.
    ASSIGN_OR_RETURN(const std::vector<PgResult> found,
                     Query(PgStatement("SELECT p.key, p.checksum, c.bytes FROM bucketd_plan p "
                                       "LEFT JOIN bucketd_plan_chunk c ON c.plan = p.hash "
                                       "WHERE p.hash = $1 ORDER BY c.part")
                               .Bytes(hash)));
    const PgResult& rows = found[0];
    if (rows.rows() == 0) return std::nullopt;
    std::string plan;
    for (int row = 0; row < rows.rows(); ++row) absl::StrAppend(&plan, rows.Bytes(row, 2));
    if (rows.Bytes(0, 0) == key && IsWhole(key, plan, rows.Bytes(0, 1))) return plan;
    damaged = std::string(rows.Bytes(0, 1));
    return Damaged();
  };
  const absl::StatusOr<std::optional<std::string>> plan = read();
  TellRead(StoreValue::kPlan, plan);
  if (plan.ok() && plan->has_value()) NoteUse(key);
  if (absl::IsDataLoss(plan.status())) ForgetPlan(hash, damaged).IgnoreError();  // told by Write
  return plan;
}

absl::Status PostgresStore::ForgetPlan(absl::string_view hash, absl::string_view checksum) {
  const PgStatement forget =
      PgStatement("DELETE FROM bucketd_plan WHERE hash = $1 AND checksum = $2")
          .Bytes(hash)
          .Bytes(checksum);
  return Write({&forget, 1}).status();
}

absl::Status PostgresStore::PutPlan(absl::string_view key, absl::string_view tenant,
                                    absl::string_view plan) {
  const std::string hash = HashOf(key);
  std::vector<PgStatement> statements;
  // First the row of the index: it is the lock, whoever replaces the plan waits for it.
  statements.push_back(
      PgStatement(
          absl::StrCat(
              "INSERT INTO bucketd_plan(hash, key, tenant, graph, bytes, checksum, created, "
              "used, held_until) VALUES($1, $2, $3, $4, $5, $6, ",
              NowSql(7), ", ", NowSql(7),
              ", 0) ON CONFLICT(hash) DO UPDATE SET key = excluded.key, "
              "tenant = excluded.tenant, graph = excluded.graph, bytes = excluded.bytes, "
              "checksum = excluded.checksum, created = excluded.created, "
              "used = excluded.used"))
          .Bytes(hash)
          .Bytes(key)
          .Bytes(tenant)
          .Text(GraphIn(key))
          .Int(static_cast<int64_t>(key.size() + plan.size()))
          .Bytes(AsBytes(ValueChecksum(key, plan)))
          .Int(Now()));
  statements.push_back(PgStatement("DELETE FROM bucketd_plan_chunk WHERE plan = $1").Bytes(hash));
  int64_t part = 0;
  for (size_t at = 0; at < plan.size() || part == 0; at += kChunkBytes) {
    statements.push_back(
        PgStatement("INSERT INTO bucketd_plan_chunk(plan, part, bytes) VALUES($1, $2, $3)")
            .Bytes(hash)
            .Int(part++)
            .Bytes(plan.substr(at, kChunkBytes)));
  }
  return Write(statements).status();
}

// The plan's row says until when it is held by anybody, and whoever holds it or lets go changes
// that row: a DELETE that waits for one of them sees what it wrote.
absl::Status PostgresStore::HoldPlan(absl::string_view key, absl::string_view holder,
                                     WallTime expires) {
  const std::string hash = HashOf(key);
  const std::vector<PgStatement> statements = {
      PgStatement("SELECT 1 FROM bucketd_plan WHERE hash = $1 FOR UPDATE").Bytes(hash),
      PgStatement("INSERT INTO bucketd_hold(plan, holder, expires) SELECT hash, $2, $3 FROM "
                  "bucketd_plan WHERE hash = $1 ON CONFLICT(plan, holder) DO UPDATE SET "
                  "expires = excluded.expires")
          .Bytes(hash)
          .Bytes(holder)
          .Int(expires.time_since_epoch().count()),
      PgStatement("UPDATE bucketd_plan SET held_until = (SELECT MAX(expires) FROM bucketd_hold "
                  "WHERE plan = $1) WHERE hash = $1 AND EXISTS (SELECT 1 FROM bucketd_hold WHERE "
                  "plan = $1)")
          .Bytes(hash)};
  ASSIGN_OR_RETURN(const std::vector<PgResult> results, Write(statements));
  if (results[1].affected() > 0) return absl::OkStatus();
  return absl::NotFoundError("there is no such plan in the store");
}

absl::Status PostgresStore::ReleaseHolds(absl::string_view holder) {
  const std::vector<PgStatement> statements = {
      PgStatement("SELECT 1 FROM bucketd_plan WHERE hash IN (SELECT plan FROM bucketd_hold WHERE "
                  "holder = $1) ORDER BY hash FOR UPDATE")
          .Bytes(holder),
      PgStatement("UPDATE bucketd_plan SET held_until = COALESCE((SELECT MAX(h.expires) FROM "
                  "bucketd_hold h WHERE h.plan = bucketd_plan.hash AND h.holder <> $1), 0) "
                  "WHERE hash IN (SELECT plan FROM bucketd_hold WHERE holder = $1)")
          .Bytes(holder),
      PgStatement("DELETE FROM bucketd_hold WHERE holder = $1").Bytes(holder)};
  return Write(statements).status();
}

// ---- records

absl::StatusOr<std::optional<std::string>> PostgresStore::GetRecord(Shelf shelf,
                                                                    absl::string_view key) {
  std::string damaged;
  const auto read = [&]() -> absl::StatusOr<std::optional<std::string>> {
    ASSIGN_OR_RETURN(const std::vector<PgResult> found, Query(ReadRecord(shelf, key)));
    if (found[0].rows() == 0) return std::nullopt;
    std::string value(found[0].Bytes(0, 0));
    if (IsWhole(key, value, found[0].Bytes(0, 1))) return value;
    damaged = std::move(value);
    return Damaged();
  };
  const absl::StatusOr<std::optional<std::string>> value = read();
  TellRead(StoreValue::kRecord, value);
  if (absl::IsDataLoss(value.status())) ForgetRecord(shelf, key, damaged).IgnoreError();
  return value;
}

absl::Status PostgresStore::ForgetRecord(Shelf shelf, absl::string_view key,
                                         absl::string_view value) {
  if (shelf == Shelf::kSettings) return absl::OkStatus();
  const PgStatement forget =
      PgStatement("DELETE FROM bucketd_record WHERE shelf = $1 AND key = $2 AND value = $3")
          .Int(static_cast<int64_t>(shelf))
          .Bytes(key)
          .Bytes(value);
  return Write({&forget, 1}).status();
}

absl::Status PostgresStore::PutRecord(Shelf shelf, absl::string_view key, absl::string_view value,
                                      const AuditLine* line) {
  std::vector<PgStatement> statements;
  statements.push_back(
      Audited(PgStatement("INSERT INTO bucketd_record(shelf, key, value, checksum, write_id) "
                          "VALUES($1, $2, $3, $4, $5) ON CONFLICT(shelf, key) DO UPDATE SET "
                          "value = excluded.value, checksum = excluded.checksum, "
                          "write_id = excluded.write_id")
                  .Int(static_cast<int64_t>(shelf))
                  .Bytes(key)
                  .Bytes(value)
                  .Bytes(AsBytes(ValueChecksum(key, value)))
                  .Int(NewWriteId()),
              line));
  CountChange(shelf, statements);
  return Write(statements).status();
}

absl::Status PostgresStore::EraseRecord(Shelf shelf, absl::string_view key, const AuditLine* line) {
  std::vector<PgStatement> statements;
  statements.push_back(
      Audited(PgStatement("DELETE FROM bucketd_record WHERE shelf = $1 AND key = $2")
                  .Int(static_cast<int64_t>(shelf))
                  .Bytes(key),
              line));
  CountChange(shelf, statements);
  return Write(statements).status();
}

// The condition stands in the write that it guards. What the row says after it decides, so that a
// write whose answer was lost is simply made again.
absl::Status PostgresStore::ReplaceRecord(Shelf shelf, absl::string_view key,
                                          const std::optional<std::string>& before,
                                          const std::optional<absl::string_view>& after,
                                          const AuditLine* line) {
  const absl::Status moved = absl::AbortedError("another value was written meanwhile");
  const auto on = static_cast<int64_t>(shelf);
  const int64_t id = NewWriteId();
  std::vector<PgStatement> statements;
  if (!after.has_value()) {
    statements.push_back(
        PgStatement("DELETE FROM bucketd_record WHERE shelf = $1 AND key = $2 AND value = $3")
            .Int(on)
            .Bytes(key)
            .Bytes(before));
  } else if (before.has_value()) {
    statements.push_back(PgStatement("UPDATE bucketd_record SET value = $4, checksum = $5, "
                                     "write_id = $6 WHERE shelf = $1 AND key = $2 AND value = $3")
                             .Int(on)
                             .Bytes(key)
                             .Bytes(before)
                             .Bytes(after)
                             .Bytes(AsBytes(ValueChecksum(key, *after)))
                             .Int(id));
  } else {
    statements.push_back(PgStatement("INSERT INTO bucketd_record(shelf, key, value, checksum, "
                                     "write_id) VALUES($1, $2, $3, $4, $5) "
                                     "ON CONFLICT(shelf, key) DO NOTHING")
                             .Int(on)
                             .Bytes(key)
                             .Bytes(after)
                             .Bytes(AsBytes(ValueChecksum(key, *after)))
                             .Int(id));
  }
  statements[0] = Audited(std::move(statements[0]), line);
  statements.push_back(ReadRecord(shelf, key));
  CountChange(shelf, statements);
  ASSIGN_OR_RETURN(const std::vector<PgResult> results, Write(statements));
  const PgResult& stands = results[1];
  if (!after.has_value()) {
    const bool gone = before.has_value() ? results[0].affected() > 0 : stands.rows() == 0;
    return gone ? absl::OkStatus() : moved;
  }
  if (stands.rows() > 0 && stands.Int(0, 2) == id) return absl::OkStatus();
  if (before.has_value() || stands.rows() == 0) return moved;
  const std::string damaged(stands.Bytes(0, 0));
  if (IsWhole(key, damaged, stands.Bytes(0, 1))) return moved;
  return ReplaceRecord(shelf, key, damaged, after, line);  // a damaged value counts as none
}

absl::StatusOr<std::vector<Record>> PostgresStore::ListRecords(Shelf shelf,
                                                               absl::string_view prefix,
                                                               absl::string_view after,
                                                               int32_t limit) {
  ASSIGN_OR_RETURN(
      const std::vector<PgResult> found,
      Query(PgStatement("SELECT key, value, checksum FROM bucketd_record WHERE shelf = $1 AND "
                        "key >= $2 AND key > $3 AND ($4 IS NULL OR key < $4) ORDER BY key LIMIT $5")
                .Int(static_cast<int64_t>(shelf))
                .Bytes(prefix)
                .Bytes(after)
                .Bytes(EndOfPrefix(prefix))
                .Int(limit)));
  std::vector<Record> records;
  for (int row = 0; row < found[0].rows(); ++row) {
    Record record{std::string(found[0].Bytes(row, 0)), std::string(found[0].Bytes(row, 1))};
    if (IsWhole(record.key, record.value, found[0].Bytes(row, 2))) {
      TellRead(StoreValue::kRecord, record.value);
      records.push_back(std::move(record));
      continue;
    }
    TellRead(StoreValue::kRecord, Damaged());
    ForgetRecord(shelf, record.key, record.value).IgnoreError();
  }
  return records;
}

absl::StatusOr<int64_t> PostgresStore::Version() {
  ASSIGN_OR_RETURN(const std::vector<PgResult> found,
                   Query(PgStatement("SELECT changes FROM bucketd_schema WHERE id = 1")));
  if (found[0].rows() == 1) return found[0].Int(0, 0);
  return absl::UnavailableError(absl::StrCat(place(), ": bucketd_schema has no row"));
}

}  // namespace bucketd
