#include "passes/auto/auto_pass.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/auto/budget.h"
#include "passes/auto/choice.h"
#include "passes/auto/other_wires.h"
#include "passes/auto/search.h"
#include "passes/auto/to_plan.h"
#include "passes/base/status_macros.h"
#include "passes/pass/fit_memory.h"
#include "passes/sim/auto_report.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

using search::Candidate;

std::string Microseconds(int64_t ps) {
  return absl::StrFormat("%.3f us", static_cast<double>(ps) * 1e-6);
}

class SearchPass : public Pass {
 public:
  SearchPass(std::vector<OtherMode> others, const search::Tuning& tuning)
      : others_(std::move(others)), tuning_(tuning) {}

  absl::string_view name() const override { return "search"; }
  bool needs_tags() const override { return true; }
  bool is_first_to_bucket() const override { return true; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    const int64_t limit = MemoryLimit(context);
    Candidate best = search::CandidateOf(context, "none", plan, limit);
    for (const OtherMode& mode : others_) {
      RETURN_IF_ERROR(TryMode(context, mode, limit, plan, best));
    }
    const Candidate classic = {best.mode, Plan(), best.figures, best.score};
    const SharpBound bound = SharpBoundOf(context.graph, context.costs);
    ASSIGN_OR_RETURN(const int64_t fastest_ps,
                     TrySearch(context, limit, bound.total_ps, plan, best));
    RETURN_IF_ERROR(CheckMemory(context, best.figures.peak_bytes,
                                "the plan with the least memory that was found needs $0 bytes; the "
                                "limit is $1: allow more memory",
                                best.plan));
    best.plan.diagnostics.push_back(Gain(context, classic, best));
    const Gap gap = GapOf(context.graph, best.plan, context.costs, bound, fastest_ps);
    best.plan.diagnostics.push_back({"auto-gap", GapText(gap, bound), {}});
    best.plan.diagnostics.push_back(
        ToDiagnostic({std::string(classic.mode), classic.figures.total_ps, fastest_ps}));
    plan = std::move(best.plan);
    return true;
  }

 private:
  // What a mode's own passes make of the untouched step. A mode that refuses the graph is no floor.
  static absl::Status TryMode(const PassContext& context, const OtherMode& mode, int64_t limit,
                              const Plan& before, Candidate& best) {
    PlanOptions options = context.options;
    if (mode.change != nullptr) mode.change(options);
    PassContext inner(context.graph, context.costs, options);  // none sees what another finds out
    inner.program_order = context.program_order;
    inner.tags = context.tags;
    inner.directions = context.directions;
    inner.constraints = context.constraints;
    Plan plan = before;
    const absl::Status status = mode.pipeline.Run(inner, plan);
    if (absl::IsFailedPrecondition(status)) return absl::OkStatus();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("mode ", mode.name, ": ", status.message()));
    }
    // Told once, behind the search.
    std::erase_if(plan.diagnostics,
                  [](const Diagnostic& d) { return d.code == "payload-order-unknown"; });
    Candidate made = search::CandidateOf(context, mode.name, std::move(plan), limit);
    if (made.score < best.score) best = std::move(made);
    return absl::OkStatus();
  }

  // Returns what the fastest order takes that was seen, in any memory.
  absl::StatusOr<int64_t> TrySearch(const PassContext& context, int64_t limit,
                                    int64_t sharp_bound_ps, const Plan& before,
                                    Candidate& best) const {
    const auto skip = [&](absl::string_view why) {
      best.plan.diagnostics.push_back({"search-skipped", std::string(why), {}});
      return best.figures.total_ps;
    };
    absl::StatusOr<search::Problem> problem = search::Contract(context);
    if (absl::IsResourceExhausted(problem.status())) return skip(problem.status().message());
    if (!problem.ok()) return problem.status();
    problem->tuning = tuning_;
    if (problem->size() == 0 || search::BudgetOf(*problem, context.options.effort) == 0) {
      return skip(
          "the graph has too many nodes and groups to search: the plan is that of the best other "
          "mode");
    }
    // Where collectives of a group have links of their own, a bucket travels by its first member's:
    // the referee's bound, which counts each by its own, may then be above the best plan.
    const int64_t bound_ps = std::min(LowerBoundPs(context.graph, context.costs), sharp_bound_ps);
    const search::Decoded start = search::OrderOf(context.graph, *problem, best.plan);
    std::vector<std::vector<search::Found>> others;
    const auto search_for = [&](double wires) {
      others.push_back(search::OrdersForWires(
          *problem, wires, limit, std::min(context.options.effort, search::kOtherWiresEffort),
          start));
    };
    if (tuning_.Has(search::Part::kFastWires)) search_for(search::kFasterWires);
    if (tuning_.Has(search::Part::kSlowWires) && problem->is_small()) {
      search_for(search::kSlowerWires);
    }
    search::Choice choice(context, *problem, limit, bound_ps, before.diagnostics, std::move(best),
                          std::move(others));
    search::Search search(*problem, limit,
                          search::StopsOf(*problem, bound_ps, context.options.effort),
                          [&](size_t stop) { choice.AtStop(search, static_cast<int32_t>(stop)); });
    search.StartFrom(start);
    search.Run();
    best = choice.best();
    return std::min(search.fastest_ps(), best.figures.total_ps);
  }

  static Diagnostic Gain(const PassContext& context, const Candidate& classic,
                         const Candidate& best) {
    const auto against = [&](int64_t other) {
      return absl::StrFormat(
          "%s, %.2f %% more", Microseconds(other),
          100.0 * (static_cast<double>(other) /
                       static_cast<double>(std::max<int64_t>(1, best.figures.total_ps)) -
                   1.0));
    };
    return {"auto-gain",
            absl::StrCat(Microseconds(best.figures.total_ps), "; program order ",
                         against(context.program_order.total_ps), "; the best other mode, ",
                         classic.mode, ", ", against(classic.figures.total_ps)),
            {}};
  }

  const std::vector<OtherMode> others_;
  const search::Tuning tuning_;
};

}  // namespace

std::unique_ptr<Pass> MakeSearchPass(std::vector<OtherMode> others, const search::Tuning& tuning) {
  return std::make_unique<SearchPass>(std::move(others), tuning);
}

}  // namespace bucketd
