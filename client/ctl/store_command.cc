#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/ctl/command.h"
#include "client/ctl/store_place.h"
#include "client/ctl/store_transfer.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"

namespace bucketd::ctl {
namespace {

constexpr size_t kMaxNamed = 20;  // damaged values in a table; --json has all

struct LookArgs {
  std::string place;
  bool json = false;
};

absl::string_view ShelfName(Shelf shelf) {
  switch (shelf) {
    case Shelf::kPins:
      return "pins";
    case Shelf::kProfiles:
      return "profiles";
    case Shelf::kCostSamples:
      return "cost samples";
    case Shelf::kReplicas:
      return "replicas";
    case Shelf::kSettings:
      return "settings";
  }
  return "plans";
}

std::string When(WallTime time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::FromChrono(time), absl::UTCTimeZone());
}

// ---- stats

absl::Status RunStats(const LookArgs& args) {
  ASSIGN_OR_RETURN(const OpenedPlace opened, OpenForReading(args.place));
  ASSIGN_OR_RETURN(const StoreStats s, opened.store->Stats());
  const int64_t lost_commits = opened.folder == nullptr ? 0 : opened.folder->lost_commits();
  if (args.json) {
    Print(Json::Object({{"plans", s.plans},
                        {"plan_bytes", s.plan_bytes},
                        {"held_plans", s.held_plans},
                        {"records", s.records},
                        {"file_bytes", s.file_bytes},
                        {"oldest_use_ms", s.oldest_use ? Json(MsOf(*s.oldest_use)) : Json()},
                        {"lost_commits", lost_commits}})
              .Text());
    return absl::OkStatus();
  }
  Table table("lr", {"store", ""});
  table.AddRow({"plans", WithThousands(s.plans)});
  table.AddRow({"of which held for jobs", WithThousands(s.held_plans)});
  table.AddRow({"bytes of plans", Mib(s.plan_bytes)});
  table.AddRow({"records", WithThousands(s.records)});
  if (opened.folder != nullptr) table.AddRow({"on disk", Mib(s.file_bytes)});
  table.AddRow({"oldest use of a plan", s.oldest_use ? When(*s.oldest_use) : "-"});
  if (lost_commits > 0) {
    table.AddRow({"commits that are gone", WithThousands(lost_commits)});
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
  Table table("lrr", {"", "checked", "damaged"});
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
  absl::StrAppend(&text, v.Whole()
                             ? "the store is whole\n"
                             : "to keep what can be read: bucketctl store copy it into an empty "
                               "folder or database\n");
  Print(ForTerminal(text));
}

absl::Status RunVerify(const LookArgs& args) {
  ASSIGN_OR_RETURN(const OpenedPlace opened, OpenForReading(args.place));
  Verified v;
  const auto see = [&](const ScannedValue& value) {
    if (value.status.ok()) return absl::OkStatus();
    ScannedValue& damaged = v.damaged.emplace_back();
    damaged.shelf = value.shelf;
    damaged.name = value.name;
    damaged.tenant = value.tenant;
    damaged.graph_digest = value.graph_digest;
    damaged.status = value.status;
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(v.plans, opened.store->ScanPlans(see));
  ASSIGN_OR_RETURN(v.records, opened.store->ScanRecords(see));
  if (opened.folder != nullptr) {
    ASSIGN_OR_RETURN(v.structure, opened.folder->CheckStructure(20));
    v.lost_commits = opened.folder->lost_commits();
  }
  PrintVerified(v, args.json);
  return v.Whole() ? absl::OkStatus()
                   : absl::DataLossError(absl::StrCat(opened.name, ": the store is damaged"));
}

template <typename Args>
Command::WithArgs<Args> Add(const Command& app, const char* name, const char* help,
                            const char* example, absl::Status (*run)(const Args&)) {
  const auto made = app.AddCommand(name, help, run);
  made.command.Footer(example);
  AddJsonFlag(made.command, made.args.json);
  return made;
}

void Place(const Command& command, std::string& place, const char* name, const char* help) {
  command.AddOption(name, place, help).Required().TypeName("STORE");
}

void File(const Command& command, std::string& file, const char* help) {
  command.AddOption("file", file, help).Required().TypeName("FILE");
}

void AddLook(const Command& store, const char* name, const char* help, const char* example,
             absl::Status (*run)(const LookArgs&)) {
  const auto [command, args] = Add(store, name, help, example, run);
  Place(command, args.place, "store", "what to read");
}

void AddExport(const Command& store) {
  const auto [command, args] =
      Add(store, "export", "Write plans to one file, for another store",
          "A backup, while the server goes on; without the audit log, which copy takes along:\n"
          "  bucketctl store export --all /var/lib/bucketd backup.bundle",
          ExportStore);
  Place(command, args.from, "store", "what to read");
  File(command, args.file, "bundle to write");
  command.AddFlag("--all", args.all,
                  "pins, profiles, samples and settings too: for a backup or a move");
  command.AddOption("--tenant", args.tenant, "plans of this tenant alone; \"\": of the default one")
      .Excludes({"--all"});
}

void AddImport(const Command& store) {
  const auto [command, args] =
      Add(store, "import", "Check a bundle, then add what is not there yet",
          "  bucketctl store import backup.bundle /var/lib/bucketd-restored", ImportStore);
  File(command, args.file, "bundle to read");
  Place(command, args.to, "store", "where to add it; made if it is not there");
}

void AddCopy(const Command& store) {
  const auto [command, args] =
      Add(store, "copy", "Add all that one store has to another, of either engine",
          "A move, while its server goes on, and once more when it has ended:\n"
          "  bucketctl store copy /var/lib/bucketd postgres://bucketd@db:5432/bucketd\n"
          "  bucketctl store copy --replace /var/lib/bucketd "
          "postgres://bucketd@db:5432/bucketd\n"
          "A damaged store's whole values into a new one:\n"
          "  bucketctl store copy /var/lib/bucketd /var/lib/bucketd-repaired",
          CopyStore);
  Place(command, args.from, "from", "what to read");
  Place(command, args.to, "to", "where to add what is not there yet; made if it is not there");
  command.AddFlag("--replace", args.replace,
                  "records that are there and differ become what the first store has: for a move's "
                  "last copy");
}

}  // namespace

void AddStoreCommand(const Command& app) {
  const Command store =
      app.AddCommand("store",
                     "Look into a server's store and carry it elsewhere, a server running or not. "
                     "STORE is what bucketd's --store takes: a folder or a postgres:// URL");
  AddLook(store, "stats", "How much is in it", "  bucketctl store stats /var/lib/bucketd",
          RunStats);
  AddLook(store, "verify", "Check every value and structure; exits 1 and names what is damaged",
          "  bucketctl store verify postgres://bucketd@db:5432/bucketd", RunVerify);
  AddExport(store);
  AddImport(store);
  AddCopy(store);
  store.Footer(
      "Examples: take the plans of one cluster to another:\n"
      "  bucketctl store export /var/lib/bucketd plans.bundle\n"
      "  bucketctl store import plans.bundle /var/lib/bucketd\n"
      "Move from a folder to a database: while its server goes on, and once more when it has "
      "ended.\n"
      "What has changed in between is replaced; what was deleted in between stays:\n"
      "  bucketctl store copy /var/lib/bucketd postgres://bucketd@db:5432/bucketd\n"
      "  bucketctl store copy --replace /var/lib/bucketd postgres://bucketd@db:5432/bucketd\n"
      "Take what people you trust give you: clients hold a plan against their graph, but not "
      "against\n"
      "what the planner would have chosen.");
}

}  // namespace bucketd::ctl
