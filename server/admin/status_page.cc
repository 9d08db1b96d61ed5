#include "server/admin/status_page.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "passes/base/words.h"
#include "passes/io/message_json.h"

namespace bucketd {
namespace {

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>bucketd</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root{color-scheme:light dark;--bg:#fff;--fg:#1b2330;--panel:#f5f7fa;--line:#dde2ea;--quiet:#5b6676;
--good:#1d7a3f;--warn:#995700;--bad:#b3261e;--busy:#2b62c9}
@media(prefers-color-scheme:dark){:root{--bg:#11151c;--fg:#e3e8f0;--panel:#1a202a;--line:#2d3542;--quiet:#98a4b5;
--good:#46b872;--warn:#dd9f45;--bad:#f2776d;--busy:#7ea6f4}}
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:76rem;padding:0 1rem;background:var(--bg);color:var(--fg)}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .4rem}h2 small{font-weight:400;color:var(--quiet)}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3rem 1rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--quiet);white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.w{white-space:nowrap}
code,.m{font-family:ui-monospace,monospace;font-size:.92em;overflow-wrap:anywhere}
.quiet{color:var(--quiet)}
.badge{display:inline-block;padding:0 .6rem;border-radius:1rem;border:1px solid;font-size:.85rem;font-weight:600;white-space:nowrap}
h1 .badge{vertical-align:.2rem}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}.busy{color:var(--busy)}
.note{border-left:4px solid;padding:.4rem .8rem;margin:.6rem 0;background:var(--panel)}
.note span{color:var(--fg)}
.tiles{display:flex;flex-wrap:wrap;gap:.7rem;margin:1rem 0}
.tile{flex:1 1 9rem;background:var(--panel);border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem}
.tile{color:inherit;text-decoration:none}.tile b{display:block;font-size:1.45rem;font-variant-numeric:tabular-nums}
.bar{display:inline-block;width:9rem;height:.6rem;border-radius:.3rem;background:var(--line);overflow:hidden}
.bar i{display:block;height:100%;background:currentColor}
.scroll{overflow-x:auto}
@media(max-width:50rem){.bar{width:3rem}.aside{display:none}}
</style></head><body>
)";

