#include <cstdio>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/command.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "server/store/bundle.h"
#include "server/store/sqlite_store.h"

namespace bucketd::ctl {
namespace {

constexpr size_t kMaxNamed = 20;  // damaged values in a table; --json has all

struct Args {
  std::string directory, file, tenant;
  bool all = false, json = false;
};

absl::string_view ShelfName(Shelf shelf) {
  switch (shelf) {
    case Shelf::kPins:
      return "pins";
    case Shelf::kProfiles:
      return "profiles";
    case Shelf::kCostSamples:
      return "cost samples";
    case Shelf::kSettings:
      return "settings";
  }
  return "plans";
}

absl::StatusOr<std::unique_ptr<SqliteStore>> OpenForReading(const std::string& directory) {
  SqliteStoreOptions options;
  options.directory = directory;
  options.read_only = true;
  return SqliteStore::Open(std::move(options));
}

std::string When(WallTime time) {
  const std::time_t seconds =
      std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
  std::tm utc{};
  char text[32];
  gmtime_r(&seconds, &utc);
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

// ---- stats

absl::Status RunStats(const Args& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteStore> store, OpenForReading(args.directory));
  ASSIGN_OR_RETURN(const StoreStats s, store->Stats());
  if (args.json) {
    Print(Json::Object({{"plans", s.plans},
                        {"plan_bytes", s.plan_bytes},
                        {"held_plans", s.held_plans},
                        {"records", s.records},
                        {"file_bytes", s.file_bytes},
                        {"oldest_use_ms",
                         s.oldest_use ? Json(s.oldest_use->time_since_epoch().count()) : Json()},
                        {"lost_commits", store->lost_commits()}})
              .Text());
    return absl::OkStatus();
  }
  Table table({{"store"}, {"", Table::Align::kRight}});
  table.AddRow({"plans", WithThousands(s.plans)});
  table.AddRow({"of which held for jobs", WithThousands(s.held_plans)});
  table.AddRow({"bytes of plans", Mib(s.plan_bytes)});
  table.AddRow({"records", WithThousands(s.records)});
  table.AddRow({"on disk", Mib(s.file_bytes)});
  table.AddRow({"oldest use of a plan", s.oldest_use ? When(*s.oldest_use) : "-"});
  if (store->lost_commits() > 0) {
    table.AddRow({"commits that are gone", WithThousands(store->lost_commits())});
  }
  Print(table.Text());
  return absl::OkStatus();
}

// ---- verify

struct Verified {
  ScanResult plans, records;
  std::vector<ScannedValue> damaged;  // without their bytes
  std::vector<std::string> structure;
  int64_t lost_commits = 0;
  bool Whole() const {
    return damaged.empty() && structure.empty() && lost_commits == 0 &&
           plans.unreadable_regions + records.unreadable_regions == 0;
  }
};

Json DamagedJson(const ScannedValue& v) {
  return Json::Object({{"kind", ShelfName(v.shelf)},
                       {"key", absl::CHexEscape(v.name)},
                       {"tenant", v.tenant},
                       {"graph", v.graph_digest},
                       {"problem", v.status.message()}});
}

void PrintVerified(const Verified& v, bool json) {
  const int64_t regions = v.plans.unreadable_regions + v.records.unreadable_regions;
  if (json) {
    Print(Json::Object({{"whole", v.Whole()},
                        {"plans", v.plans.values},
                        {"records", v.records.values},
                        {"unreadable_regions", regions},
                        {"lost_commits", v.lost_commits},
                        {"damaged", Json::List(v.damaged, DamagedJson)},
                        {"structure", Json::List(v.structure)}})
              .Text());
    return;
  }
  Table table({{"", Table::Align::kLeft},
               {"checked", Table::Align::kRight},
               {"damaged", Table::Align::kRight}});
  table.AddRow({"plans", WithThousands(v.plans.values), WithThousands(v.plans.damaged)});
  table.AddRow({"records", WithThousands(v.records.values), WithThousands(v.records.damaged)});
  std::string text = table.Text();
  for (size_t i = 0; i < v.damaged.size() && i < kMaxNamed; ++i) {
    const ScannedValue& d = v.damaged[i];
    absl::StrAppend(&text, "damaged: ", ShelfName(d.shelf), " ", absl::CHexEscape(d.name));
    if (!d.graph_digest.empty()) absl::StrAppend(&text, " (graph ", d.graph_digest, ")");
    if (!d.tenant.empty()) absl::StrAppend(&text, " (tenant ", d.tenant, ")");
    absl::StrAppend(&text, ": ", d.status.message(), "\n");
  }
  if (v.damaged.size() > kMaxNamed) {
    absl::StrAppend(&text, "and ", v.damaged.size() - kMaxNamed, " more: --json names all\n");
  }
  if (regions > 0) {
    absl::StrAppend(&text, "unreadable stretches of the index: ", regions,
                    "; how many values they hold is not known\n");
  }
  if (v.lost_commits > 0) {
    absl::StrAppend(&text, "commits that were acknowledged and are gone: ", v.lost_commits, "\n");
  }
  for (const std::string& line : v.structure) absl::StrAppend(&text, "structure: ", line, "\n");
  absl::StrAppend(&text, v.Whole() ? "the store is whole\n"
                                   : "to keep what can be read: bucketctl store export --all DIR "
                                     "FILE, then import FILE into an empty folder\n");
  Print(text);
}

absl::Status RunVerify(const Args& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteStore> store, OpenForReading(args.directory));
  Verified v;
  const auto see = [&](const ScannedValue& value) {
    if (value.status.ok()) return;
    ScannedValue& damaged = v.damaged.emplace_back();
    damaged.shelf = value.shelf;
    damaged.name = value.name;
    damaged.tenant = value.tenant;
    damaged.graph_digest = value.graph_digest;
    damaged.status = value.status;
  };
  ASSIGN_OR_RETURN(v.plans, store->ScanPlans(see));
  ASSIGN_OR_RETURN(v.records, store->ScanRecords(see));
  ASSIGN_OR_RETURN(v.structure, store->CheckStructure(20));
  v.lost_commits = store->lost_commits();
  PrintVerified(v, args.json);
  return v.Whole() ? absl::OkStatus()
                   : absl::DataLossError(absl::StrCat(args.directory, ": the store is damaged"));
}

// ---- export and import

absl::Status RunExport(const Args& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteStore> store, OpenForReading(args.directory));
  ASSIGN_OR_RETURN(const std::unique_ptr<BundleWriter> bundle, BundleWriter::Open(args.file));
  int64_t written = 0, bytes = 0;
  const auto see = [&](const ScannedValue& value) {
    if (!value.status.ok() || (!args.tenant.empty() && value.tenant != args.tenant)) return;
    const bool is_plan = value.shelf == Shelf{};
    bundle->Add({is_plan, value.shelf, value.tenant, value.key, value.value});
    ++written;
    bytes += value.bytes;
  };
  ASSIGN_OR_RETURN(ScanResult result, store->ScanPlans(see));
  if (args.all) {
    ASSIGN_OR_RETURN(const ScanResult records, store->ScanRecords(see));
    result.damaged += records.damaged;
    result.unreadable_regions += records.unreadable_regions;
  }
  RETURN_IF_ERROR(bundle->Finish());
  if (args.json) {
    Print(Json::Object({{"exported", written},
                        {"bytes", bytes},
                        {"damaged", result.damaged},
                        {"unreadable_regions", result.unreadable_regions}})
              .Text());
  } else {
    Print(absl::StrCat(WithThousands(written), " values, ", Mib(bytes), ", to ", args.file, "\n"));
  }
  if (result.damaged + result.unreadable_regions == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      args.directory, ": left out ", result.damaged, " damaged values and ",
      result.unreadable_regions, " stretches that cannot be read; the bundle has all the rest"));
}

