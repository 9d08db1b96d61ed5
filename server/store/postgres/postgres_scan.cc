// The part of PostgresStore that looks at all of it.

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/store/postgres/pg_sql.h"
#include "server/store/postgres/postgres_store.h"

namespace bucketd {
namespace {

constexpr int64_t kPage = 256;
constexpr int64_t kRecordPage = 32;  // samples of a profile may be megabytes

void Tally(const ScannedValue& value, ScanResult& result) {
  ++result.values;
  if (!value.status.ok()) ++result.damaged;
}

}  // namespace

absl::StatusOr<std::optional<ScannedValue>> PostgresStore::ScanPlan(const std::string& hash) {
  const std::vector<PgStatement> statements = {
      // One statement, so one snapshot: never the pieces of two plans.
      PgStatement("SELECT p.key, p.tenant, p.graph, p.checksum, p.bytes, c.bytes FROM bucketd_plan "
                  "p LEFT JOIN bucketd_plan_chunk c ON c.plan = p.hash WHERE p.hash = $1 "
                  "ORDER BY c.part")
          .Bytes(hash),
      PgStatement("SELECT holder, expires FROM bucketd_hold WHERE plan = $1 ORDER BY holder")
          .Bytes(hash)};
  ASSIGN_OR_RETURN(const std::vector<PgResult> found, Read(statements));
  const PgResult& rows = found[0];
  if (rows.rows() == 0) return std::nullopt;
  ScannedValue value;
  value.name = absl::BytesToHexString(hash);
  value.key = std::string(rows.Bytes(0, 0));
  value.tenant = std::string(rows.Bytes(0, 1));
  value.graph_digest = std::string(rows.Bytes(0, 2));
  value.bytes = rows.Int(0, 4);
  for (int row = 0; row < rows.rows(); ++row) absl::StrAppend(&value.value, rows.Bytes(row, 5));
  for (int row = 0; row < found[1].rows(); ++row) {
    value.holds.push_back({std::string(found[1].Bytes(row, 0)), WallAt(found[1].Int(row, 1))});
  }
  if (HashOf(value.key) != hash) {
    value.status = absl::DataLossError("belongs to another key");
  } else if (!IsWhole(value.key, value.value, rows.Bytes(0, 3))) {
    value.status = Damaged();
  }
  return value;
}

absl::StatusOr<ScanResult> PostgresStore::ScanPlans(SeeValue see) {
  ScanResult result;
  std::string last;
  while (true) {
    ASSIGN_OR_RETURN(
        const PgResult page,
        Query(PgStatement("SELECT hash FROM bucketd_plan WHERE hash > $1 ORDER BY hash LIMIT $2")
                  .Bytes(last)
                  .Int(kPage)));
    for (int row = 0; row < page.rows(); ++row) {
      last = std::string(page.Bytes(row, 0));
      ASSIGN_OR_RETURN(const std::optional<ScannedValue> value, ScanPlan(last));
      if (!value.has_value()) continue;
      Tally(*value, result);
      RETURN_IF_ERROR(see(*value));
    }
    if (page.rows() < kPage) return result;
  }
}

absl::Status PostgresStore::ScanShelf(Shelf shelf, SeeValue see, ScanResult& result) {
  std::optional<std::string> last;
  while (true) {
    ASSIGN_OR_RETURN(const PgResult page,
                     Query(PgStatement("SELECT key, value, checksum FROM bucketd_record WHERE "
                                       "shelf = $1 AND ($2 IS NULL OR key > $2) ORDER BY key "
                                       "LIMIT $3")
                               .Int(static_cast<int64_t>(shelf))
                               .Bytes(last)
                               .Int(kRecordPage)));
    for (int row = 0; row < page.rows(); ++row) {
      ScannedValue value;
      value.shelf = shelf;
      value.key = value.name = std::string(page.Bytes(row, 0));
      value.value = std::string(page.Bytes(row, 1));
      value.bytes = static_cast<int64_t>(value.key.size() + value.value.size());
      if (!IsWhole(value.key, value.value, page.Bytes(row, 2))) {
        value.status = Damaged();
      }
      last = value.key;
      Tally(value, result);
      RETURN_IF_ERROR(see(value));
    }
    if (page.rows() < kRecordPage) return absl::OkStatus();
  }
}

absl::StatusOr<ScanResult> PostgresStore::ScanRecords(SeeValue see) {
  ScanResult result;
  for (const Shelf shelf : kShelves) RETURN_IF_ERROR(ScanShelf(shelf, see, result));
  return result;
}

}  // namespace bucketd