// Literals are markup; everything else is text and is escaped.
class Html {
 public:
  template <size_t n>
  Html& operator<<(const char (&markup)[n]) {
    out_.append(markup, n - 1);
    return *this;
  }
  Html& operator<<(const std::string& text) {
    out_ += EscapedHtml(text);
    return *this;
  }
  Html& operator<<(int64_t number) {
    absl::StrAppend(&out_, number);
    return *this;
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string Utc(int64_t ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(ms), absl::UTCTimeZone());
}

// Colours say what the words say, never more.
enum class Mood { kQuiet, kGood, kBusy, kWarn, kBad };

std::string Class(Mood mood) {
  switch (mood) {
    case Mood::kGood:
      return "good";
    case Mood::kBusy:
      return "busy";
    case Mood::kWarn:
      return "warn";
    case Mood::kBad:
      return "bad";
    default:
      return "quiet";
  }
}

void Badge(const std::string& text, Mood mood, Html& html) {
  html << "<span class=\"badge " << Class(mood) << "\">" << text << "</span>";
}

void Note(const std::string& what, const std::string& text, Mood mood, Html& html) {
  html << "<div class=\"note " << Class(mood) << "\"><b>" << what << "</b><span> " << text
       << "</span></div>\n";
}

// `section`: where there is more.
void Tile(const std::string& figure, const std::string& what, Mood mood, const std::string& section,
          Html& html) {
  html << "<a class=tile href=\"#" << section << "\"><b class=" << Class(mood) << ">" << figure
       << "</b>" << what << "</a>\n";
}

void Bar(int64_t value, int64_t limit, Mood mood, Html& html) {
  const double share =
      static_cast<double>(value) / static_cast<double>(std::max<int64_t>(limit, 1));
  const auto percent = static_cast<int64_t>(100 * std::clamp(share, value > 0 ? 0.02 : 0.0, 1.0));
  html << "<span class=\"bar " << Class(mood) << "\"><i style=\"width:" << percent
       << "%\"></i></span>";
}

std::string Since(int64_t when_ms, int64_t now_ms) {
  return absl::StrCat(SpanInWords(now_ms - when_ms), " ago, ", Utc(when_ms));
}

bool Has(const std::multimap<std::string, std::string>& query, const char* name,
         const char* value) {
  const auto found = query.find(name);
  return found != query.end() && found->second == value;
}

bool StoreFails(const v1::GetStatusResponse& s) {
  return !s.store().error().empty() || s.store().has_reading() || s.store().has_writing();
}

void AddHeader(const v1::GetStatusResponse& s, Html& html) {
  html << "<h1>bucketd ";
  Badge(s.state(), s.state() == "serving" ? Mood::kGood : Mood::kWarn, html);
  html << " ";
  if (s.planning().enabled()) {
    Badge("planning is on", Mood::kGood, html);
  } else {
    Badge("planning is off", Mood::kBad, html);
  }
  html << " ";
  if (!s.has_store()) {
    Badge("no store", Mood::kQuiet, html);
  } else if (StoreFails(s)) {
    Badge("store fails", Mood::kBad, html);
  } else {
    Badge("store works", Mood::kGood, html);
  }
  html << "</h1><p class=\"quiet\">" << s.server_version() << ", planner " << s.planner_version()
       << " · pid " << s.pid() << " · up for " << SpanInWords(s.uptime_ms()) << ", since "
       << Utc(s.started_ms()) << " · clients at <code>" << s.address() << "</code></p>\n";
}

// What somebody should know before all else.
void AddNotes(const v1::GetStatusResponse& s, int64_t now_ms, Html& html) {
  if (s.state() == "draining") {
    Note("Draining.", "New calls are refused; those in flight may end.", Mood::kWarn, html);
  }
  const v1::PlanningState& planning = s.planning();
  if (!planning.enabled() || !planning.why().empty() || !planning.not_stored().empty()) {
    std::string text = planning.why();
    if (planning.since_ms() != 0)
      absl::StrAppend(&text, " (", Since(planning.since_ms(), now_ms), ")");
    if (!planning.not_stored().empty()) {
      absl::StrAppend(&text, ". Not in the store yet: ", planning.not_stored());
    } else if (!planning.persisted()) {
      absl::StrAppend(&text, ". A restart forgets this.");
    }
    if (planning.enabled()) {
      Note("Planning is on:", text, Mood::kGood, html);
    } else {
      Note("Planning is off:", text, Mood::kBad, html);
    }
  }
  const auto trouble = [&](const char* what, const v1::StoreTrouble& t) {
    Note(what, absl::StrCat(t.why(), " (since ", Since(t.since_ms(), now_ms), ")"), Mood::kBad,
         html);
  };
  const v1::StoreStatus& store = s.store();
  if (!store.error().empty()) Note("The store cannot be read:", store.error(), Mood::kBad, html);
  if (store.has_reading()) trouble("Reading the store fails:", store.reading());
  if (store.has_writing())
    trouble("Writing the store fails: new plans are not kept.", store.writing());
}

struct Sums {
  int64_t hits, plans, calls;
};

Sums SumsOf(const v1::PlanCounts& p) {
  const int64_t hits = p.hits() + p.pinned() + p.store_hits();
  const int64_t plans = hits + p.computed() + p.joined();
  return {hits, plans, plans + p.graph_required() + p.errors() + p.unplanned()};
}

void AddTiles(const v1::GetStatusResponse& s, Html& html) {
  const v1::LoadStatus& load = s.load();
  const Sums sums = SumsOf(s.plans());
  const int64_t waiting_jobs =
      std::count_if(s.jobs().begin(), s.jobs().end(),
                    [](const v1::JobStatus& job) { return job.state() == "waiting"; });
  const auto busy = [](int64_t value, int64_t limit) {
    if (value == 0) return Mood::kQuiet;
    return value < limit ? Mood::kBusy : Mood::kWarn;
  };
  html << "<div class=tiles>\n";
  Tile(ShareInWords(sums.hits, sums.plans), "of plans were there already", Mood::kGood, "answers",
       html);
  Tile(absl::StrCat(sums.plans), "plans answered", Mood::kBusy, "answers", html);
  Tile(absl::StrCat(load.computing(), " / ", load.compute_slots()), "computations now",
       busy(load.computing(), load.compute_slots()), "room", html);
  Tile(absl::StrCat(load.waiting()), "callers wait", busy(load.waiting(), load.waiting_limit()),
       "room", html);
  Tile(absl::StrCat(waiting_jobs), "jobs wait for ranks",
       waiting_jobs == 0 ? Mood::kQuiet : Mood::kWarn, "jobs", html);
  Tile(absl::StrCat(s.plans().errors()), "calls refused or failed",
       s.plans().errors() == 0 ? Mood::kQuiet : Mood::kBad, "errors", html);
  html << "</div>\n";
}

void AddAnswers(const v1::PlanCounts& p, Html& html) {
  const Sums sums = SumsOf(p);
  html << "<h2 id=answers>GetPlan <small>answers since the "
          "start</small></h2><table><tr><th>answer<th "
          "class=n>calls<th class=n>share<th><th class=aside>meaning</tr>\n";
  const auto row = [&](const std::string& name, int64_t n, Mood mood, const std::string& meaning) {
    html << "<tr><td class=w>" << name << "<td class=n>" << n << "<td class=n>"
         << ShareInWords(n, sums.calls) << "<td>";
    Bar(n, sums.calls, mood, html);
    html << "<td class=\"quiet aside\">" << meaning << "</tr>\n";
  };
  row("hit", p.hits(), Mood::kGood, "from memory, one round trip");
  row("pinned", p.pinned(), Mood::kGood, "what the job agreed on before");
  row("stored", p.store_hits(), Mood::kGood, "read back from the store: computed before a restart");
  row("computed", p.computed(), Mood::kBusy, "misses");
  row("joined", p.joined(), Mood::kBusy, "waited for another caller's computation");
  row("graph asked for", p.graph_required(), Mood::kQuiet,
      "the caller was asked to upload, and asks again");
  row("unplanned", p.unplanned(), Mood::kWarn, "planning was off when the generation began");
  row("refused, failed", p.errors(), Mood::kBad, "see the last errors below");
  html << "</table>\n";
}

void AddLoad(const v1::GetStatusResponse& s, Html& html) {
  html << "<h2 id=room>Room <small>what is under way or held, and its "
          "limit</small></h2><table><tr><th>what<th "
          "class=n>now<th class=n>limit<th><th></tr>\n";
  const auto row = [&](const std::string& name, const std::string& now, const std::string& limit,
                       int64_t value, int64_t most, const std::string& more) {
    html << "<tr><td class=w>" << name << "<td class=n>" << now << "<td class=n>" << limit
         << "<td>";
    Bar(value, most, value * 10 >= most * 9 ? Mood::kWarn : Mood::kBusy, html);
    html << "<td class=\"quiet aside\">" << more << "</tr>\n";
  };
  const auto count = [&](const std::string& name, int64_t now, int64_t limit,
                         const std::string& more) {
    row(name, absl::StrCat(now), absl::StrCat(limit), now, limit, more);
  };
  const v1::LoadStatus& load = s.load();
  count("computations", load.computing(), load.compute_slots(), "a core each");
  count("computations queued", load.queued(), load.queue_limit(), "beyond: OVERLOADED");
  count("callers waiting", load.waiting(), load.waiting_limit(), "for a graph or a computation");
  count("uploads", load.uploads(), load.uploads_limit(), "streams open");
  for (const v1::CacheStatus& cache : s.caches()) {
    row(absl::StrCat(cache.name(), " in memory"), BytesInWords(cache.bytes()),
        BytesInWords(cache.capacity_bytes()), cache.bytes(), cache.capacity_bytes(),
        absl::StrCat(cache.entries(), " entries, ", cache.evictions(), " dropped for room"));
  }
  if (s.has_store()) {
    const v1::StoreStatus& store = s.store();
    row("plans in the store", BytesInWords(store.plan_bytes()),
        BytesInWords(store.capacity_bytes()), store.plan_bytes(), store.capacity_bytes(),
        absl::StrCat(store.plans(), " plans, ", store.held_plans(), " pinned by jobs"));
  }
  html << "</table>\n";
}

void AddGivenUp(const v1::GivenUp& g, Html& html) {
  html << "<h2 id=given-up>Given up <small>since the start, so that others are "
          "served</small></h2><table><tr><th>what<th class=n>number<th class=aside>why</tr>\n";
  const auto row = [&](const std::string& name, int64_t n, const std::string& why) {
    html << "<tr><td class=w>" << name << "<td class=\"n "
         << Class(n == 0 ? Mood::kQuiet : Mood::kWarn) << "\">" << n << "<td class=\"quiet aside\">"
         << why << "</tr>\n";
  };
  row("waiting callers", g.callers(), "their peer or tenant had most of max-waiting");
  row("waiting ranks", g.ranks(), "their peer or tenant had most of max-waiting-ranks");
  row("jobs with waiting ranks", g.job_places(), "their peer or tenant had most of max-jobs");
  row("queued computations", g.computations(), "their peer or tenant had most of compute-queue");
  row("uploads", g.uploads(), "the slowest, or of the peer that had most of max-uploads");
  row("reports of costs", g.reports(), "the slowest, or of the peer that had most places");
  row("groups of agents", g.groups(), "their peer or tenant had most places");
  row("pins of jobs", g.jobs(), "those of the fewest ranks, where max-pins-per-tenant was used up");
  row("computations without callers", g.abandoned(), "nobody waited for them any more");
  row("connections", g.connections(), "they flooded the server, or were more than it takes");
  html << "</table>\n";
}

void AddStore(const v1::GetStatusResponse& s, int64_t now_ms, Html& html) {
  html << "<h2>Store <small>what outlives this process</small></h2>";
  if (!s.has_store()) {
    html << "<p class=quiet>There is none (--store): plans live in memory alone.</p>\n";
    return;
  }
  const v1::StoreStatus& store = s.store();
  const auto failures = [&](const char* what, int64_t n) {
    html << "<td class=\"n " << Class(n == 0 ? Mood::kQuiet : Mood::kBad) << "\" title=\""
         << std::string(what) << " since the start\">" << n;
  };
  html << "<div class=scroll><table><tr><th>path<th class=n>on disk<th class=n>records<th>the "
          "oldest plan was used<th "
          "class=n>failed reads<th class=n>failed writes<th class=n>damaged values</tr><tr><td "
          "class=m>"
       << store.path() << "<td class=n>"
       << (store.file_bytes() == 0 ? "-" : BytesInWords(store.file_bytes())) << "<td class=n>"
       << store.records() << "<td>"
       << (store.oldest_use_ms() == 0 ? std::string("-") : Since(store.oldest_use_ms(), now_ms));
  failures("reads that failed", store.failed_reads());
  failures("writes that failed", store.failed_writes());
  failures("values found damaged", store.damage());
  html << "</tr></table></div>\n";
}

// Who is waited for.
std::string Missing(const v1::JobStatus& job) {
  if (job.state() != "waiting") return "";
  std::string out = RangesInWords({job.missing().data(), static_cast<size_t>(job.missing_size())});
  const int64_t more = int64_t{job.size()} - job.arrived() - job.missing_size();
  if (more > 0) absl::StrAppend(&out, " and ", more, " more");
  return out;
}

Mood MoodOf(const v1::JobStatus& job) {
  if (job.state() == "agreed") return Mood::kGood;
  if (job.state() == "planning") return Mood::kBusy;
  if (job.state() == "waiting") return Mood::kWarn;
  return job.state() == "failed" ? Mood::kBad : Mood::kQuiet;
}

void AddJobs(const v1::GetStatusResponse& s, int64_t now_ms, Html& html) {
  html << "<h2 id=jobs>Jobs <small>" << s.jobs_total() << " scopes whose ranks agree on a plan, "
       << s.jobs_waiting() << " that wait for ranks first</small></h2>";
  if (s.jobs_total() == 0) {
    html << "<p class=quiet>None.</p>\n";
    return;
  }
  html << "<div class=scroll><table><tr><th>job<th class=n>generation<th>scope<th>state<th "
          "class=n>ranks<th>"
          "waits for ranks<th>began<th>about</tr>\n";
  for (const v1::JobStatus& job : s.jobs()) {
    html << "<tr><td>" << job.id();
    if (!job.tenant().empty()) html << " <span class=quiet>of " << job.tenant() << "</span>";
    html << "<td class=n>" << static_cast<int64_t>(job.generation()) << "<td>" << job.scope()
         << "<td>";
    Badge(job.state(), MoodOf(job), html);
    html << "<td class=n>" << int64_t{job.arrived()} << " of " << int64_t{job.size()} << "<td>"
         << Missing(job) << "<td class=w>"
         << (job.since_ms() == 0 ? std::string("-")
                                 : absl::StrCat(SpanInWords(now_ms - job.since_ms()), " ago"))
         << "<td class=m>" << job.about() << "</tr>\n";
  }
  html << "</table></div>\n";
  if (s.jobs_total() > s.jobs_size()) {
    html << "<p class=quiet>and " << s.jobs_total() - s.jobs_size()
         << " more: bucketctl jobs</p>\n";
  }
}

void AddProfiles(const v1::GetStatusResponse& s, Html& html) {
  html << "<h2>Cost profiles <small>what <code>latest</code> is of each</small></h2>";
  if (s.cost_profiles().empty()) {
    html << "<p class=quiet>None.</p>\n";
    return;
  }
  html << "<table><tr><th>name<th class=n>version<th>about</tr>\n";
  for (const v1::CostProfileStatus& profile : s.cost_profiles()) {
    html << "<tr><td class=w>" << profile.name() << "<td class=n>" << int64_t{profile.version()}
         << "<td>" << profile.about() << "</tr>\n";
  }
  html << "</table>\n";
}

void AddTenants(const v1::GetStatusResponse& s, Html& html) {
  if (s.tenants().empty()) return;
  html << "<h2>Tenants <small>what each has, and may have</small></h2><div class=scroll><table><tr>"
          "<th>tenant<th class=n>weight";
  for (const v1::QuotaStatus& quota : s.tenants(0).quotas()) {
    html << "<th class=n>" << quota.name();
  }
  html << "</tr>\n";
  for (const v1::TenantStatus& tenant : s.tenants()) {
    html << "<tr><td class=w>" << (tenant.tenant().empty() ? "(default)" : tenant.tenant())
         << "<td class=n>" << tenant.weight();
    for (const v1::QuotaStatus& quota : tenant.quotas()) {
      html << "<td class=n>" << quota.used();
      if (quota.has_limit()) html << " of " << quota.limit();
      if (quota.refused() > 0) html << ", " << quota.refused() << " refused";
    }
    html << "</tr>\n";
  }
  html << "</table></div>\n";
}

void AddReplicas(const v1::GetStatusResponse& s, Html& html) {
  if (!s.has_cluster()) return;
  const v1::ClusterStatus& cluster = s.cluster();
  html << "<h2>Replicas <small>" << cluster.job_leases() << " jobs meet here, "
       << cluster.plan_leases() << " plans are computed here for all</small></h2>";
  if (!cluster.trouble().empty()) html << "<p class=bad>" << cluster.trouble() << "</p>\n";
  html << "<table><tr><th>address<th>state<th class=n>last heard of</tr>\n";
  for (const v1::ReplicaStatus& replica : cluster.replicas()) {
    html << "<tr><td class=w>" << replica.address() << (replica.self() ? " (this one)" : "")
         << "<td>" << replica.state() << "<td class=n>" << SpanInWords(replica.silent_ms())
         << " ago</tr>\n";
  }
  html << "</table>\n";
}

void AddErrors(const v1::GetStatusResponse& s, int64_t now_ms, Html& html) {
  html << "<h2 id=errors>Last errors <small>the newest first; at most 25 that callers caused, 25 "
          "of the "
          "server's own</small></h2>";
  if (s.errors().empty()) {
    html << "<p class=quiet>None since the start.</p>\n";
    return;
  }
  html << "<div class=scroll><table><tr><th>when<th>call<th>reason<th>message<th>request, "
          "trace</tr>\n";
  for (const v1::RecentError& error : s.errors()) {
    html << "<tr><td class=w>" << SpanInWords(std::max<int64_t>(now_ms - error.when_ms(), 0))
         << " ago<td>" << error.method() << "<td class=w><span class=m title=\"" << error.code()
         << "\">" << (error.reason().empty() ? error.code() : error.reason()) << "</span><td>"
         << error.message() << "<td class=m>" << error.request_id();
    if (!error.trace_id().empty()) html << "<br>" << error.trace_id();
    html << "</tr>\n";
  }
  html << "</table></div>\n";
}

}  // namespace

