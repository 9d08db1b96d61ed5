#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "passes/base/int128.h"
#include "passes/base/status_macros.h"
#include "passes/pass/compute_run.h"
#include "passes/pass/fit_memory.h"
#include "passes/pass/overlap/overlap_policy.h"
#include "passes/pass/overlap/overlap_scheduler.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace overlap {
namespace {

// Runs with less and less room before the scheduler gives up on a memory limit.
constexpr int kMaxTighterRuns = 6;

// What memory may grow by while scheduling.
int64_t MaxIncrease(const PlanOptions& options, const OverlapPolicy& policy, int64_t peak) {
  const bool has_bytes = options.max_memory_increase_bytes != kNoLimit;
  const bool has_share = options.max_memory_increase_ppm != kNoLimit;
  if (!has_bytes && !has_share) return PrefetchBudget::kUnlimited;
  const int64_t share = has_share ? PartsPerMillion(peak, options.max_memory_increase_ppm) : 0;
  if (!has_bytes) return share;
  if (!has_share) return options.max_memory_increase_bytes;
  if (policy.larger_increase || options.memory_rule == MemoryRule::kMax) {
    return std::max(share, options.max_memory_increase_bytes);
  }
  return std::min(share, options.max_memory_increase_bytes);
}

int64_t Above(int64_t peak, int64_t increase) {
  return increase >= PrefetchBudget::kUnlimited - peak ? PrefetchBudget::kUnlimited
                                                       : peak + increase;
}

// Placeholders first, as they came, or `in_place`; then the schedule; the output last.
std::vector<Step> StepsOf(const OverlapGraph& graph, const Schedule& schedule,
                          const std::vector<Step>& before, bool in_place) {
  std::vector<Step> steps;
  steps.reserve(before.size());
  Step output;
  for (Position v = 0; v < graph.size(); ++v) {
    const bool input = graph.kind(v) == StepKind::kPlaceholder;
    if (input && !in_place) steps.push_back(before[Index(v)]);
    if (graph.kind(v) == StepKind::kOutput) output = before[Index(v)];
  }
  for (const Position v : schedule.order) {
    const bool input = graph.kind(v) == StepKind::kPlaceholder;
    if ((input && !in_place) || graph.kind(v) == StepKind::kOutput) continue;
    steps.push_back(before[Index(v)]);
  }
  steps.push_back(output);
  return steps;
}

std::vector<LaunchOverlap> OverlapOf(const OverlapGraph& graph, const Schedule& schedule) {
  std::vector<int32_t> place(Index(graph.size()));
  for (size_t i = 0; i < schedule.order.size(); ++i) {
    place[Index(schedule.order[i])] = static_cast<int32_t>(i);
  }
  std::vector<LaunchOverlap> overlaps;
  for (size_t l = 0; l < graph.launches().size(); ++l) {
    const LaunchSpan& launch = graph.launches()[l];
    LaunchOverlap overlap;
    overlap.bucket = launch.bucket;
    if (launch.bucket < 0) overlap.collective = launch.collective;
    overlap.est_ps = launch.est_ps;
    overlap.exposed_ps = schedule.exposed_ps[l];
    std::vector<Position> by = schedule.hidden_by[l];
    std::sort(by.begin(), by.end(),
              [&](Position a, Position b) { return place[Index(a)] < place[Index(b)]; });
    for (const Position v : by) {
      overlap.hidden_by.push_back(graph.nodes(v).front());
    }
    overlaps.push_back(std::move(overlap));
  }
  return overlaps;
}

// Reorders everything so that compute hides communication. Where the result needs more memory than
// the plan may, it runs again with less room.
class ScheduleOverlap : public Pass {
 public:
  explicit ScheduleOverlap(MakeOverlapPolicy upstream) : upstream_(upstream) {}

  absl::string_view name() const override { return "schedule-overlap"; }
  bool needs_tags() const override { return true; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    OverlapPolicy policy;
    if (context.options.upstream) {
      ASSIGN_OR_RETURN(policy, upstream_(context.options));
    }
    const OverlapGraph graph(context, policy, plan);
    if (graph.launches().empty()) return false;
    const StorageUses uses(context.graph, graph, !policy.inputs_live_until_wait);
    const MemoryBaseline baseline(graph, uses);
    Best best = Search(context, policy, graph, uses, baseline, plan);
    RETURN_IF_ERROR(CheckMemory(
        context, best.peak,
        "the schedule needs $0 bytes at its peak, the limit is $1 (program order needs $2), and "
        "none with less overlap needs less: allow more memory, or merge less",
        plan));
    if (best.runs > 1) {
      plan.diagnostics.push_back(
          {"overlap-reduced",
           absl::StrCat(
               "to stay within the memory limit, run ", best.runs, " of the scheduler counts: ",
               best.limits.prefetch ? absl::StrCat(best.limits.allowed_bytes - baseline.peak,
                                                   " bytes over program order's")
                                    : "nothing is started early"),
           {}});
    }
    Diagnostic summary = Summary(graph, baseline, best.schedule);
    const auto compute_run = [&](const std::vector<Step>& order) {
      return MaxComputeBetweenReduceScatters(context.graph, plan.buckets, order);
    };
    absl::StrAppend(&summary.text, "; most compute between reduce-scatters ",
                    compute_run(plan.order), " -> ", compute_run(best.steps));
    plan.diagnostics.push_back(std::move(summary));
    context.overlap = OverlapOf(graph, best.schedule);
    const bool changed = best.steps != plan.order;
    plan.order = std::move(best.steps);
    return changed;
  }