// A plan under a key that promises something else would be handed to jobs.
absl::Status CheckEntry(const BundleEntry& entry) {
  if (!entry.is_plan) return absl::OkStatus();
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

struct Imported {
  int64_t added = 0, known = 0;
};

absl::Status ImportEntry(SqliteStore& store, const BundleEntry& entry, Imported& imported) {
  // What is there already is as good, and a running server may be using it.
  absl::StatusOr<std::optional<std::string>> there =
      entry.is_plan ? store.GetPlan(entry.key) : store.GetRecord(entry.shelf, entry.key);
  if (!there.ok() && !absl::IsDataLoss(there.status())) return there.status();
  if (there.ok() && there->has_value()) {
    ++imported.known;
    return absl::OkStatus();
  }
  ++imported.added;
  return entry.is_plan ? store.PutPlan(entry.key, entry.tenant, entry.value)
                       : store.PutRecord(entry.shelf, entry.key, entry.value);
}

absl::Status RunImport(const Args& args) {
  RETURN_IF_ERROR(ForEach(args.file, CheckEntry));  // all or nothing
  SqliteStoreOptions options;
  options.directory = args.directory;
  options.max_bytes = std::numeric_limits<int64_t>::max();  // the server's bounds come later
  options.maintenance = std::chrono::minutes(1);
  options.max_age = std::chrono::hours(0);
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteStore> store, SqliteStore::Open(std::move(options)));
  Imported imported;
  RETURN_IF_ERROR(ForEach(args.file, [&](const BundleEntry& entry) {
    const absl::Status status = CheckEntry(entry);  // the file may have changed
    return status.ok() ? ImportEntry(*store, entry, imported) : status;
  }));
  if (args.json) {
    Print(Json::Object({{"imported", imported.added}, {"already_there", imported.known}}).Text());
  } else {
    Print(absl::StrCat(WithThousands(imported.added), " values imported, ",
                       WithThousands(imported.known), " were there already\n"));
  }
  return absl::OkStatus();
}

