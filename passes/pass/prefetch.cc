#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/pass/entries.h"
#include "passes/pass/fit_memory.h"
#include "passes/pass/passes.h"
#include "passes/pass/schedule.h"

namespace bucketd {
namespace {

size_t Index(int32_t i) { return static_cast<size_t>(i); }

// Issues all-gathers before the waits of earlier units, the first unit's before the first kernel,
// and waits for reductions after the starts of later ones, each as far as the options say and
// memory allows.
class Prefetch : public Pass {
 public:
  absl::string_view name() const override { return "prefetch"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (context.launches.empty()) return false;
    ASSIGN_OR_RETURN(std::vector<int32_t> distances, Distances(context, plan.diagnostics));
    ASSIGN_OR_RETURN(const Scheduler scheduler,
                     Scheduler::Make(context, plan.buckets, context.launches));
    for (size_t i = 0; i < distances.size(); ++i) {
      distances[i] = scheduler.Wanted(i, distances[i]);
    }
    const std::vector<Step> before = plan.order;
    const int64_t limit = MemoryLimit(context);
    const std::vector<int32_t> wanted = distances;
    const Prediction figures = Fit(context, scheduler, limit, distances, plan);
    Report(context, scheduler, wanted, distances, plan);
    if (figures.peak_bytes > limit) {
      const std::string text = absl::StrCat(
          "the plan needs ", figures.peak_bytes, " bytes at its peak, the limit is ", limit,
          " (program order needs ", context.program_order.peak_bytes,
          "); no launch is left that could move less far: allow more memory, or merge less");
      if (context.options.memory_limit_bytes > 0) return absl::FailedPreconditionError(text);
      plan.diagnostics.push_back({"memory-limit", text, {}});
    }
    return plan.order != before;
  }

 private:
  // Gathers before the first kernel hide under it, but what it runs with then waits for the wire
  // and shares memory with them: they go there only where that makes the step shorter.
  static Prediction Fit(const PassContext& context, const Scheduler& scheduler, int64_t limit,
                        std::vector<int32_t>& distances, Plan& plan) {
    std::vector<int32_t> behind = distances;
    for (size_t i = 0; i < behind.size(); ++i) {
      if (scheduler.IsAtTheFront(i, behind[i])) behind[i] = scheduler.Reach(i, 1);
    }
    plan.order = scheduler.Order(distances);
    const Prediction front = FitMemory(context, scheduler, limit, distances, plan);
    if (behind == distances) return front;
    std::vector<Step> front_order = std::move(plan.order);
    plan.order = scheduler.Order(behind);
    const Prediction usual = FitMemory(context, scheduler, limit, behind, plan);
    const auto cost = [limit](const Prediction& figures) {
      return std::make_pair(figures.peak_bytes > limit, figures.total_ps);
    };
    if (cost(front) < cost(usual)) {
      plan.order = std::move(front_order);
      return front;
    }
    distances = std::move(behind);
    return usual;
  }

  static int32_t Default(const PassContext& context, const Launch& launch) {
    if (launch.kind != CollectiveKind::kAllGather) return context.options.defer_reduce_scatter;
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

  static absl::StatusOr<std::vector<int32_t>> Distances(const PassContext& context,
                                                        std::vector<Diagnostic>& diagnostics) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> of_unit, OfUnits(context, diagnostics));
    std::vector<int32_t> distances;
    for (const Launch& launch : context.launches) {
      const int32_t wanted = of_unit[Index(launch.unit)];
      distances.push_back(wanted >= 0 ? wanted : Default(context, launch));
    }
    return distances;
  }

  static void Report(const PassContext& context, const Scheduler& scheduler,
                     const std::vector<int32_t>& wanted, const std::vector<int32_t>& distances,
                     Plan& plan) {
    Diagnostic reduced;
    std::vector<std::string> lines;
    constexpr size_t kMaxListed = 20;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (distances[i] == wanted[i] || scheduler.IsAtTheFront(i, wanted[i])) continue;
      const Launch& launch = context.launches[i];
      reduced.nodes.push_back(launch.bucket >= 0
                                  ? plan.buckets[Index(launch.bucket)].members[0]
                                  : context.graph.collective(launch.collective).start);
      if (lines.size() == kMaxListed) continue;
      lines.push_back(absl::StrCat(context.units[Index(launch.unit)].name, " ",
                                   Name(launch.direction), " ", Name(launch.kind), " ", wanted[i],
                                   " -> ", distances[i]));
    }
    if (reduced.nodes.empty()) return;
    reduced.code = "prefetch-reduced";
    reduced.text = absl::StrCat("to stay within the memory limit, ", reduced.nodes.size(),
                                " launches move less far: ", absl::StrJoin(lines, "; "),
                                reduced.nodes.size() > lines.size() ? "; ..." : "");
    plan.diagnostics.push_back(std::move(reduced));
  }
};

}  // namespace

std::unique_ptr<Pass> MakePrefetchPass() { return std::make_unique<Prefetch>(); }

}  // namespace bucketd
