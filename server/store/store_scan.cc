// The part of SqliteStore that looks at all of it: lists, figures, checks.
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "passes/base/status_macros.h"
#include "server/store/sqlite_store.h"
#include "server/store/store_file.h"
#include "server/store/stored_value.h"

namespace bucketd {
namespace {

constexpr int64_t kScanBatch = 256;

int64_t FileBytes(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

// The next stretch of the index: by the first two bytes of its keys. False behind the last.
bool SkipStretch(std::string& key) {
  key.resize(2, '\0');
  for (size_t i = 2; i-- > 0;) {
    key[i] = static_cast<char>(key[i] + 1);
    if (key[i] != '\0') return true;
  }
  return false;
}

constexpr char kSelect[] =
    "SELECT hash, value, tenant, bytes, created, used, EXISTS(SELECT 1 FROM holds WHERE plan = "
    "hash AND expires > ?1) AS held FROM plans WHERE (?2 IS NULL OR tenant = ?2) AND (?3 IS "
    "NULL OR graph = ?3) AND used < ?4 AND (?5 OR NOT held) ORDER BY used DESC LIMIT ?6";
constexpr char kSelectOne[] =
    "SELECT hash, value, tenant, bytes, created, used, EXISTS(SELECT 1 FROM holds WHERE plan = "
    "hash AND expires > ?1) AS held FROM plans WHERE (?2 IS NULL OR tenant = ?2) AND (?3 IS "
    "NULL OR graph = ?3) AND used < ?4 AND (?5 OR NOT held) AND hash = ?7 LIMIT ?6";

}  // namespace

absl::StatusOr<std::vector<SqliteStore::Selected>> SqliteStore::Select(
    const PlanSelection& selection, int64_t limit, bool held_too) {
  const std::string hash = selection.key.has_value() ? HashOf(*selection.key) : "";
  const int64_t before =
      selection.not_used_since.has_value() ? MsOf(*selection.not_used_since) : INT64_MAX;
  const absl::MutexLock lock(&reader_->mutex());
  const SqlOptional tenant{selection.tenant}, graph{selection.graph_digest};
  const int64_t held = held_too ? 1 : 0;
  Statement rows =
      selection.key.has_value()
          ? reader_->Query(kSelectOne, NowMillis(), tenant, graph, before, held, limit, hash)
          : reader_->Query(kSelect, NowMillis(), tenant, graph, before, held, limit);
  std::vector<Selected> selected;
  while (true) {
    const absl::StatusOr<bool> row = rows.Step();
    if (!row.ok()) return IndexError(row.status());
    if (!*row) return selected;
    Selected& s = selected.emplace_back();
    s.victim = {std::string(rows.Bytes(0)), {rows.Int(1), rows.Int(3)}, true};
    s.plan.tenant = std::string(rows.Bytes(2));
    s.plan.bytes = rows.Int(3);
    s.plan.created = WallAt(rows.Int(4));
    s.plan.used = WallAt(rows.Int(5));
    s.plan.held = rows.Int(6) != 0;
  }
}

absl::StatusOr<std::vector<StoredPlan>> SqliteStore::ListPlans(const PlanSelection& selection,
                                                               int32_t limit) {
  ASSIGN_OR_RETURN(std::vector<Selected> selected, Select(selection, limit, /*held_too=*/true));
  std::vector<StoredPlan> plans;
  for (Selected& s : selected) {
    const absl::MutexLock lock(&reader_->mutex());
    Statement key = reader_->Query("SELECT key FROM plan_values WHERE id = ?1", s.victim.at.value);
    const absl::StatusOr<bool> row = key.Step();
    // Damaged, or replaced meanwhile: its next read says which.
    if (!row.ok() || !*row) continue;
    s.plan.key = std::string(key.Bytes(0));
    plans.push_back(std::move(s.plan));
  }
  return plans;
}

absl::StatusOr<int64_t> SqliteStore::EvictPlans(const PlanSelection& selection,
                                                const AuditLine* line) {
  const absl::MutexLock lock(&write_mutex_);
  if (selection.not_used_since.has_value()) RETURN_IF_ERROR(FlushUses());
  ASSIGN_OR_RETURN(std::vector<Selected> selected,
                   Select(selection, INT64_MAX, /*held_too=*/false));
  std::vector<Victim> victims;
  for (Selected& s : selected) victims.push_back(std::move(s.victim));
  int64_t gone = 0;
  RETURN_IF_ERROR(Evict(std::move(victims), line, gone));
  return gone;
}

absl::StatusOr<StoreStats> SqliteStore::Stats() {
  StoreStats stats;
  {
    const absl::MutexLock lock(&reader_->mutex());
    Statement row = reader_->Query(
        "SELECT plans, plan_bytes, (SELECT count(DISTINCT plan) FROM holds WHERE expires > ?1), "
        "(SELECT count(*) FROM records), (SELECT min(used) FROM plans) FROM totals WHERE id = 1",
        NowMillis());
    const absl::StatusOr<bool> found = row.Step();
    if (!found.ok() || !*found) {
      return absl::UnavailableError(
          absl::StrCat("the store cannot be read: ", found.status().message()));
    }
    stats.plans = row.Int(0);
    stats.plan_bytes = row.Int(1);
    stats.held_plans = row.Int(2);
    stats.records = row.Int(3);
    if (!row.IsNull(4)) stats.oldest_use = WallAt(row.Int(4));
  }
  if (!options_.directory.empty()) {
    const StorePaths paths(options_.directory);
    stats.file_bytes = FileBytes(paths.database) + FileBytes(paths.log);
  }
  return stats;
}

absl::StatusOr<ScanResult> SqliteStore::ScanPlans(SeeValue see) {
  ScanResult result;
  RETURN_IF_ERROR(Scan(kPlanSql, 0, see, result));
  return result;
}

absl::StatusOr<ScanResult> SqliteStore::ScanRecords(SeeValue see) {
  ScanResult result;
  for (const Shelf shelf : kShelves) {
    RETURN_IF_ERROR(Scan(kRecordSql, static_cast<int64_t>(shelf), see, result));
  }
  return result;
}

absl::Status SqliteStore::Scan(const Sql& sql, int64_t shelf, SeeValue see, ScanResult& result) {
  std::string next;
  bool in_region = false;
  while (true) {
    std::vector<ScannedValue> found;
    const absl::Status status = ListFrom(sql, shelf, next, found);
    if (!status.ok() && !absl::IsDataLoss(status)) return status;
    for (ScannedValue& value : found) {
      next = KeyBehind(value.name);
      RETURN_IF_ERROR(ShowValue(sql, shelf, std::move(value), see, result));
    }
    if (!found.empty()) in_region = false;
    if (status.ok()) {
      if (static_cast<int64_t>(found.size()) < kScanBatch) return absl::OkStatus();
      in_region = false;
      continue;
    }
    if (!in_region) ++result.unreadable_regions;
    in_region = true;
    if (!SkipStretch(next)) return absl::OkStatus();
  }
}

absl::Status SqliteStore::ListFrom(const Sql& sql, int64_t shelf, absl::string_view from,
                                   std::vector<ScannedValue>& found) {
  const absl::MutexLock lock(&reader_->mutex());
  Statement rows = reader_->Query(sql.list, shelf, from, kScanBatch);
  while (true) {
    ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return absl::OkStatus();
    ScannedValue& value = found.emplace_back();
    if (shelf != 0) value.shelf = static_cast<Shelf>(shelf);
    value.name = std::string(rows.Bytes(0));
    value.tenant = std::string(rows.Bytes(1));
    value.graph_digest = std::string(rows.Bytes(2));
    value.bytes = rows.Int(3);
  }
}

// What holds a plan is told where it can be read: who carries the plan elsewhere cannot do more.
absl::StatusOr<std::vector<PlanHold>> SqliteStore::HoldsOf(absl::string_view hash) {
  const absl::MutexLock lock(&reader_->mutex());
  Statement rows =
      reader_->Query("SELECT holder, expires FROM holds WHERE plan = ?1 ORDER BY holder", hash);
  std::vector<PlanHold> holds;
  while (true) {
    const absl::StatusOr<bool> row = rows.Step();
    if (absl::IsDataLoss(row.status())) return holds;
    RETURN_IF_ERROR(row.status());
    if (!*row) return holds;
    holds.push_back({std::string(rows.Bytes(0)), WallAt(rows.Int(1))});
  }
}

absl::Status SqliteStore::ShowValue(const Sql& sql, int64_t shelf, ScannedValue value, SeeValue see,
                                    ScanResult& result) {
  absl::StatusOr<std::optional<Row>> row = ReadRow(sql, shelf, value.name);
  if (row.ok() && !row->has_value()) return absl::OkStatus();  // gone meanwhile
  ++result.values;
  if (row.ok()) {
    value.key = std::move((*row)->key);
    value.value = std::move((*row)->value);
    const bool own = value.name == (shelf == 0 ? HashOf(value.key) : value.key);
    if (!own) value.status = absl::DataLossError("belongs to another key");
    value.bytes = static_cast<int64_t>(value.key.size() + value.value.size());
  } else {
    value.status = row.status();
  }
  if (!value.status.ok()) ++result.damaged;
  if (shelf == 0) {
    ASSIGN_OR_RETURN(value.holds, HoldsOf(value.name));
    value.name = absl::BytesToHexString(value.name);
  }
  return see(value);
}

absl::StatusOr<std::vector<std::string>> SqliteStore::CheckStructure(int32_t limit) {
  const absl::MutexLock lock(&reader_->mutex());
  Statement rows = reader_->Query("SELECT * FROM pragma_integrity_check(?1)", limit);
  std::vector<std::string> problems;
  while (true) {
    const absl::StatusOr<bool> row = rows.Step();
    if (!row.ok() && !absl::IsDataLoss(row.status())) return row.status();
    if (!row.ok()) {
      problems.emplace_back(row.status().message());
      return problems;
    }
    if (!*row) return problems;
    if (rows.Bytes(0) != "ok") problems.emplace_back(rows.Bytes(0));
  }
}

}  // namespace bucketd