Command Add(const Command& app, const char* name, const char* help,
            const std::shared_ptr<Args>& args, absl::Status (*run)(const Args&)) {
  const Command command = app.AddCommand(name, help);
  AddJsonFlag(command, args->json);
  command.Does([args, run] { return Report(run(*args)); });
  return command;
}

}  // namespace

void AddStoreCommand(const Command& app) {
  auto args = std::make_shared<Args>();
  const Command store = app.AddCommand(
      "store", "Look into the folder of a server's store (bucketd --store-dir), running or not");
  const auto directory = [&](const Command& command) {
    command.AddOption("directory", args->directory, "folder of the store")
        .Required()
        .TypeName("DIR");
  };
  const auto file = [&](const Command& command, const char* help) {
    command.AddOption("file", args->file, help).Required().TypeName("FILE");
  };
  directory(Add(store, "stats", "How much is in it", args, RunStats));
  directory(Add(store, "verify",
                "Check every value and structure; exits 1 and names what is damaged", args,
                RunVerify));
  const Command exported =
      Add(store, "export", "Write plans to one file, for another store", args, RunExport);
  directory(exported);
  file(exported, "bundle to write");
  exported.AddFlag("--all", args->all,
                   "pins, profiles, samples and settings too: for a repair or a move");
  exported.AddOption("--tenant", args->tenant, "plans of this tenant alone");
  const Command imported =
      Add(store, "import", "Check a bundle, then add what is not there yet", args, RunImport);
  file(imported, "bundle to read");
  directory(imported);
  store.Footer(
      "Example: take the plans of one cluster to another:\n"
      "  bucketctl store export /var/lib/bucketd plans.bundle\n"
      "  bucketctl store import plans.bundle /var/lib/bucketd\n"
      "Import bundles of people you trust: clients hold a plan against their graph, but not "
      "against\n"
      "what the planner would have chosen.");
}

}  // namespace bucketd::ctl
