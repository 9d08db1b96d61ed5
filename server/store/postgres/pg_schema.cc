#include "server/store/postgres/pg_schema.h"

#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/store/crash_point.h"
#include "server/store/postgres/pg_sql.h"

namespace bucketd {
namespace {

constexpr int kRaces = 5;  // with other servers that make the tables

// README.md says what each is for. Names and texts of callers are bytes: any encoding of the
// database will do.
constexpr std::array kTables = {
    "CREATE TABLE IF NOT EXISTS bucketd_schema(id BIGINT PRIMARY KEY CHECK(id = 1), "
    "version BIGINT NOT NULL, min_reader BIGINT NOT NULL, changes BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS bucketd_plan(hash BYTEA PRIMARY KEY, key BYTEA NOT NULL, "
    "tenant BYTEA NOT NULL, graph TEXT, bytes BIGINT NOT NULL, created BIGINT NOT NULL, "
    "used BIGINT NOT NULL, held_until BIGINT NOT NULL, checksum BYTEA NOT NULL)",
    "CREATE INDEX IF NOT EXISTS bucketd_plan_used ON bucketd_plan(used)",
    "CREATE TABLE IF NOT EXISTS bucketd_plan_chunk(plan BYTEA REFERENCES bucketd_plan(hash) "
    "ON DELETE CASCADE, part BIGINT, bytes BYTEA NOT NULL, PRIMARY KEY(plan, part))",
    "CREATE TABLE IF NOT EXISTS bucketd_hold(plan BYTEA REFERENCES bucketd_plan(hash) "
    "ON DELETE CASCADE, holder BYTEA, expires BIGINT NOT NULL, PRIMARY KEY(plan, holder))",
    "CREATE INDEX IF NOT EXISTS bucketd_hold_holder ON bucketd_hold(holder)",
    "CREATE TABLE IF NOT EXISTS bucketd_record(shelf BIGINT, key BYTEA, value BYTEA NOT NULL, "
    "checksum BYTEA NOT NULL, write_id BIGINT NOT NULL, PRIMARY KEY(shelf, key))",
};

constexpr char kAuditProbe[] =
    "SELECT number, id, at, who, peer, actor_tenant, tenant, what, subject, before, after FROM "
    "bucketd_audit LIMIT 0";

// Fails where a table of that name has other columns.
constexpr std::array kProbes = {
    "SELECT hash, key, tenant, graph, bytes, created, used, held_until, checksum FROM bucketd_plan "
    "LIMIT 0",
    "SELECT plan, part, bytes FROM bucketd_plan_chunk LIMIT 0",
    "SELECT plan, holder, expires FROM bucketd_hold LIMIT 0",
    "SELECT shelf, key, value, checksum, write_id FROM bucketd_record LIMIT 0",
};

bool Said(const absl::Status& status, absl::string_view sqlstate) {
  return absl::StrContains(status.message(), absl::StrCat("(", sqlstate, ")"));
}

// What whoever starts the server can do about it.
absl::Status Explain(const absl::Status& status) {
  const auto with = [&](absl::StatusCode code, absl::string_view what) {
    return absl::Status(code, absl::StrCat(status.message(), ": ", what));
  };
  if (Said(status, "42501")) {
    return with(absl::StatusCode::kUnavailable,
                "GRANT CREATE, USAGE ON SCHEMA public to this user, or make it the database's "
                "owner; tables that another user made want all rights on them");
  }
  // The second is libpq's word where no host takes writes.
  if (Said(status, "25006") || absl::StrContains(status.message(), "session is read-only")) {
    return with(absl::StatusCode::kFailedPrecondition,
                "a standby, or a database for reading alone; name the primary, or all hosts");
  }
  for (const char* foreign : {"42703", "42P01", "42804", "42809", "42P16"}) {
    if (!Said(status, foreign)) continue;
    return with(absl::StatusCode::kFailedPrecondition,
                "tables named bucketd_... are not ours, or not whole; name another database");
  }
  return status;
}

std::vector<PgStatement> Probes(int64_t version) {
  std::vector<PgStatement> probes;
  for (const char* sql : kProbes) probes.emplace_back(sql);
  if (version >= kPgSchemaWithAudit) probes.emplace_back(kAuditProbe);
  return probes;
}

absl::Status RunInRaces(PgPool& pool, const std::vector<PgStatement>& all) {
  absl::Status made;
  for (int race = 0; race < kRaces; ++race) {
    made = pool.Run(PgKind::kWrite, all).status();
    // Two that make a table at once: one of them is told that the name is taken.
    if (!Said(made, "23505") && !Said(made, "42P07") && !Said(made, "42710")) break;
  }
  return made;
}

absl::Status MakeTables(PgPool& pool) {
  const PgSchema schema = NewestPgSchema();
  std::vector<PgStatement> all;
  for (const char* sql : kTables) all.emplace_back(sql);
  for (const std::string& sql : schema.adds) all.emplace_back(sql);
  for (const PgStatement& probe : Probes(schema.version)) all.push_back(probe);
  all.push_back(PgStatement("INSERT INTO bucketd_schema(id, version, min_reader, changes) "
                            "VALUES(1, $1, $2, 1) ON CONFLICT(id) DO NOTHING")
                    .Int(schema.version)
                    .Int(schema.min_reader));
  CrashPoint("schema: to be made");
  const absl::Status made = RunInRaces(pool, all);
  CrashPoint("schema: made");
  return made;
}

// What is new is added, and whoever reads the version before still may.
absl::Status Expand(PgPool& pool) {
  const PgSchema schema = NewestPgSchema();
  std::vector<PgStatement> all;
  for (const std::string& sql : schema.adds) all.emplace_back(sql);
  for (const PgStatement& probe : Probes(schema.version)) all.push_back(probe);
  all.push_back(
      PgStatement("UPDATE bucketd_schema SET version = $1 WHERE id = 1 AND version = $1 - 1")
          .Int(schema.version));
  CrashPoint("schema: to be expanded");
  const absl::Status expanded = RunInRaces(pool, all);
  CrashPoint("schema: expanded");
  return expanded;
}

absl::StatusOr<std::vector<PgResult>> ReadVersion(PgPool& pool) {
  const PgStatement read(
      absl::StrCat("SELECT ", kPgVersionColumns, " FROM bucketd_schema WHERE id = 1"));
  return pool.Run(PgKind::kRead, {&read, 1});
}

// What two transactions see of each other is what README.md says of them.
absl::Status CheckIsolation(PgPool& pool) {
  const PgStatement ask(
      "SELECT current_setting('transaction_isolation'), 'ALTER ROLE ' || "
      "quote_ident(current_user) || ' IN DATABASE ' || quote_ident(current_database()) || "
      "' SET default_transaction_isolation = ''read committed'''");
  const absl::StatusOr<std::vector<PgResult>> found = pool.Run(PgKind::kWrite, {&ask, 1});
  if (!found.ok()) return Explain(found.status());
  const absl::string_view isolation = (*found)[0].Bytes(0, 0);
  if (isolation == "read committed") return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      pool.place(), ": transactions are '", isolation,
      "' here, and those of bucketd have to be 'read committed'. Unless the URL or PGOPTIONS says "
      "so: ",
      (*found)[0].Bytes(0, 1)));
}

}  // namespace