 private:
  struct Best {
    Schedule schedule;
    Limits limits;
    std::vector<Step> steps;
    int64_t peak = std::numeric_limits<int64_t>::max();
    int runs = 0;
  };

  static Best Search(const PassContext& context, const OverlapPolicy& policy,
                     const OverlapGraph& graph, const StorageUses& uses,
                     const MemoryBaseline& baseline, const Plan& before) {
    const PlanOptions& options = context.options;
    int64_t increase = MaxIncrease(options, policy, baseline.peak);
    Limits limits;
    limits.max_off_path_bytes = options.max_off_path_bytes;
    const int64_t limit = MemoryLimit(context);
    // Only the order differs.
    Plan plan;
    plan.buckets = before.buckets;
    Best best;
    for (int run = 1;; ++run) {
      limits.allowed_bytes = Above(baseline.peak, increase);
      Schedule schedule = OverlapScheduler(graph, uses, baseline, options, policy, limits).Run();
      plan.order = StepsOf(graph, schedule, before.order, policy.placeholders_in_place);
      const int64_t peak = Simulate(context.graph, plan, context.costs).prediction.peak_bytes;
      if (peak < best.peak) {
        best = {std::move(schedule), limits, plan.order, peak, run};
      }
      if (peak <= limit || !policy.keeps_to_memory || !limits.prefetch) break;
      increase = Tighter(increase, limit - context.program_order.peak_bytes, peak - limit);
      limits.max_off_path_bytes /= 4;
      limits.prefetch = run < kMaxTighterRuns;
      if (!limits.prefetch) limits.max_off_path_bytes = 0;
    }
    if (best.peak <= limit || !policy.keeps_to_memory) return best;
    plan.order = before.order;
    const int64_t peak = Simulate(context.graph, plan, context.costs).prediction.peak_bytes;
    if (peak < best.peak) best = {Unmoved(graph), limits, before.order, peak, best.runs + 1};
    return best;
  }

  // Less by what was too much, at most half.
  static int64_t Tighter(int64_t increase, int64_t room, int64_t over) {
    const int64_t most = std::min(increase, std::max<int64_t>(0, room) * 2);
    return std::min(most - over, most / 2);
  }

  static Schedule Unmoved(const OverlapGraph& graph) {
    Schedule schedule;
    schedule.order.resize(Index(graph.size()));
    for (Position v = 0; v < graph.size(); ++v) schedule.order[Index(v)] = v;
    for (const LaunchSpan& launch : graph.launches()) schedule.exposed_ps.push_back(launch.est_ps);
    schedule.hidden_by.resize(graph.launches().size());
    return schedule;
  }

  // A launch counts as one that could be hidden if a compute node stands between all compute that
  // it needs and all that needs it: no search is made for others.
  static Diagnostic Summary(const OverlapGraph& graph, const MemoryBaseline& baseline,
                            const Schedule& schedule) {
    const absl::Span<const Position> compute = graph.compute();
    int32_t exposed = 0, hideable = 0;
    int64_t exposed_ps = 0, hideable_ps = 0, est_ps = 0;
    for (size_t l = 0; l < graph.launches().size(); ++l) {
      const LaunchSpan& launch = graph.launches()[l];
      const int64_t left = schedule.exposed_ps[l];
      // By number: behind all compute that it needs, and before the first that needs it.
      const auto from =
          std::upper_bound(compute.begin(), compute.end(), graph.last_compute(launch.start)) -
          compute.begin();
      const int32_t to = std::min(graph.first_compute(launch.start), graph.compute_count());
      if (left == launch.est_ps) ++exposed;
      if (left == launch.est_ps && from < to) ++hideable;
      if (from < to) hideable_ps += left;
      exposed_ps += left;
      est_ps += launch.est_ps;
    }
    return {"overlap-summary",
            absl::StrCat(
                exposed, " of ", graph.launches().size(), " collectives are not hidden at all, ",
                hideable, " of them could be; exposed ", exposed_ps / 1'000'000, " us of ",
                est_ps / 1'000'000, ", of which ", hideable_ps / 1'000'000, " could be hidden; ",
                schedule.wasted_ps / 1'000'000, " us of compute hid nothing; tracked memory ",
                baseline.peak, " -> ", schedule.peak_bytes, " bytes"),
            {}};
  }

  const MakeOverlapPolicy upstream_;
};

}  // namespace
}  // namespace overlap

std::unique_ptr<Pass> MakeScheduleOverlapPass(MakeOverlapPolicy upstream) {
  return std::make_unique<overlap::ScheduleOverlap>(upstream);
}

}  // namespace bucketd
