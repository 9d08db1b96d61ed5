#include "passes/pass/fit_memory.h"

#include <algorithm>
#include <set>
#include <utility>

#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

constexpr int kMaxRounds = 23;

size_t Index(int32_t i) { return static_cast<size_t>(i); }

// At most what a step takes before it gives anything back.
int64_t Allocates(const Graph& graph, const Plan& plan, const Step& step) {
  if (step.kind != Step::Kind::kNode) return plan.buckets[Index(step.id)].bytes;
  if (!graph.alias_of(step.id).empty()) return 0;
  int64_t bytes = 0;
  for (const TensorType& tensor : graph.outputs(step.id)) bytes += tensor.bytes;
  return bytes;
}

// Steps at which memory may be above the limit; the highest in any case.
std::vector<bool> OverLimit(const PassContext& context, const Plan& plan,
                            const std::vector<int64_t>& live, int64_t limit) {
  std::vector<bool> over(live.size());
  for (size_t i = 0; i < live.size(); ++i) {
    const int64_t before = i == 0 ? 0 : live[i - 1];
    over[i] = live[i] > limit || before + Allocates(context.graph, plan, plan.order[i]) > limit;
  }
  const auto highest = std::max_element(live.begin(), live.end());
  if (highest != live.end()) over[static_cast<size_t>(highest - live.begin())] = true;
  return over;
}

}  // namespace

int64_t MemoryLimit(const PassContext& context) {
  const int64_t resident = context.options.resident_bytes;
  if (context.options.memory_limit_bytes > 0) return context.options.memory_limit_bytes - resident;
  // peak * ppm / 10^6 without overflow.
  const int64_t ppm = context.options.memory_limit_ppm;
  const int64_t peak = context.program_order.peak_bytes + resident;
  return peak / 1'000'000 * ppm + peak % 1'000'000 * ppm / 1'000'000 - resident;
}

bool TakeFromFarthest(absl::Span<const Scheduler::Window> windows, const std::vector<bool>& marked,
                      std::vector<int32_t>& distances) {
  // (step, launch): launches that begin to reach, and that have ceased to.
  std::vector<std::pair<int32_t, size_t>> begins, ends;
  for (size_t i = 0; i < distances.size(); ++i) {
    if (distances[i] == 0 || windows[i].last < windows[i].first) continue;
    begins.emplace_back(windows[i].first, i);
    ends.emplace_back(windows[i].last, i);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  std::set<std::pair<int32_t, size_t>> across, spared;  // by distance
  std::vector<size_t> taken;
  auto begin = begins.begin();
  auto end = ends.begin();
  for (size_t step = 0; step < marked.size(); ++step) {
    const auto now = static_cast<int32_t>(step);
    for (; begin != begins.end() && begin->first <= now; ++begin) {
      across.emplace(distances[begin->second], begin->second);
      spared.emplace(distances[begin->second], begin->second);
    }
    for (; end != ends.end() && end->first < now; ++end) {
      across.erase({distances[end->second], end->second});
      spared.erase({distances[end->second], end->second});
    }
    if (!marked[step] || across.empty()) continue;
    const int32_t farthest = across.rbegin()->first;
    while (!spared.empty() && spared.rbegin()->first == farthest) {
      taken.push_back(spared.rbegin()->second);
      spared.erase(std::prev(spared.end()));
    }
  }
  for (const size_t launch : taken) distances[launch] -= std::max(1, distances[launch] / 4);
  return !taken.empty();
}

Prediction FitMemory(const PassContext& context, const Scheduler& scheduler, int64_t limit,
                     std::vector<int32_t>& distances, Plan& plan) {
  for (int round = 0;; ++round) {
    const Simulation simulation = Simulate(context.graph, plan, context.costs, true);
    const Prediction& figures = simulation.prediction;
    if (figures.peak_bytes <= limit || round == kMaxRounds) return figures;
    if (round == kMaxRounds - 1) {
      std::fill(distances.begin(), distances.end(), 0);
    } else if (!TakeFromFarthest(scheduler.Windows(plan.order, distances),
                                 OverLimit(context, plan, simulation.live_bytes, limit),
                                 distances)) {
      return figures;
    }
    plan.order = scheduler.Order(distances);
  }
}

}  // namespace bucketd
