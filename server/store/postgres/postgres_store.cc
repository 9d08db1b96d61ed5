#include "server/store/postgres/postgres_store.h"

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

}  // namespace

PostgresStore::PostgresStore(PgTarget target, PostgresStoreOptions options)
    : options_(std::move(options)),
      pool_(std::move(target),
            {.connections = options_.connections,
             .call_timeout = options_.call_timeout,
             .writes = !options_.read_only,
             .writes_again = [this] { options_.observer->Wrote(StoreWrite::kOk, ""); }}) {}

absl::StatusOr<std::unique_ptr<PostgresStore>> PostgresStore::Open(PostgresStoreOptions options) {
  ASSIGN_OR_RETURN(PgTarget target, PgTarget::Parse(options.url));
  options.url.clear();  // its password is in `target` alone
  if (!options.read_only) target.WantWrites();
  std::unique_ptr<PostgresStore> store(new PostgresStore(std::move(target), std::move(options)));
  if (store->options_.read_only) {
    ASSIGN_OR_RETURN(const int64_t version, CheckPgSchema(store->pool_));
    store->has_audit_ = version >= kPgSchemaWithAudit;
  } else {
    RETURN_IF_ERROR(PreparePgSchema(store->pool_));
  }
  if (store->options_.maintenance.count() > 0) {
    store->maintenance_ = std::jthread(
        [self = store.get()](const std::stop_token& stop) { self->MaintainForEver(stop); });
  }
  return store;
}

std::optional<int64_t> PostgresStore::Now() const {
  if (!options_.clock) return std::nullopt;
  return MsOf(options_.clock());
}

absl::StatusOr<std::vector<PgResult>> PostgresStore::Write(
    absl::Span<const PgStatement> statements) {
  const auto write = [&]() -> absl::StatusOr<std::vector<PgResult>> {
    RETURN_IF_ERROR(OurTables());
    return pool_.Run(PgKind::kWrite, statements);
  };
  absl::StatusOr<std::vector<PgResult>> results = write();
  TellWrote(*options_.observer, results.status());
  return results;
}

absl::StatusOr<PgResult> PostgresStore::WriteOne(const PgStatement& statement) {
  ASSIGN_OR_RETURN(std::vector<PgResult> results, Write({&statement, 1}));
  return std::move(results[0]);
}

absl::StatusOr<std::vector<PgResult>> PostgresStore::Read(
    absl::Span<const PgStatement> statements) {
  RETURN_IF_ERROR(OurTables());
  return pool_.Run(PgKind::kRead, statements);
}

absl::StatusOr<PgResult> PostgresStore::Query(const PgStatement& statement) {
  ASSIGN_OR_RETURN(std::vector<PgResult> results, Read({&statement, 1}));
  return std::move(results[0]);
}

void PostgresStore::TellRead(StoreValue value,
                             const absl::StatusOr<std::optional<std::string>>& read) {
  bucketd::TellRead(*options_.observer, value, read.status(), read.ok() && read->has_value());
}

// ---- plans

// One statement, so one snapshot: never the pieces of two plans.
PgStatement PostgresStore::PlanSql(absl::string_view key) {
  return PgStatement(
             "SELECT p.key, p.checksum, c.bytes FROM bucketd_plan p LEFT JOIN bucketd_plan_chunk c "
             "ON c.plan = p.hash WHERE p.hash = $1 ORDER BY c.part")
      .Bytes(HashOf(key));
}

absl::StatusOr<std::optional<std::string>> PostgresStore::PlanIn(const PgResult& rows,
                                                                 absl::string_view key) {
  absl::StatusOr<std::optional<std::string>> plan = std::optional<std::string>();
  if (rows.rows() > 0) {
    std::string bytes;
    for (int row = 0; row < rows.rows(); ++row) absl::StrAppend(&bytes, rows.Bytes(row, 2));
    const bool whole = rows.Bytes(0, 0) == key && IsWhole(key, bytes, rows.Bytes(0, 1));
    plan = whole ? absl::StatusOr<std::optional<std::string>>(std::move(bytes)) : Damaged();
  }
  TellRead(StoreValue::kPlan, plan);
  if (plan.ok() && plan->has_value()) NoteUse(key);
  // What comes of it is told by Write.
  if (!plan.ok()) ForgetPlan(HashOf(key), rows.Bytes(0, 1)).IgnoreError();
  return plan;
}

