#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/pass/entries.h"
#include "passes/pass/fit_memory.h"
#include "passes/pass/passes.h"
#include "passes/pass/plan_launch.h"
#include "passes/pass/schedule.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

// Issues all-gathers before the waits of earlier units, the first unit's before the first kernel,
// and waits for reductions after the starts of later ones, each as far as the options say and
// memory allows.
class Prefetch : public Pass {
 public:
  absl::string_view name() const override { return "prefetch"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (context.launches.empty()) return false;
    const std::vector<Step> before = plan.order;
    ASSIGN_OR_RETURN(const std::vector<int32_t> of_unit, OfUnits(context, plan.diagnostics));
    const int64_t limit = MemoryLimit(context);
    ASSIGN_OR_RETURN(Placed placed, Place(context, of_unit, limit, plan));
    // In eager order the buckets are eager's units, whatever memory they take.
    const bool may_split = context.options.numerics != Numerics::kEagerOrder;
    if (placed.figures.peak_bytes > limit && may_split) {
      const std::vector<Launch> launches = context.launches;
      Plan split = plan;
      if (SplitUntilItFits(context, limit, split)) {
        ASSIGN_OR_RETURN(placed, Place(context, of_unit, limit, split));
        split.diagnostics.push_back(
            {"buckets-split",
             absl::StrCat("to stay within the memory limit, ", plan.buckets.size(),
                          " buckets became ", split.buckets.size(),
                          "; members that stand in none are launched alone"),
             {}});
        plan = std::move(split);
      } else {
        context.launches = launches;
      }
    }
    if (!placed.reduced.nodes.empty()) plan.diagnostics.push_back(std::move(placed.reduced));
    RETURN_IF_ERROR(CheckMemory(
        context, placed.figures.peak_bytes,
        "the plan needs $0 bytes at its peak, the limit is $1 (program order needs $2); no launch "
        "is left that could move less far: allow more memory, or merge less",
        plan));
    return plan.order != before;
  }

 private:
  struct Placed {
    Prediction figures;
    Diagnostic reduced;  // launches that move less far than they should; without nodes: none
  };

  // Orders the plan's buckets.
  static absl::StatusOr<Placed> Place(const PassContext& context,
                                      const std::vector<int32_t>& of_unit, int64_t limit,
                                      Plan& plan) {
    ASSIGN_OR_RETURN(Scheduler scheduler, Scheduler::Make(context, plan.buckets, context.launches));
    std::vector<int32_t> distances;
    for (size_t i = 0; i < context.launches.size(); ++i) {
      const int32_t wanted = of_unit[Index(context.launches[i].unit)];
      distances.push_back(
          scheduler.Wanted(i, wanted >= 0 ? wanted : Default(context, context.launches[i])));
    }
    const std::vector<int32_t> wanted = distances;
    Placed placed;
    placed.figures = Fit(context, scheduler, limit, distances, plan);
    placed.reduced = Reduced(context, scheduler, wanted, distances, plan);
    return placed;
  }

  // With nothing moved; whether memory is then within the limit.
  static bool SplitUntilItFits(PassContext& context, int64_t limit, Plan& plan) {
    constexpr int kMaxRounds = 16;
    for (int round = 0; round < kMaxRounds; ++round) {
      const absl::StatusOr<Scheduler> scheduler =
          Scheduler::Make(context, plan.buckets, context.launches);
      if (!scheduler.ok()) return false;
      plan.order = scheduler->Order(std::vector<int32_t>(context.launches.size(), 0));
      const Simulation simulation = Simulate(context.graph, plan, context.costs, true);
      if (simulation.prediction.peak_bytes <= limit) return true;
      if (!SplitOverLimit(context, simulation.live_bytes, limit, plan)) return false;
    }
    return false;
  }

  // One way to place the launches.
  struct Placing {
    std::vector<int32_t> distances;
    std::vector<Step> order;
    Prediction figures;
  };

