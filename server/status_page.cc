#include "server/status_page.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"

#include "passes/base/words.h"

namespace bucketd {
namespace {

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>bucketd</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root{color-scheme:light dark;--line:#8884;--quiet:#888}
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:72rem;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--quiet)}td.n,th.n{text-align:right}
code,td.m{font-family:ui-monospace,monospace;font-size:.92em;overflow-wrap:anywhere}
.badge{display:inline-block;padding:.1rem .6rem;border-radius:1rem;color:#fff;background:#2b7a3d;font-size:.9rem}
.badge.warn{background:#b26a00}.badge.bad{background:#b3261e}
.quiet{color:var(--quiet)}meter{width:9rem;vertical-align:middle}
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
    out_ += absl::StrReplaceAll(
        text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
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

void Fill(int64_t value, int64_t limit, Html& html) {
  html << "<meter min=\"0\" max=\"" << std::max<int64_t>(limit, 1) << "\" high=\""
       << std::max<int64_t>(limit * 9 / 10, 1) << "\" value=\"" << value << "\"></meter>";
}

void AddHeader(const v1::GetStatusResponse& s, Html& html) {
  html << "<h1>bucketd ";
  if (s.state() == "serving") {
    html << "<span class=\"badge\">serving</span>";
  } else {
    html << "<span class=\"badge warn\">" << s.state() << "</span>";
  }
  if (!s.planning().enabled()) html << " <span class=\"badge bad\">planning is off</span>";
  html << "</h1><p class=\"quiet\">" << s.server_version() << ", planner " << s.planner_version()
       << " · pid " << s.pid() << " · up for " << SpanInWords(s.uptime_ms()) << ", since "
       << Utc(s.started_ms()) << " · clients at <code>" << s.address() << "</code></p>\n";
  if (!s.planning().why().empty()) {
    html << "<p><b>Planning is ";
    html << std::string(s.planning().enabled() ? "on" : "off") << "</b>: " << s.planning().why();
    if (s.planning().since_ms() != 0) html << " (since " << Utc(s.planning().since_ms()) << ")";
    if (!s.planning().persisted()) html << ". A restart forgets this.";
    html << "</p>\n";
  }
}

void AddAnswers(const v1::PlanCounts& p, Html& html) {
  const int64_t from_memory = p.hits() + p.pinned();
  const int64_t plans = from_memory + p.store_hits() + p.computed() + p.joined();
  const int64_t all = plans + p.graph_required() + p.errors() + p.unplanned();
  html << "<h2>Answers since the start</h2><table><tr><th>plans from<th class=n>calls<th "
          "class=n>share of plans<th>meaning</tr>\n";
  const auto row = [&](const std::string& name, int64_t n, const std::string& share,
                       const std::string& meaning) {
    html << "<tr><td>" << name << "<td class=n>" << n << "<td class=n>" << share
         << "<td class=quiet>" << meaning << "</tr>\n";
  };
  row("memory", from_memory, ShareInWords(from_memory, plans), "hits: one round trip");
  if (p.store_hits() > 0)
    row("store", p.store_hits(), ShareInWords(p.store_hits(), plans), "read back");
  row("a computation", p.computed(), ShareInWords(p.computed(), plans), "misses, computed once");
  row("another's computation", p.joined(), ShareInWords(p.joined(), plans),
      "misses that waited for it");
  row("(graph asked for)", p.graph_required(), "", "the caller was asked to upload");
  if (p.unplanned() > 0) row("(unplanned)", p.unplanned(), "", "planning was off");
  row("(errors)", p.errors(), "", absl::StrCat(ShareInWords(p.errors(), all), " of all calls"));
  html << "</table>\n";
}

void AddLoad(const v1::GetStatusResponse& s, Html& html) {
  html << "<h2>Under way, and held</h2><table><tr><th>what<th class=n>now<th "
          "class=n>limit<th>fill<th></tr>\n";
  const auto row = [&](const std::string& name, const std::string& now, const std::string& limit,
                       int64_t value, int64_t most, const std::string& more) {
    html << "<tr><td>" << name << "<td class=n>" << now << "<td class=n>" << limit << "<td>";
    Fill(value, most, html);
    html << "<td class=quiet>" << more << "</tr>\n";
  };
  const auto count = [&](const std::string& name, int64_t now, int64_t limit) {
    row(name, absl::StrCat(now), absl::StrCat(limit), now, limit, "");
  };
  const v1::LoadStatus& load = s.load();
  count("computations", load.computing(), load.compute_slots());
  count("computations queued", load.queued(), load.queue_limit());
  count("callers waiting", load.waiting(), load.waiting_limit());
  count("uploads", load.uploads(), load.uploads_limit());
  for (const v1::CacheStatus& cache : s.caches()) {
    row(absl::StrCat(cache.name(), " in memory"), BytesInWords(cache.bytes()),
        BytesInWords(cache.capacity_bytes()), cache.bytes(), cache.capacity_bytes(),
        absl::StrCat(cache.entries(), " entries, ", cache.evictions(), " dropped for room"));
  }
  html << "</table>\n";
}

void AddStore(const v1::GetStatusResponse& s, Html& html) {
  html << "<h2>Store</h2>";
  if (!s.has_store()) {
    html << "<p class=quiet>There is none: plans live in memory alone.</p>\n";
    return;
  }
  const v1::StoreStatus& store = s.store();
  if (!store.error().empty()) {
    html << "<p><span class=\"badge bad\">cannot be read</span> " << store.error() << "</p>\n";
    return;
  }
  html << "<table><tr><th>path<th class=n>plans<th class=n>their bytes<th class=n>on disk<th "
          "class=n>pinned by jobs<th class=n>records<th>the oldest was used</tr><tr><td class=m>"
       << store.path() << "<td class=n>" << store.plans() << "<td class=n>"
       << BytesInWords(store.plan_bytes()) << "<td class=n>" << BytesInWords(store.file_bytes())
       << "<td class=n>" << store.held_plans() << "<td class=n>" << store.records() << "<td>"
       << (store.oldest_use_ms() == 0 ? std::string("-") : Utc(store.oldest_use_ms()))
       << "</tr></table>\n";
}

// Who is waited for.
std::string Missing(const v1::JobStatus& job) {
  if (job.state() != "waiting") return "";
  std::string out = RangesInWords({job.missing().data(), static_cast<size_t>(job.missing_size())});
  const int64_t more = int64_t{job.size()} - job.arrived() - job.missing_size();
  if (more > 0) absl::StrAppend(&out, " and ", more, " more");
  return out;
}

void AddJobs(const v1::GetStatusResponse& s, int64_t now_ms, Html& html) {
  html << "<h2>Jobs in agreement</h2>";
  if (s.jobs_total() == 0) {
    html << "<p class=quiet>None.</p>\n";
    return;
  }
  html << "<table><tr><th>job<th class=n>generation<th>scope<th>state<th class=n>ranks here<th>"
          "waits for ranks<th>for<th></tr>\n";
  for (const v1::JobStatus& job : s.jobs()) {
    html << "<tr><td>" << job.id();
    if (!job.tenant().empty()) html << " <span class=quiet>of " << job.tenant() << "</span>";
    html << "<td class=n>" << static_cast<int64_t>(job.generation()) << "<td>" << job.scope()
         << "<td>" << job.state() << "<td class=n>" << int64_t{job.arrived()} << " of "
         << int64_t{job.size()} << "<td>" << Missing(job) << "<td>"
         << (job.since_ms() == 0 ? std::string("-") : SpanInWords(now_ms - job.since_ms()))
         << "<td class=m>" << job.about() << "</tr>\n";
  }
  html << "</table>\n";
  if (s.jobs_total() > s.jobs_size()) {
    html << "<p class=quiet>and " << s.jobs_total() - s.jobs_size() << " more</p>\n";
  }
}

void AddProfiles(const v1::GetStatusResponse& s, Html& html) {
  if (s.cost_profiles().empty()) return;
  html << "<h2>Cost profiles</h2><table><tr><th>name<th class=n>version<th>about</tr>\n";
  for (const v1::CostProfileStatus& profile : s.cost_profiles()) {
    html << "<tr><td>" << profile.name() << "<td class=n>" << int64_t{profile.version()} << "<td>"
         << profile.about() << "</tr>\n";
  }
  html << "</table>\n";
}

void AddErrors(const v1::GetStatusResponse& s, int64_t now_ms, Html& html) {
  html << "<h2>Last errors</h2>";
  if (s.errors().empty()) {
    html << "<p class=quiet>None since the start.</p>\n";
    return;
  }
  html << "<table><tr><th>ago<th>call<th>reason<th>message<th>request</tr>\n";
  for (const v1::RecentError& error : s.errors()) {
    html << "<tr><td>" << SpanInWords(std::max<int64_t>(now_ms - error.when_ms(), 0)) << "<td>"
         << error.method() << "<td>" << (error.reason().empty() ? error.code() : error.reason())
         << "<td>" << error.message() << "<td class=m>" << error.request_id();
    if (!error.trace_id().empty()) html << "<br>trace " << error.trace_id();
    html << "</tr>\n";
  }
  html << "</table>\n";
}

}  // namespace

std::string StatusPage(const v1::GetStatusResponse& status) {
  const int64_t now_ms = status.started_ms() + status.uptime_ms();
  Html html;
  html << kHead;
  AddHeader(status, html);
  AddAnswers(status.plans(), html);
  AddLoad(status, html);
  AddStore(status, html);
  AddJobs(status, now_ms, html);
  AddProfiles(status, html);
  AddErrors(status, now_ms, html);
  html << "<p class=quiet>Also: <a href=\"/metrics\">/metrics</a> · <a "
          "href=\"/statusz?format=json\">/statusz?format=json</a> · /livez · "
          "/readyz</p></body></html>\n";
  return html.Take();
}

}  // namespace bucketd