absl::StatusOr<std::optional<std::string>> PostgresStore::GetPlan(absl::string_view key) {
  const absl::StatusOr<PgResult> found = Query(PlanSql(key));
  if (found.ok()) return PlanIn(*found, key);
  TellRead(StoreValue::kPlan, found.status());
  return found.status();
}

absl::Status PostgresStore::ForgetPlan(absl::string_view hash, absl::string_view checksum) {
  return WriteOne(PgStatement("DELETE FROM bucketd_plan WHERE hash = $1 AND checksum = $2")
                      .Bytes(hash)
                      .Bytes(checksum))
      .status();
}

std::vector<PgStatement> PostgresStore::PlanPut(absl::string_view key, absl::string_view tenant,
                                                absl::string_view plan) const {
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
  return statements;
}

absl::Status PostgresStore::PutPlan(absl::string_view key, absl::string_view tenant,
                                    absl::string_view plan) {
  return Write(PlanPut(key, tenant, plan)).status();
}

absl::Status PostgresStore::HoldPlan(absl::string_view key, absl::string_view holder,
                                     WallTime expires) {
  std::vector<PgStatement> statements;
  AddHold({std::string(key), std::string(holder), expires}, statements);
  ASSIGN_OR_RETURN(const std::vector<PgResult> results, Write(statements));
  if (results[1].affected() > 0) return absl::OkStatus();
  return absl::NotFoundError("there is no such plan in the store");
}

// Whoever pins writes hold and pin together, and locks the plan first: a statement that has waited
// for that, or begins behind it, sees both.
absl::Status PostgresStore::ReleaseHolds(absl::string_view holder) {
  constexpr char kNothingPinned[] =
      " AND NOT EXISTS (SELECT 1 FROM bucketd_record WHERE shelf = $2 AND key >= $1 AND ($3 IS "
      "NULL OR key < $3))";
  const auto of_holder = [&](std::string sql) {
    return PgStatement(std::move(sql))
        .Bytes(holder)
        .Int(static_cast<int64_t>(Shelf::kPins))
        .Bytes(EndOfPrefix(holder));
  };
  const std::vector<PgStatement> statements = {
      PgStatement("SELECT 1 FROM bucketd_plan WHERE hash IN (SELECT plan FROM bucketd_hold WHERE "
                  "holder = $1) ORDER BY hash FOR UPDATE")
          .Bytes(holder),
      of_holder(
          absl::StrCat("UPDATE bucketd_plan SET held_until = COALESCE((SELECT MAX(h.expires) FROM "
                       "bucketd_hold h WHERE h.plan = bucketd_plan.hash AND h.holder <> $1), 0) "
                       "WHERE hash IN (SELECT plan FROM bucketd_hold WHERE holder = $1)",
                       kNothingPinned)),
      of_holder(absl::StrCat("DELETE FROM bucketd_hold WHERE holder = $1", kNothingPinned))};
  return Write(statements).status();
}

absl::Status PostgresStore::OurTables() const {
  const absl::MutexLock lock(&tables_mutex_);
  return our_tables_;
}

// A server that runs on hears here of a version that is not for it, or of a row that is gone.
absl::StatusOr<int64_t> PostgresStore::Version() {
  const PgStatement read(
      absl::StrCat("SELECT ", kPgVersionColumns, ", changes FROM bucketd_schema WHERE id = 1"));
  ASSIGN_OR_RETURN(const std::vector<PgResult> found, pool_.Run(PgKind::kRead, {&read, 1}));
  const absl::Status ours = CheckPgVersion(place(), found[0]).status();
  {
    const absl::MutexLock lock(&tables_mutex_);
    our_tables_ = ours.ok() ? ours : absl::UnavailableError(ours.message());
    RETURN_IF_ERROR(our_tables_);
  }
  return found[0].Int(0, 2);
}

}  // namespace bucketd
