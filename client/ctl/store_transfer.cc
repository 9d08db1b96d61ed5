#include "client/ctl/store_transfer.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"
#include "client/ctl/store_place.h"
#include "client/ctl/ticker.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "server/store/bundle.h"

namespace bucketd::ctl {
namespace {

// A plan under a key that promises something else would be handed to jobs.
absl::Status CheckEntry(const BundleEntry& entry) {
  if (entry.kind != BundleKind::kPlan) return absl::OkStatus();
  const absl::string_view key = entry.key;
  if (!absl::StartsWith(key, "bucketd plan key ")) {
    return absl::InvalidArgumentError("its key is not that of a plan");
  }
  const std::string tenant = absl::StrCat("\ntenant=\"", absl::CEscape(entry.tenant), "\"\n");
  if (!absl::StrContains(key, tenant)) {
    return absl::InvalidArgumentError("its key names another tenant");
  }
  const absl::StatusOr<Plan> plan = ParsePlan(entry.value);
  if (!plan.ok()) return plan.status();
  if (!absl::StrContains(key, absl::StrCat("\ngraph=\"", ToHex(plan->graph_digest), "\"\n"))) {
    return absl::InvalidArgumentError("its key names another graph than the plan was made for");
  }
  return absl::OkStatus();
}

absl::Status ForEach(const std::string& path,
                     const std::function<absl::Status(const BundleEntry&)>& see) {
  ASSIGN_OR_RETURN(const std::unique_ptr<BundleReader> bundle, BundleReader::Open(path));
  BundleEntry entry;
  for (int64_t number = 0;; ++number) {
    ASSIGN_OR_RETURN(const bool more, bundle->Next(entry));
    if (!more) return absl::OkStatus();
    const absl::Status status = see(entry);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(path, ": entry ", number, ": ", status.message()));
    }
  }
}

// ---- out of a store

using TakeEntry = absl::FunctionRef<absl::Status(const BundleEntry&)>;

// A plan, then what holds it.
absl::Status TakePlan(const ScannedValue& plan, bool with_holds, TakeEntry take) {
  RETURN_IF_ERROR(take({BundleKind::kPlan, Shelf{}, plan.tenant, plan.key, plan.value, {}}));
  if (!with_holds) return absl::OkStatus();
  for (const PlanHold& hold : plan.holds) {
    RETURN_IF_ERROR(take({BundleKind::kHold, Shelf{}, "", plan.key, hold.holder, hold.expires}));
  }
  return absl::OkStatus();
}

// Plans before the records that speak of them.
absl::StatusOr<ScanResult> TakeAll(const ExportArgs& args, Store& store, TakeEntry take) {
  const auto see = [&](const ScannedValue& value) -> absl::Status {
    if (!value.status.ok() || (args.tenant && value.tenant != *args.tenant)) {
      return absl::OkStatus();
    }
    if (value.shelf == Shelf{}) return TakePlan(value, args.all, take);
    return take({BundleKind::kRecord, value.shelf, "", value.key, value.value, {}});
  };
  ASSIGN_OR_RETURN(ScanResult result, store.ScanPlans(see));
  if (args.all) {
    ASSIGN_OR_RETURN(const ScanResult records, store.ScanRecords(see));
    result.damaged += records.damaged;
    result.unreadable_regions += records.unreadable_regions;
  }
  return result;
}

absl::Status LeftOut(const std::string& place, const ScanResult& result) {
  if (result.damaged + result.unreadable_regions == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(place, ": left out ", result.damaged,
                                          " damaged values and ", result.unreadable_regions,
                                          " stretches that cannot be read; all the rest is there"));
}

// ---- into a store

struct Taken {
  int64_t added = 0, known = 0, replaced = 0, differing = 0;
};

// `replace`: records that are there and differ. Else they stay: a running server may be using them.
absl::Status Put(Store& store, const BundleEntry& entry, bool replace, Taken& taken) {
  if (entry.kind == BundleKind::kHold) {
    // Of a plan that an earlier entry brought, and that something may have evicted since.
    const absl::Status held = store.HoldPlan(entry.key, entry.value, entry.expires);
    return absl::IsNotFound(held) ? absl::OkStatus() : held;
  }
  const bool is_plan = entry.kind == BundleKind::kPlan;
  const absl::StatusOr<std::optional<std::string>> there =
      is_plan ? store.GetPlan(entry.key) : store.GetRecord(entry.shelf, entry.key);
  if (!there.ok() && !absl::IsDataLoss(there.status())) return there.status();
  if (there.ok() && there->has_value()) {
    ++taken.known;
    // Plans of one key are as good as each other.
    if (is_plan || **there == entry.value) return absl::OkStatus();
    ++(replace ? taken.replaced : taken.differing);
    return replace ? store.PutRecord(entry.shelf, entry.key, entry.value) : absl::OkStatus();
  }
  ++taken.added;
  return is_plan ? store.PutPlan(entry.key, entry.tenant, entry.value)
                 : store.PutRecord(entry.shelf, entry.key, entry.value);
}