absl::StatusOr<int64_t> CheckPgVersion(const std::string& place, const PgResult& row) {
  if (row.rows() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(place,
                     ": bucketd_schema has no row: the store is not whole; restore it from "
                     "a backup, or name another database"));
  }
  const int64_t version = row.Int(0, 0), min_reader = row.Int(0, 1);
  const int64_t own = NewestPgSchema().version;
  if (version >= own - 1 && version <= own + 1 && min_reader <= own) return version;
  return absl::FailedPreconditionError(absl::StrCat(
      place, ": the store has schema ", version, ", for servers that know schema ", min_reader,
      " or later; this one knows schema ", own, ", and takes ", own - 1, " to ", own + 1,
      " where they are for it: start a bucketd of the version that wrote it, or name another "
      "database"));
}

std::vector<PgStatement> PgProbe(PgKind kind) {
  if (kind == PgKind::kRead) return Probes(NewestPgSchema().version);
  // A row that is gone before anybody sees it: a transaction that writes nothing waits for no
  // standby.
  const int64_t id = NewWriteId();
  const std::string key = absl::StrCat("probe ", id);
  std::vector<PgStatement> statements;
  statements.push_back(
      PgStatement("INSERT INTO bucketd_record(shelf, key, value, checksum, write_id) "
                  "VALUES(0, $1, $1, $1, $2)")
          .Bytes(key)
          .Int(id));
  for (const char* sql : {"DELETE FROM bucketd_record WHERE shelf = 0 AND key = $1",
                          "DELETE FROM bucketd_plan WHERE hash = $1",
                          "DELETE FROM bucketd_plan_chunk WHERE plan = $1",
                          "DELETE FROM bucketd_hold WHERE plan = $1"}) {
    statements.push_back(PgStatement(sql).Bytes(key));
  }
  statements.emplace_back("DELETE FROM bucketd_audit WHERE number IS NULL");
  statements.emplace_back("UPDATE bucketd_schema SET changes = changes WHERE id = 0");
  return statements;
}

absl::StatusOr<int64_t> CheckPgSchema(PgPool& pool) {
  const absl::StatusOr<std::vector<PgResult>> found = ReadVersion(pool);
  if (Said(found.status(), "42P01")) {
    return absl::NotFoundError(
        absl::StrCat(pool.place(), ": there is no store of bucketd in this database"));
  }
  if (!found.ok()) return Explain(found.status());
  ASSIGN_OR_RETURN(const int64_t version, CheckPgVersion(pool.place(), (*found)[0]));
  const std::vector<PgStatement> probes = Probes(version);
  RETURN_IF_ERROR(Explain(pool.Run(PgKind::kRead, probes).status()));
  return version;
}

absl::Status PreparePgSchema(PgPool& pool) {
  RETURN_IF_ERROR(CheckIsolation(pool));
  absl::StatusOr<std::vector<PgResult>> found = ReadVersion(pool);
  if (Said(found.status(), "42P01")) {
    const absl::Status made = MakeTables(pool);
    if (!made.ok()) return Explain(made);
    found = ReadVersion(pool);
  }
  if (!found.ok()) return Explain(found.status());
  ASSIGN_OR_RETURN(const int64_t version, CheckPgVersion(pool.place(), (*found)[0]));
  if (version < NewestPgSchema().version) {
    const absl::Status expanded = Expand(pool);
    if (!expanded.ok()) return Explain(expanded);
  }
  std::vector<PgStatement> checks = Probes(std::max(version, kPgSchemaWithAudit));
  checks.emplace_back("UPDATE bucketd_schema SET changes = changes WHERE id = 1");
  return Explain(pool.Run(PgKind::kWrite, checks).status());
}

}  // namespace bucketd