  // The simulator chooses how soon reductions that others follow on are waited for, and whether the
  // first gathers go before the first kernel or compute node, which hides them but holds their
  // memory longer.
  static Prediction Fit(const PassContext& context, Scheduler& scheduler, int64_t limit,
                        std::vector<int32_t>& distances, Plan& plan) {
    const auto placed = [&](std::vector<int32_t> wanted) {
      Placing placing{std::move(wanted), {}, {}};
      plan.order = scheduler.Order(placing.distances);
      placing.figures = FitMemory(context, scheduler, limit, placing.distances, plan);
      placing.order = std::move(plan.order);
      return placing;
    };
    const auto cost = [limit](const Placing& placing) {
      return std::make_pair(placing.figures.peak_bytes > limit, placing.figures.total_ps);
    };
    Placing best = placed(distances);
    if (scheduler.has_chains()) {
      int32_t chosen = Scheduler::kWholeUnits;
      for (const int32_t percent : {200, 100, 0}) {
        scheduler.HurryChains(percent);
        Placing hurried = placed(distances);
        if (cost(hurried) >= cost(best)) continue;
        best = std::move(hurried);
        chosen = percent;
      }
      scheduler.HurryChains(chosen);
    }
    for (const int32_t most : {2, 1}) {
      std::vector<int32_t> behind = distances;
      for (size_t i = 0; i < behind.size(); ++i) {
        if (scheduler.IsAtTheFront(i, behind[i])) behind[i] = scheduler.Reach(i, most);
      }
      if (behind == distances) break;
      Placing later = placed(std::move(behind));
      if (cost(later) <= cost(best)) best = std::move(later);
    }
    distances = std::move(best.distances);
    plan.order = std::move(best.order);
    return best.figures;
  }

  static int32_t Default(const PassContext& context, const Launch& launch) {
    if (!Gathers(launch.kind)) return context.options.defer_reduce_scatter;
    return launch.direction == Direction::kBackward ? context.options.prefetch_backward
                                                    : context.options.prefetch_forward;
  }

  // One a unit: -1 as the options say, else a distance.
  static absl::StatusOr<std::vector<int32_t>> OfUnits(const PassContext& context,
                                                      std::vector<Diagnostic>& diagnostics) {
    const std::string& reorder = context.options.reorder;
    if (reorder == "all") return std::vector<int32_t>(context.units.size(), -1);
    std::vector<int32_t> of_unit(context.units.size(), 0);
    if (reorder == "none") return of_unit;
    ASSIGN_OR_RETURN(std::vector<Entry> entries, ParseEntries(reorder, true));
    absl::flat_hash_map<absl::string_view, size_t> unit_of;
    std::vector<absl::string_view> names;
    for (size_t u = 0; u < context.units.size(); ++u) {
      unit_of.emplace(context.units[u].name, u);
      names.push_back(context.units[u].name);
    }
    ASSIGN_OR_RETURN(entries, ExpandWildcards(std::move(entries), names));
    if (names.size() > 12) names.resize(12);
    for (const Entry& entry : entries) {
      const auto it = unit_of.find(entry.name);
      if (it != unit_of.end()) {
        of_unit[it->second] = entry.distance;
        continue;
      }
      diagnostics.push_back(
          {"unknown-reorder-entry",
           absl::StrCat("reorder names ", entry.name,
                        ", which is no unit of this plan: ", absl::StrJoin(names, ", "),
                        names.size() < context.units.size() ? ", ..." : ""),
           {}});
    }
    return of_unit;
  }

  static Diagnostic Reduced(const PassContext& context, const Scheduler& scheduler,
                            const std::vector<int32_t>& wanted,
                            const std::vector<int32_t>& distances, const Plan& plan) {
    Diagnostic reduced;
    std::vector<std::string> lines;
    constexpr size_t kMaxListed = 20;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (distances[i] == wanted[i] || scheduler.IsAtTheFront(i, wanted[i])) continue;
      const Launch& launch = context.launches[i];
      reduced.nodes.push_back(FirstStart(context.graph, plan, launch));
      if (lines.size() == kMaxListed) continue;
      lines.push_back(absl::StrCat(context.units[Index(launch.unit)].name, " ",
                                   Name(launch.direction), " ", Name(launch.kind), " ", wanted[i],
                                   " -> ", distances[i]));
    }
    if (reduced.nodes.empty()) return reduced;
    reduced.code = "prefetch-reduced";
    reduced.text = absl::StrCat("to stay within the memory limit, ", reduced.nodes.size(),
                                " launches move less far: ", absl::StrJoin(lines, "; "),
                                reduced.nodes.size() > lines.size() ? "; ..." : "");
    return reduced;
  }
};

}  // namespace

std::unique_ptr<Pass> MakePrefetchPass() { return std::make_unique<Prefetch>(); }

}  // namespace bucketd
