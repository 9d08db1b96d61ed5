// What engines have in common, or need not do in one go.
#include "server/store/store.h"

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/store/store_observer.h"

namespace bucketd {

std::string KeyBehind(absl::string_view key) {
  return absl::StrCat(key, absl::string_view("\0", 1));
}

absl::Status Store::PutPlanAndErase(absl::string_view key, absl::string_view tenant,
                                    absl::string_view plan, Shelf shelf, const Record& record) {
  RETURN_IF_ERROR(PutPlan(key, tenant, plan));
  // It is another one's by now, or stays until it is swept.
  ReplaceRecord(shelf, record.key, record.value, std::nullopt).IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> Store::FindRecord(Shelf shelf, absl::string_view key) {
  absl::StatusOr<std::optional<std::string>> value = GetRecord(shelf, key);
  if (absl::IsDataLoss(value.status())) return std::nullopt;
  return value;
}

absl::StatusOr<Standing> Store::PutIfAbsent(Shelf shelf, absl::string_view key,
                                            absl::string_view value, ReadBehind* behind) {
  Standing stands{std::string(value), true};
  const absl::Status put = ReplaceRecord(shelf, key, std::nullopt, value);
  if (absl::IsAborted(put)) {
    ASSIGN_OR_RETURN(std::optional<std::string> found, GetRecord(shelf, key));
    if (!found.has_value()) return put;
    stands = {*std::move(found), false};
  } else if (!put.ok()) {
    return put;
  }
  if (behind != nullptr) Fill(*behind);
  return stands;
}

absl::Status Store::ForEachRecord(Shelf shelf, absl::string_view prefix, int32_t page,
                                  absl::FunctionRef<absl::Status(const Record&)> see) {
  std::string from;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<Record> records, ListRecords(shelf, prefix, from, page));
    if (records.empty()) return absl::OkStatus();  // one that is merely short lacks what is damaged
    for (const Record& record : records) RETURN_IF_ERROR(see(record));
    from = KeyBehind(records.back().key);
  }
}

void Store::Fill(ReadBehind& behind) {
  if (!behind.plan_key.empty()) behind.plan = GetPlan(behind.plan_key);
  if (!behind.names.empty()) behind.values = GetRecords(behind.names);
}

void TellRead(StoreObserver& observer, StoreValue value, const absl::Status& status, bool found) {
  if (status.ok()) {
    observer.Read(value, found ? StoreRead::kHit : StoreRead::kMiss, "");
  } else {
    observer.Read(value, absl::IsDataLoss(status) ? StoreRead::kDamaged : StoreRead::kError,
                  absl::StrCat("a value cannot be read: ", status.message()));
  }
}

void TellWrote(StoreObserver& observer, const absl::Status& status) {
  if (status.ok() || absl::IsAborted(status) || absl::IsNotFound(status)) {
    observer.Wrote(StoreWrite::kOk, "");
  } else {
    observer.Wrote(absl::IsResourceExhausted(status) ? StoreWrite::kNoSpace : StoreWrite::kError,
                   absl::StrCat("cannot write: ", status.message()));
  }
}

}  // namespace bucketd
