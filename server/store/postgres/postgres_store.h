// The store in PostgreSQL, for several servers on several machines. Portable SQL, no state of a
// session: a pooler that hands out transactions may stand between. README.md describes the tables.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "server/store/audit_trim.h"
#include "server/store/postgres/pg_pool.h"
#include "server/store/store.h"
#include "server/store/store_observer.h"

namespace bucketd {

struct PostgresStoreOptions : StoreOptions {       // a standby will do for reading
  std::string url = {};                            // PgTarget::Parse
  std::chrono::milliseconds call_timeout{10'000};  // of a call, whatever the engine does
  int connections = 4;
};

// A call is one trip to the engine, or a second one where it found what it did not expect.
class PostgresStore final : public Store {
 public:
  //   INVALID_ARGUMENT     the URL
  //   NOT_FOUND            (read-only) there is no store in the database
  //   FAILED_PRECONDITION  another version's or another program's tables, a standby
  //   UNAVAILABLE          cannot be reached, or refuses
  // Each says what to do, and none has the password.
  static absl::StatusOr<std::unique_ptr<PostgresStore>> Open(PostgresStoreOptions options);
  ~PostgresStore() override;  // writes the uses that are noted

  absl::StatusOr<std::optional<std::string>> GetPlan(absl::string_view key) override;
  void NoteUse(absl::string_view key) override;
  absl::Status PutPlan(absl::string_view key, absl::string_view tenant,
                       absl::string_view plan) override;
  absl::Status PutPlanAndErase(absl::string_view key, absl::string_view tenant,
                               absl::string_view plan, Shelf shelf, const Record& record) override;
  absl::Status HoldPlan(absl::string_view key, absl::string_view holder, WallTime expires) override;
  absl::Status ReleaseHolds(absl::string_view holder) override;
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf, absl::string_view key) override;
  Values GetRecords(absl::Span<const RecordName> names) override;
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override;
  absl::StatusOr<Standing> PutIfAbsent(Shelf shelf, absl::string_view key, absl::string_view value,
                                       ReadBehind* behind = nullptr) override;
  absl::Status WriteTogether(const Changes& changes) override;
  absl::StatusOr<std::vector<Record>> ListRecords(Shelf shelf, absl::string_view prefix,
                                                  absl::string_view from, int32_t limit) override;
  absl::StatusOr<std::vector<StoredPlan>> ListPlans(const PlanSelection& selection,
                                                    int32_t limit) override;
  absl::StatusOr<int64_t> EvictPlans(const PlanSelection& selection,
                                     const AuditLine* line = nullptr) override;
  absl::StatusOr<int64_t> KeepWithin(absl::string_view tenant, int64_t most) override;
  absl::StatusOr<std::map<std::string, int64_t>> PlanBytes() override;
  absl::StatusOr<StoreStats> Stats() override;
  absl::StatusOr<ScanResult> ScanPlans(SeeValue see) override;
  absl::StatusOr<ScanResult> ScanRecords(SeeValue see) override;
  absl::StatusOr<std::vector<AuditEntry>> ListAudit(const AuditSelection& selection,
                                                    int32_t limit) override;
  absl::StatusOr<int64_t> AddAudit(absl::Span<const AuditEntry> entries) override;
  absl::StatusOr<int64_t> Version() override;
  void Hurry() override { pool_.Hurry(); }

  // Writes uses, lets holds run out, evicts by age and size. Several servers may do it at once.
  absl::Status Maintain();

  // Without the password.
  const std::string& place() const { return pool_.place(); }

 private:
  PostgresStore(PgTarget target, PostgresStoreOptions options);

  // The statement, and with it the line if it changes the row that it is about. Null: the
  // statement alone.
  PgStatement Audited(PgStatement statement, const AuditLine* line) const;
  // NULL: the engine's own.
  std::optional<int64_t> Now() const;
  // What came of it is told to the observer.
  absl::StatusOr<std::vector<PgResult>> Write(absl::Span<const PgStatement> statements);
  absl::StatusOr<std::vector<PgResult>> Read(absl::Span<const PgStatement> statements);
  // Of the tables, as Version() last found them; UNAVAILABLE: not ours to read or write any more.
  absl::Status OurTables() const;
  // Of one statement.
  absl::StatusOr<PgResult> WriteOne(const PgStatement& statement);
  absl::StatusOr<PgResult> Query(const PgStatement& statement);
  void TellRead(StoreValue value, const absl::StatusOr<std::optional<std::string>>& read);
  static PgStatement PlanSql(absl::string_view key);
  static PgStatement RecordsSql(absl::Span<const RecordName> names);
  // What those found. What is damaged is taken away.
  absl::StatusOr<std::optional<std::string>> PlanIn(const PgResult& rows, absl::string_view key);
  Values RecordsIn(const PgResult& rows, absl::Span<const RecordName> names);
  std::vector<PgStatement> PlanPut(absl::string_view key, absl::string_view tenant,
                                   absl::string_view plan) const;
  absl::Status ForgetPlan(absl::string_view hash, absl::string_view checksum);
  absl::Status ForgetRecord(Shelf shelf, absl::string_view key, absl::string_view value);
  // nullopt: it has gone meanwhile.
  absl::StatusOr<std::optional<ScannedValue>> ScanPlan(const std::string& hash);
  absl::Status ScanShelf(Shelf shelf, SeeValue see, ScanResult& result);
  absl::Status FlushUses();
  absl::Status EvictOld();
  // Of the tenant's plans, or of all.
  absl::Status EvictBeyond(std::optional<absl::string_view> tenant, int64_t most);
  absl::StatusOr<int64_t> Evict(const PgStatement& statement);
  absl::Status TrimAudit();
  absl::StatusOr<std::vector<AuditCount>> CountAudit();
  absl::StatusOr<std::vector<AuditLineAt>> AuditLinesBefore(int64_t number, int32_t limit);
  absl::Status EraseAudit(const std::vector<int64_t>& numbers);
  void MaintainForEver(const std::stop_token& stop);

  const PostgresStoreOptions options_;
  PgPool pool_;
  bool has_audit_ = true;  // false: an earlier version's tables, opened for reading

  mutable absl::Mutex tables_mutex_;
  absl::Status our_tables_ ABSL_GUARDED_BY(tables_mutex_);

  absl::Mutex uses_mutex_;
  // By digest of the key; when, of the store's clock, or nothing: now.
  absl::flat_hash_map<std::string, std::optional<int64_t>> uses_ ABSL_GUARDED_BY(uses_mutex_);

  std::jthread maintenance_;
};

}  // namespace bucketd