std::string StatusPage(const v1::GetStatusResponse& status) {
  const int64_t now_ms = status.started_ms() + status.uptime_ms();
  Html html;
  html << kHead;
  AddHeader(status, html);
  AddNotes(status, now_ms, html);
  AddTiles(status, html);
  AddAnswers(status.plans(), html);
  AddLoad(status, html);
  AddGivenUp(status.given_up(), html);
  AddStore(status, now_ms, html);
  AddJobs(status, now_ms, html);
  AddErrors(status, now_ms, html);
  AddReplicas(status, html);
  AddTenants(status, html);
  AddProfiles(status, html);
  html << "<p class=quiet>As of " << Utc(now_ms)
       << ". <a href=\"/statusz?refresh=5\">Again every 5 s</a> · <a "
          "href=\"/metrics\">/metrics</a> · <a "
          "href=\"/statusz?format=json\">/statusz?format=json</a>"
          " · <a href=\"/readyz\">/readyz</a> · /livez</p></body></html>\n";
  return html.Take();
}

std::vector<SidePort::Page> StatusPages(std::function<v1::GetStatusResponse()> status) {
  const auto answer = [status = std::move(status)](const auto& query) -> SidePort::Answer {
    const v1::GetStatusResponse now = status();
    if (Has(query, "format", "json")) return {MessageJson(now), "application/json"};
    return {.body = StatusPage(now), .refresh_seconds = Has(query, "refresh", "5") ? 5 : 0};
  };
  return {{"/statusz", answer}, {"/", answer}};
}

}  // namespace bucketd
