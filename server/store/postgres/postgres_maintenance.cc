// The part of PostgresStore that lists plans and keeps them within their bounds.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/store/postgres/pg_sql.h"
#include "server/store/postgres/postgres_store.h"

namespace bucketd {
namespace {

constexpr size_t kMaxUses = 1 << 16;  // noted between two flushes; more are forgotten
constexpr size_t kUsesATrip = 500;

// $1 to $4.
constexpr char kSelected[] =
    "($1 IS NULL OR hash = $1) AND ($2 IS NULL OR tenant = $2) AND ($3 IS NULL OR graph = $3) AND "
    "($4 IS NULL OR used < $4)";

PgStatement WithSelection(std::string sql, const PlanSelection& selection) {
  std::optional<std::string> hash;
  if (selection.key.has_value()) hash = HashOf(*selection.key);
  std::optional<int64_t> before;
  if (selection.not_used_since.has_value()) before = MsOf(*selection.not_used_since);
  return PgStatement(std::move(sql))
      .Bytes(hash)
      .Bytes(selection.tenant)
      .Text(selection.graph_digest)
      .Int(before);
}

}  // namespace

absl::StatusOr<std::vector<StoredPlan>> PostgresStore::ListPlans(const PlanSelection& selection,
                                                                 int32_t limit) {
  PgStatement list =
      WithSelection(absl::StrCat("SELECT key, tenant, bytes, created, used, "
                                 "CASE WHEN held_until > ",
                                 NowSql(5),
                                 " THEN CAST(1 AS BIGINT) ELSE 0 END FROM bucketd_plan "
                                 "WHERE ",
                                 kSelected, " ORDER BY used DESC, hash LIMIT $6"),
                    selection);
  ASSIGN_OR_RETURN(const PgResult found, Query(std::move(list).Int(Now()).Int(limit)));
  std::vector<StoredPlan> plans;
  for (int row = 0; row < found.rows(); ++row) {
    StoredPlan& plan = plans.emplace_back();
    plan.key = std::string(found.Bytes(row, 0));
    plan.tenant = std::string(found.Bytes(row, 1));
    plan.bytes = found.Int(row, 2);
    plan.created = WallAt(found.Int(row, 3));
    plan.used = WallAt(found.Int(row, 4));
    plan.held = found.Int(row, 5) != 0;
  }
  return plans;
}

absl::StatusOr<int64_t> PostgresStore::EvictPlans(const PlanSelection& selection,
                                                  const AuditLine* line) {
  if (selection.not_used_since.has_value()) RETURN_IF_ERROR(FlushUses());
  PgStatement evict =
      WithSelection(absl::StrCat("DELETE FROM bucketd_plan WHERE ", kSelected,
                                 " AND held_until <= ", NowSql(5), " RETURNING bytes"),
                    selection)
          .Int(Now());
  if (line == nullptr) return Evict(evict);
  evict.Say(absl::StrCat("WITH done AS (", evict.sql(), "), line AS (",
                         InsertLineSql(evict.parameters() + 1,
                                       "FROM (SELECT COUNT(*) AS n FROM done) AS gone WHERE n > 0",
                                       absl::StrCat("CONVERT_TO(CAST(n AS TEXT) || CONVERT_FROM($",
                                                    evict.parameters() + 10, ", 'UTF8'), 'UTF8')")),
                         ") SELECT bytes FROM done"));
  AuditLine said = *line;
  said.after = kEvictedWords;
  return Evict(WithLine(std::move(evict), {NewWriteId(), 0, {}, std::move(said)}, Now()));
}

// `statement` returns the bytes of each plan that it takes away.
absl::StatusOr<int64_t> PostgresStore::Evict(const PgStatement& statement) {
  ASSIGN_OR_RETURN(const PgResult gone, WriteOne(statement));
  int64_t bytes = 0;
  for (int row = 0; row < gone.rows(); ++row) bytes += gone.Int(row, 0);
  if (gone.rows() > 0) options_.observer->Evicted(gone.rows(), bytes);
  return gone.rows();
}

absl::StatusOr<StoreStats> PostgresStore::Stats() {
  ASSIGN_OR_RETURN(
      const PgResult row,
      Query(
          PgStatement(absl::StrCat("SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS BIGINT), "
                                   "COUNT(CASE WHEN held_until > ",
                                   NowSql(1),
                                   " THEN 1 END), (SELECT COUNT(*) FROM bucketd_record), MIN(used) "
                                   "FROM bucketd_plan"))
              .Int(Now())));
  StoreStats stats;
  stats.plans = row.Int(0, 0);
  stats.plan_bytes = row.Int(0, 1);
  stats.held_plans = row.Int(0, 2);
  stats.records = row.Int(0, 3);
  if (!row.IsNull(0, 4)) stats.oldest_use = WallAt(row.Int(0, 4));
  return stats;
}

void PostgresStore::NoteUse(absl::string_view key) {
  const std::string hash = HashOf(key);
  const absl::MutexLock lock(&uses_mutex_);
  if (uses_.size() < kMaxUses) uses_[hash] = Now();
}

absl::Status PostgresStore::FlushUses() {
  std::vector<std::pair<std::string, std::optional<int64_t>>> uses;
  {
    const absl::MutexLock lock(&uses_mutex_);
    uses.assign(uses_.begin(), uses_.end());
    uses_.clear();
  }
  std::sort(uses.begin(), uses.end());  // so that two servers do not wait for each other
  const std::string note = absl::StrCat("UPDATE bucketd_plan SET used = ", NowSql(2),
                                        " WHERE hash = $1 AND used < ", NowSql(2));
  for (size_t begin = 0; begin < uses.size(); begin += kUsesATrip) {
    std::vector<PgStatement> statements;
    for (size_t i = begin; i < std::min(begin + kUsesATrip, uses.size()); ++i) {
      statements.push_back(PgStatement(note).Bytes(uses[i].first).Int(uses[i].second));
    }
    RETURN_IF_ERROR(Write(statements).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, int64_t>> PostgresStore::PlanBytes() {
  ASSIGN_OR_RETURN(const PgResult found,
                   Query(PgStatement("SELECT tenant, CAST(SUM(bytes) AS BIGINT) FROM bucketd_plan "
                                     "GROUP BY tenant")));
  std::map<std::string, int64_t> bytes;
  for (int row = 0; row < found.rows(); ++row) {
    bytes[std::string(found.Bytes(row, 0))] = found.Int(row, 1);
  }
  return bytes;
}

absl::StatusOr<int64_t> PostgresStore::KeepWithin(absl::string_view tenant, int64_t most) {
  const auto taken = [&]() -> absl::StatusOr<int64_t> {
    ASSIGN_OR_RETURN(const PgResult found,
                     Query(PgStatement("SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM "
                                       "bucketd_plan WHERE tenant = $1")
                               .Bytes(tenant)));
    return found.Int(0, 0);
  };
  ASSIGN_OR_RETURN(const int64_t bytes, taken());
  if (bytes <= most) return bytes;
  RETURN_IF_ERROR(FlushUses());
  RETURN_IF_ERROR(EvictBeyond(tenant, most));
  return taken();
}

// Those that are held first, then those used last, until the bound is reached; the rest goes.
absl::Status PostgresStore::EvictBeyond(std::optional<absl::string_view> tenant, int64_t most) {
  return Evict(PgStatement(
                   absl::StrCat("DELETE FROM bucketd_plan WHERE held_until <= ", NowSql(1),
                                " AND hash IN (SELECT hash FROM (SELECT hash, SUM(bytes) OVER "
                                "(ORDER BY CASE WHEN held_until > ",
                                NowSql(1),
                                " THEN 0 ELSE 1 END, used DESC, hash) AS kept FROM bucketd_plan "
                                "WHERE $2 IS NULL OR tenant = $2) AS sums WHERE kept > $3) "
                                "RETURNING bytes"))
                   .Int(Now())
                   .Bytes(tenant)
                   .Int(most))
      .status();
}

absl::Status PostgresStore::Maintain() {
  absl::Status done = EvictOld();
  done.Update(TrimAudit());  // of a log that cannot be read plans know nothing
  return done;
}

absl::Status PostgresStore::EvictOld() {
  RETURN_IF_ERROR(FlushUses());
  RETURN_IF_ERROR(
      WriteOne(PgStatement(absl::StrCat("DELETE FROM bucketd_hold WHERE expires <= ", NowSql(1)))
                   .Int(Now()))
          .status());
  if (options_.max_age.count() > 0) {
    RETURN_IF_ERROR(
        Evict(PgStatement(absl::StrCat("DELETE FROM bucketd_plan WHERE held_until <= ", NowSql(1),
                                       " AND used < ", NowSql(1), " - $2 RETURNING bytes"))
                  .Int(Now())
                  .Int(options_.max_age.count()))
            .status());
  }
  ASSIGN_OR_RETURN(const StoreStats stats, Stats());
  return stats.plan_bytes > options_.max_bytes ? EvictBeyond(std::nullopt, options_.max_bytes)
                                               : absl::OkStatus();
}

void PostgresStore::MaintainForEver(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any over;
  std::unique_lock<std::mutex> lock(mutex);
  const auto is_over = [&] { return stop.stop_requested(); };
  while (!over.wait_for(lock, stop, options_.maintenance, is_over)) {
    const absl::Status status = Maintain();
    if (!status.ok()) {
      options_.observer->Problem(false, absl::StrCat("maintenance: ", status.message()));
    }
  }
}

PostgresStore::~PostgresStore() {
  maintenance_ = std::jthread();  // ends the one that runs
  FlushUses().IgnoreError();      // a use that is forgotten costs nothing but age
}

}  // namespace bucketd