// An engine's error says what was wrong, and not of which of the two places.
absl::Status At(const std::string& place, const absl::Status& status) {
  if (status.ok() || absl::StrContains(status.message(), place)) return status;
  return absl::Status(status.code(), absl::StrCat(place, ": ", status.message()));
}

// Behind what is there, in their order.
absl::Status CopyAudit(Store& from, Store& to) {
  constexpr int32_t kPage = 1000;
  std::vector<AuditEntry> entries;
  AuditSelection selection;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<AuditEntry> page, from.ListAudit(selection, kPage));
    if (page.empty()) break;
    entries.insert(entries.end(), page.begin(), page.end());
    selection.before_number = page.back().number;
  }
  std::reverse(entries.begin(), entries.end());
  return to.AddAudit(entries).status();
}

void PrintTaken(const Taken& taken, bool json, const char* verb) {
  if (json) {
    Print(Json::Object({{verb, taken.added},
                        {"already_there", taken.known},
                        {"replaced", taken.replaced},
                        {"differing", taken.differing}})
              .Text());
    return;
  }
  std::string text = absl::StrCat(WithThousands(taken.added), " values ", verb, ", ",
                                  WithThousands(taken.known), " were there already\n");
  if (taken.replaced > 0) {
    absl::StrAppend(&text, "of these, ", WithThousands(taken.replaced),
                    " were others and are replaced\n");
  }
  if (taken.differing > 0) {
    absl::StrAppend(&text, "of these, ", WithThousands(taken.differing),
                    " are others and stay as they were there (store copy has --replace)\n");
  }
  Print(text);
}

}  // namespace

absl::Status ExportStore(const ExportArgs& args) {
  ASSIGN_OR_RETURN(const OpenedPlace from, OpenForReading(args.from));
  ASSIGN_OR_RETURN(const std::unique_ptr<BundleWriter> bundle, BundleWriter::Open(args.file));
  std::optional<Ticker> ticker(std::in_place, "exporting");
  int64_t written = 0, bytes = 0;
  const auto write = [&](const BundleEntry& entry) {
    bundle->Add(entry);
    if (entry.kind == BundleKind::kHold) return absl::OkStatus();
    ++written;
    bytes += static_cast<int64_t>(entry.key.size() + entry.value.size());
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const ScanResult result, TakeAll(args, *from.store, write));
  RETURN_IF_ERROR(bundle->Finish());
  ticker.reset();
  if (args.json) {
    Print(Json::Object({{"exported", written},
                        {"bytes", bytes},
                        {"damaged", result.damaged},
                        {"unreadable_regions", result.unreadable_regions}})
              .Text());
  } else {
    Print(absl::StrCat(WithThousands(written), " values, ", Mib(bytes), ", to ", args.file, "\n"));
  }
  return LeftOut(from.name, result);
}

absl::Status ImportStore(const ImportArgs& args) {
  std::optional<Ticker> ticker(std::in_place, "importing");
  RETURN_IF_ERROR(ForEach(args.file, CheckEntry));  // all or nothing
  ASSIGN_OR_RETURN(const OpenedPlace to, OpenForWriting(args.to));
  Taken taken;
  RETURN_IF_ERROR(ForEach(args.file, [&](const BundleEntry& entry) {
    const absl::Status status = CheckEntry(entry);  // the file may have changed
    return status.ok() ? At(to.name, Put(*to.store, entry, /*replace=*/false, taken)) : status;
  }));
  ticker.reset();
  PrintTaken(taken, args.json, "imported");
  return absl::OkStatus();
}

absl::Status CopyStore(const CopyArgs& args) {
  ASSIGN_OR_RETURN(const OpenedPlace from, OpenForReading(args.from));
  ASSIGN_OR_RETURN(const OpenedPlace to, OpenForWriting(args.to));
  std::optional<Ticker> ticker(std::in_place, "copying");
  Taken taken;
  const auto put = [&](const BundleEntry& entry) -> absl::Status {
    const absl::Status status = CheckEntry(entry);
    if (status.ok()) return At(to.name, Put(*to.store, entry, args.replace, taken));
    return absl::Status(status.code(), absl::StrCat(from.name, ": plan ", ToHex(Sha256(entry.key)),
                                                    ": ", status.message()));
  };
  const ExportArgs everything{.from = args.from, .file = "", .tenant = {}, .all = true};
  ASSIGN_OR_RETURN(const ScanResult result, TakeAll(everything, *from.store, put));
  RETURN_IF_ERROR(At(to.name, CopyAudit(*from.store, *to.store)));
  ticker.reset();
  PrintTaken(taken, args.json, "copied");
  return LeftOut(from.name, result);
}

}  // namespace bucketd::ctl
