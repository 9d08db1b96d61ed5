#include "client/ctl/standing.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/render/table.h"

#include "passes/sim/auto_report.h"

namespace bucketd::ctl {
namespace {

std::string Less(int64_t now, int64_t other, absl::string_view than) {
  if (now == other) return absl::StrCat("as long as ", than);
  const double percent = 100.0 * (1.0 - Ratio(now, other));
  return absl::StrFormat("%.2f %% %s time than %s (%s)", std::abs(percent),
                         percent < 0.0 ? "more" : "less", than, Duration(other));
}

absl::string_view Meaning(absl::string_view cause) {
  if (cause == "memory") return "a faster plan was found that needs more memory";
  if (cause == "copies") return "copies into and out of packed buckets";
  if (cause == "host") return "the host had not launched yet";
  if (cause == "head") return "before the first kernel, beyond what every plan waits there";
  if (cause == "tail") return "after the last kernel, beyond what every plan waits there";
  if (cause == "critical_path")
    return "waits for collectives that began as soon as what they send was there";
  return "a busy wire, late launches, latencies, slowdown beside collectives";
}

}  // namespace

Standing StandingOf(const Graph& graph, const Plan& plan, const Costs& costs) {
  Standing standing;
  standing.total_ps = plan.prediction.total_ps;
  standing.program_order_ps = plan.program_order.total_ps;
  int64_t fastest_ps = standing.total_ps;
  if (const std::optional<AutoReport> report = ReportOf(plan); report.has_value()) {
    standing.best_mode = report->best_mode;
    standing.best_mode_ps = report->best_mode_ps;
    fastest_ps = report->fastest_ps;
  }
  standing.bound = SharpBoundOf(graph, costs);
  standing.gap = GapOf(graph, plan, costs, standing.bound, fastest_ps);
  return standing;
}

std::string StandingText(const Standing& s) {
  std::string text = absl::StrCat("gain   ", Less(s.total_ps, s.program_order_ps, "program order"));
  if (s.best_mode_ps > 0 && s.best_mode != "none") {
    absl::StrAppend(
        &text, ",\n       ",
        Less(s.total_ps, s.best_mode_ps, absl::StrCat(s.best_mode, ", the best other mode")));
  } else if (s.best_mode_ps > 0) {
    absl::StrAppend(&text, ",\n       which no other mode improves within the memory limit");
  }
  absl::StrAppendFormat(
      &text, "\nbound  %s: no plan is faster, in any memory; this one is %.3f %% (%s) above it%s\n",
      Duration(s.bound.total_ps), 100.0 * Ratio(s.gap.total, s.bound.total_ps),
      Duration(s.gap.total), s.gap.total > 0 ? ":" : "");
  for (const auto& [cause, ps] : s.gap.Causes()) {
    if (ps == 0) continue;
    absl::StrAppendFormat(&text, "       %-14s %5.1f %%  %12s  %s\n", cause,
                          100.0 * Ratio(ps, s.gap.total), Duration(ps), Meaning(cause));
  }
  return text;
}

Json StandingJson(const Standing& s) {
  Json gain = Json::Object({{"program_order_us", Json::Us(s.program_order_ps)}});
  if (s.best_mode_ps > 0) {
    gain.Set("best_mode", s.best_mode).Set("best_mode_us", Json::Us(s.best_mode_ps));
  }
  Json gap = Json::Object({{"total_us", Json::Us(s.gap.total)}});
  for (const auto& [cause, ps] : s.gap.Causes()) gap.Set(absl::StrCat(cause, "_us"), Json::Us(ps));
  const std::string over = absl::StrFormat("%.6f", Ratio(s.total_ps, s.bound.total_ps));
  return Json::Object({{"gain", gain},
                       {"sharp_bound_us", Json::Us(s.bound.total_ps)},
                       {"over_sharp_bound", Json::Number(over)},
                       {"gap", gap}});
}

}  // namespace bucketd::ctl
