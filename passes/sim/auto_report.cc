#include "passes/sim/auto_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace bucketd {
namespace {

constexpr absl::string_view kCode = "auto-report";

}  // namespace

Diagnostic ToDiagnostic(const AutoReport& report) {
  return {std::string(kCode),
          absl::StrCat("best_mode=", report.best_mode, " best_mode_ps=", report.best_mode_ps,
                       " fastest_ps=", report.fastest_ps),
          {}};
}

std::optional<AutoReport> ReportOf(const Plan& plan) {
  const auto found = std::find_if(plan.diagnostics.begin(), plan.diagnostics.end(),
                                  [](const Diagnostic& d) { return d.code == kCode; });
  if (found == plan.diagnostics.end()) return std::nullopt;
  AutoReport report;
  for (const absl::string_view word : absl::StrSplit(found->text, ' ')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (parts.size() != 2) return std::nullopt;
    if (parts[0] == "best_mode") report.best_mode = std::string(parts[1]);
    int64_t ps = 0;
    if (!absl::EndsWith(parts[0], "_ps")) continue;
    if (!absl::SimpleAtoi(parts[1], &ps) || ps < 0) return std::nullopt;
    (parts[0] == "best_mode_ps" ? report.best_mode_ps : report.fastest_ps) = ps;
  }
  return report;
}

std::string GapText(const Gap& gap, const SharpBound& bound) {
  const auto us = [](int64_t ps) { return static_cast<double>(ps) * 1e-6; };
  std::vector<std::string> causes;
  for (const auto& [name, ps] : gap.Causes()) {
    if (ps > 0) causes.push_back(absl::StrFormat("%s %.3f us", name, us(ps)));
  }
  return absl::StrFormat("%.3f %% (%.3f us) above the bound of %.3f us%s%s",
                         100.0 * us(gap.total) / std::max(us(bound.total_ps), 1e-6), us(gap.total),
                         us(bound.total_ps), causes.empty() ? "" : ": ",
                         absl::StrJoin(causes, ", "));
}

}  // namespace bucketd
