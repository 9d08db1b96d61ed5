// A store that passes on what it is asked: for tests in which one kind of call goes wrong.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/store/store.h"

namespace bucketd {

class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(Store& inner) : inner_(inner) {}

  absl::StatusOr<std::optional<std::string>> GetPlan(absl::string_view key) override {
    return inner_.GetPlan(key);
  }
  void NoteUse(absl::string_view key) override { inner_.NoteUse(key); }
  absl::Status PutPlan(absl::string_view key, absl::string_view tenant,
                       absl::string_view plan) override {
    return inner_.PutPlan(key, tenant, plan);
  }
  absl::Status HoldPlan(absl::string_view key, absl::string_view holder,
                        WallTime expires) override {
    return inner_.HoldPlan(key, holder, expires);
  }
  absl::Status ReleaseHolds(absl::string_view holder) override {
    return inner_.ReleaseHolds(holder);
  }
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                       absl::string_view key) override {
    return inner_.GetRecord(shelf, key);
  }
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override {
    return inner_.ChangeRecord(shelf, key, before, after, line);
  }
  absl::Status WriteTogether(const Changes& changes) override {
    return inner_.WriteTogether(changes);
  }
  absl::StatusOr<std::vector<Record>> ListRecords(Shelf shelf, absl::string_view prefix,
                                                  absl::string_view from, int32_t limit) override {
    return inner_.ListRecords(shelf, prefix, from, limit);
  }
  absl::StatusOr<std::vector<StoredPlan>> ListPlans(const PlanSelection& selection,
                                                    int32_t limit) override {
    return inner_.ListPlans(selection, limit);
  }
  absl::StatusOr<int64_t> EvictPlans(const PlanSelection& selection,
                                     const AuditLine* line) override {
    return inner_.EvictPlans(selection, line);
  }
  absl::StatusOr<int64_t> KeepWithin(absl::string_view tenant, int64_t most) override {
    return inner_.KeepWithin(tenant, most);
  }
  absl::StatusOr<std::map<std::string, int64_t>> PlanBytes() override { return inner_.PlanBytes(); }
  absl::StatusOr<StoreStats> Stats() override { return inner_.Stats(); }
  absl::StatusOr<ScanResult> ScanPlans(SeeValue see) override { return inner_.ScanPlans(see); }
  absl::StatusOr<ScanResult> ScanRecords(SeeValue see) override { return inner_.ScanRecords(see); }
  absl::StatusOr<std::vector<AuditEntry>> ListAudit(const AuditSelection& selection,
                                                    int32_t limit) override {
    return inner_.ListAudit(selection, limit);
  }
  absl::StatusOr<int64_t> AddAudit(absl::Span<const AuditEntry> entries) override {
    return inner_.AddAudit(entries);
  }
  absl::StatusOr<int64_t> Version() override { return inner_.Version(); }

 private:
  Store& inner_;
};

}  // namespace bucketd
