#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/admin_client.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"
#include "client/render/table.h"

#include "passes/base/words.h"
#include "passes/io/message_json.h"

namespace bucketd::ctl {
namespace {

constexpr int kErrorsShown = 5;

std::string PlanningText(const v1::PlanningState& planning) {
  std::string text = planning.enabled() ? "on" : "OFF";
  if (planning.since_ms() != 0) absl::StrAppend(&text, ", since ", Ago(planning.since_ms()));
  if (!planning.why().empty()) absl::StrAppend(&text, ": ", planning.why());
  return text;
}

std::string AnswersText(const v1::PlanCounts& p) {
  const int64_t hits = p.hits() + p.pinned() + p.store_hits();
  const int64_t plans = hits + p.computed() + p.joined();
  std::string text =
      absl::StrCat(WithThousands(hits), " hits, ", WithThousands(p.computed()), " computed, ",
                   WithThousands(p.joined()), " joined (hit rate ", ShareInWords(hits, plans),
                   "), ", WithThousands(p.graph_required()), " asked for the graph, ",
                   WithThousands(p.errors()), " errors");
  if (p.unplanned() > 0) absl::StrAppend(&text, ", ", WithThousands(p.unplanned()), " unplanned");
  return text;
}

std::string StoreText(const v1::GetStatusResponse& status) {
  if (!status.has_store()) return "none: plans live in memory alone";
  const v1::StoreStatus& store = status.store();
  if (!store.error().empty()) return absl::StrCat("CANNOT BE READ: ", store.error());
  return absl::StrCat(store.path(), ": ", WithThousands(store.plans()), " plans, ",
                      BytesInWords(store.plan_bytes()), " (", BytesInWords(store.file_bytes()),
                      " on disk), ", WithThousands(store.held_plans()),
                      " pinned; the oldest was used ", Ago(store.oldest_use_ms()));
}

std::string StatusText(const v1::GetStatusResponse& s) {
  const v1::LoadStatus& load = s.load();
  std::string out = absl::StrCat("bucketd ", s.server_version(), " at ", s.address(), ": ",
                                 s.state(), ", up for ", SpanInWords(s.uptime_ms()), " (planner ",
                                 s.planner_version(), ", pid ", s.pid(), ")\n");
  const auto line = [&](absl::string_view name, absl::string_view text) {
    absl::StrAppend(&out, name, std::string(12 - name.size(), ' '), text, "\n");
  };
  line("planning", PlanningText(s.planning()));
  line("answers", AnswersText(s.plans()));
  line("under way", absl::StrCat(load.computing(), " of ", load.compute_slots(), " computations, ",
                                 load.queued(), " queued, ", load.waiting(), " callers waiting, ",
                                 load.uploads(), " uploads"));
  for (const v1::CacheStatus& cache : s.caches()) {
    line(cache.name(),
         absl::StrCat(WithThousands(cache.entries()), " in memory, ", BytesInWords(cache.bytes()),
                      " of ", BytesInWords(cache.capacity_bytes()), ", ",
                      WithThousands(cache.evictions()), " dropped for room"));
  }
  line("store", StoreText(s));
  int64_t waiting = 0;
  for (const v1::JobStatus& job : s.jobs()) waiting += job.state() == "waiting" ? 1 : 0;
  line("jobs", absl::StrCat(s.jobs_total(), " scopes in agreement, ", waiting, " waiting"));
  if (!s.http_address().empty()) {
    line("side port", absl::StrCat("http://", s.http_address(), "/statusz"));
  }
  for (int i = 0; i < std::min(kErrorsShown, s.errors_size()); ++i) {
    const v1::RecentError& e = s.errors(i);
    line(i == 0 ? "last errors" : "", absl::StrCat(Ago(e.when_ms()), "  ", e.method(), "  ",
                                                   e.reason().empty() ? e.code() : e.reason(), "  ",
                                                   e.message(), "  [", e.request_id(), "]"));
  }
  return out;
}

int Run(const ServerArgs& args) {
  const auto status = client::AdminClient(args.address).GetStatus();
  if (!status.ok()) return ReportCall(status.status());
  std::fputs((args.json ? MessageJson(*status) : StatusText(*status)).c_str(), stdout);
  return kDone;
}

}  // namespace

void AddStatusCommand(CLI::App& app, int& exit) {
  auto args = std::make_shared<ServerArgs>();
  CLI::App* command = app.add_subcommand("status", "Say how a running server is");
  AddServerArgs(*command, *args);
  command->callback([args, &exit] { exit = Run(*args); });
}

}  // namespace bucketd::ctl
