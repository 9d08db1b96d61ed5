#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"
#include "client/render/table.h"

#include "passes/base/words.h"

namespace bucketd::ctl {
namespace {

constexpr int kErrorsShown = 5;

std::string PlanningText(const v1::PlanningState& planning) {
  std::string text = planning.enabled() ? "on" : "OFF";
  if (planning.since_ms() != 0) absl::StrAppend(&text, ", since ", Ago(planning.since_ms()));
  if (!planning.why().empty()) absl::StrAppend(&text, ": ", planning.why());
  if (!planning.not_stored().empty()) {
    absl::StrAppend(&text, " (not in the store yet: ", planning.not_stored(), ")");
  } else if (!planning.enabled() && !planning.persisted()) {
    text += " (a restart forgets this)";
  }
  return text;
}

std::string AnswersText(const v1::PlanCounts& p) {
  const int64_t hits = p.hits() + p.pinned() + p.store_hits();
  const int64_t plans = hits + p.computed() + p.joined();
  return absl::StrCat(WithThousands(plans), " plans, ", ShareInWords(hits, plans),
                      " of them there already: ", WithThousands(p.hits()), " in memory, ",
                      WithThousands(p.store_hits()), " in the store, ", WithThousands(p.pinned()),
                      " pinned; ", WithThousands(p.computed()), " computed, ",
                      WithThousands(p.joined()), " joined");
}

std::string OtherAnswersText(const v1::PlanCounts& p) {
  return absl::StrCat(WithThousands(p.graph_required()), " asked for the graph, ",
                      WithThousands(p.unplanned()), " unplanned, ", WithThousands(p.errors()),
                      " errors");
}

std::string LoadText(const v1::LoadStatus& load) {
  return absl::StrCat(load.computing(), " of ", load.compute_slots(), " computations, ",
                      load.queued(), " of ", load.queue_limit(), " queued, ", load.waiting(),
                      " of ", load.waiting_limit(), " callers waiting, ", load.uploads(), " of ",
                      load.uploads_limit(), " uploads");
}

std::string GivenUpText(const v1::GivenUp& g) {
  return absl::StrCat(
      WithThousands(g.callers()), " callers, ", WithThousands(g.ranks()), " ranks, ",
      WithThousands(g.job_places()), " jobs, ", WithThousands(g.computations()), " computations, ",
      WithThousands(g.uploads()), " uploads, ", WithThousands(g.reports()), " reports and ",
      WithThousands(g.groups()), " groups made room for others; ", WithThousands(g.jobs()),
      " jobs lost their pins to others of their tenant; ", WithThousands(g.abandoned()),
      " computations had no caller left; ", WithThousands(g.connections()), " connections flooded");
}

std::string StoreText(const v1::StoreStatus& store) {
  if (!store.error().empty())
    return absl::StrCat(store.path(), ": CANNOT BE READ: ", store.error());
  // What a database takes there it says itself.
  const std::string on_disk =
      store.file_bytes() == 0 ? ""
                              : absl::StrCat(" (", BytesInWords(store.file_bytes()), " on disk)");
  return absl::StrCat(
      store.path(), ": ", WithThousands(store.plans()), " plans, ",
      BytesInWords(store.plan_bytes()), " of ", BytesInWords(store.capacity_bytes()), on_disk, ", ",
      WithThousands(store.held_plans()), " pinned, ", WithThousands(store.records()),
      " records; the oldest plan was used ", Ago(store.oldest_use_ms()));
}

std::string FailuresText(const v1::StoreStatus& store) {
  return absl::StrCat(WithThousands(store.failed_reads()), " reads and ",
                      WithThousands(store.failed_writes()), " writes failed, ",
                      WithThousands(store.damage()), " values damaged");
}

std::string JobsText(const v1::GetStatusResponse& s) {
  return absl::StrCat(s.jobs_total(), " scopes in agreement, ", s.jobs_waiting(),
                      " waiting for ranks", s.jobs_total() > 0 ? ": bucketctl jobs" : "");
}

std::string ProfilesText(const v1::GetStatusResponse& s) {
  return absl::StrJoin(s.cost_profiles(), ", ",
                       [](std::string* out, const v1::CostProfileStatus& profile) {
                         absl::StrAppend(out, profile.name(), "@", profile.version());
                       });
}

std::string ErrorText(const v1::RecentError& e) {
  return absl::StrCat(Ago(e.when_ms()), "  ", e.method(), "  ",
                      e.reason().empty() ? e.code() : e.reason(), "  ", e.message(), "  [",
                      e.request_id(), e.trace_id().empty() ? "" : ", trace ", e.trace_id(), "]");
}

// "plans: 2 of 4, 3 refused; ..." of what is bounded or used.
std::string TenantText(const v1::TenantStatus& tenant) {
  std::string text = tenant.weight() == 1 ? "" : absl::StrCat("weight ", tenant.weight());
  for (const v1::QuotaStatus& quota : tenant.quotas()) {
    if (!quota.has_limit() && quota.used() == 0) continue;
    const bool bytes = absl::EndsWith(quota.name(), "_bytes");
    const auto words = [&](int64_t n) { return bytes ? BytesInWords(n) : WithThousands(n); };
    absl::StrAppend(&text, text.empty() ? "" : "; ", quota.name(), " ", words(quota.used()));
    if (quota.has_limit()) absl::StrAppend(&text, " of ", words(quota.limit()));
    if (quota.refused() > 0)
      absl::StrAppend(&text, ", ", WithThousands(quota.refused()), " refused");
  }
  return text.empty() ? "nothing" : text;
}

std::string NameOf(const v1::TenantStatus& tenant) {
  return tenant.tenant().empty() ? "the default one" : tenant.tenant();
}

std::string TenantsText(const v1::ListTenantsResponse& response) {
  std::string out;
  for (const v1::TenantStatus& tenant : response.tenants()) {
    absl::StrAppend(&out, "tenant      ", NameOf(tenant), ": ", TenantText(tenant), "\n");
  }
  return out.empty() ? "this tenant has no entry of its own and uses nothing\n" : out;
}

std::string ReplicaText(const v1::ReplicaStatus& replica) {
  return absl::StrCat(replica.address(), replica.self() ? " (this one)" : "", ": ", replica.state(),
                      ", last heard of ", SpanInWords(replica.silent_ms()), " ago");
}

std::string LeasesText(const v1::ClusterStatus& cluster) {
  return absl::StrCat(WithThousands(cluster.job_leases()), " jobs meet here, ",
                      WithThousands(cluster.plan_leases()),
                      " plans are computed here for all replicas");
}

std::string StatusText(const v1::GetStatusResponse& s) {
  std::string out = absl::StrCat("bucketd ", s.server_version(), " at ", s.address(), ": ",
                                 s.state(), ", up for ", SpanInWords(s.uptime_ms()), " (planner ",
                                 s.planner_version(), ", pid ", s.pid(), ")\n");
  const auto line = [&](absl::string_view name, absl::string_view text) {
    absl::StrAppendFormat(&out, "%-12s%s\n", name, text);
  };
  line("planning", PlanningText(s.planning()));
  line("answers", AnswersText(s.plans()));
  line("", OtherAnswersText(s.plans()));
  line("under way", LoadText(s.load()));
  line("given up", GivenUpText(s.given_up()));
  for (const v1::CacheStatus& cache : s.caches()) {
    line(cache.name(),
         absl::StrCat(WithThousands(cache.entries()), " in memory, ", BytesInWords(cache.bytes()),
                      " of ", BytesInWords(cache.capacity_bytes()), ", ",
                      WithThousands(cache.evictions()), " dropped for room"));
  }
  const v1::StoreStatus& store = s.store();
  line("store", s.has_store() ? StoreText(store) : "none: plans live in memory alone");
  if (s.has_store()) line("", FailuresText(store));
  const auto trouble = [&](absl::string_view what, const v1::StoreTrouble& t) {
    line("", absl::StrCat(what, " FAILS since ", Ago(t.since_ms()), ": ", t.why()));
  };
  if (store.has_reading()) trouble("READING", store.reading());
  if (store.has_writing()) trouble("WRITING", store.writing());
  line("jobs", JobsText(s));
  if (s.has_cluster()) line("replicas", LeasesText(s.cluster()));
  if (!s.cluster().trouble().empty()) line("", s.cluster().trouble());
  for (const v1::ReplicaStatus& replica : s.cluster().replicas()) line("", ReplicaText(replica));
  for (const v1::TenantStatus& tenant : s.tenants()) {
    line("tenant", absl::StrCat(NameOf(tenant), ": ", TenantText(tenant)));
  }
  line("costs", ProfilesText(s));
  if (!s.http_address().empty()) {
    line("side port", absl::StrCat("http://", s.http_address(), "/statusz"));
  }
  for (int i = 0; i < std::min(kErrorsShown, s.errors_size()); ++i) {
    line(i == 0 ? "last errors" : "", ErrorText(s.errors(i)));
  }
  return out;
}

int Run(const ServerArgs& args) {
  client::AdminClient client = AdminOf(args);
  const absl::StatusOr<v1::GetStatusResponse> status = client.GetStatus();
  // Who may not see all may see what his tenant has.
  if (!absl::IsPermissionDenied(status.status())) return ShowCall(args, status, StatusText);
  const absl::StatusOr<v1::ListTenantsResponse> own = client.ListTenants();
  return own.ok() ? ShowCall(args, own, TenantsText) : ReportCall(status.status());
}

}  // namespace

void AddStatusCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<ServerArgs>(
      "status", "Say how it is: answers, load, memory, store, jobs, the last errors", Run);
  AddServerArgs(command, args);
  command.Footer(
      "The same as a page: the side port's /statusz. Who is no operator of all tenants sees what "
      "his\n"
      "own may have and has.\n"
      "  bucketctl status --server planner.example.org:9460 --json");
}

}  // namespace bucketd::ctl
