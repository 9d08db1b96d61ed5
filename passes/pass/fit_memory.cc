#include "passes/pass/fit_memory.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/int128.h"
#include "passes/pass/numerics.h"
#include "passes/plan/storage.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

constexpr int kMaxRounds = 23;

// At most what a step takes before it gives anything back.
int64_t Allocates(const Graph& graph, const Plan& plan, const Step& step) {
  if (step.kind != Step::Kind::kNode) return plan.buckets[Index(step.id)].bytes;
  return MakesStorage(graph, step.id) ? OutputBytes(graph, step.id) : 0;
}

// Steps at which memory may be above the limit; the highest in any case.
std::vector<bool> OverLimit(const PassContext& context, const Plan& plan,
                            absl::Span<const int64_t> live, int64_t limit) {
  std::vector<bool> over(live.size());
  for (size_t i = 0; i < live.size(); ++i) {
    over[i] = MayExceed(context.graph, plan, live, i, limit);
  }
  const auto highest = std::max_element(live.begin(), live.end());
  if (highest != live.end()) over[static_cast<size_t>(highest - live.begin())] = true;
  return over;
}

struct Held {
  int32_t first, last;  // steps
};

// Where each bucket holds memory.
std::vector<Held> HeldBy(const Graph& graph, const Plan& plan) {
  std::vector<int32_t> place(Index(graph.size()), -1);
  std::vector<Held> held(plan.buckets.size());
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const Step& step = plan.order[i];
    const auto now = static_cast<int32_t>(i);
    if (step.kind == Step::Kind::kStart) held[Index(step.id)].first = now;
    if (step.kind == Step::Kind::kWait) held[Index(step.id)].last = now;
    if (step.kind == Step::Kind::kNode) place[Index(step.id)] = now;
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const NodeId member : plan.buckets[b].members) {
      const Collective& collective = graph.collective(graph.collective_of(member));
      if (!Gathers(collective.kind)) {
        for (const NodeId x : graph.inputs(member)) {
          if (place[Index(x)] >= 0) held[b].first = std::min(held[b].first, place[Index(x)]);
        }
        continue;
      }
      for (const NodeId user : graph.users(collective.wait)) {
        held[b].last = std::max(held[b].last, place[Index(user)]);
      }
    }
  }
  return held;
}

// The largest bucket at each marked step, the first of equals.
std::vector<bool> LargestAt(const Plan& plan, const std::vector<Held>& held,
                            const std::vector<bool>& marked) {
  std::vector<std::vector<BucketId>> begins(marked.size()), ends(marked.size() + 1);
  for (size_t b = 0; b < held.size(); ++b) {
    begins[Index(held[b].first)].push_back(static_cast<BucketId>(b));
    ends[Index(held[b].last) + 1].push_back(static_cast<BucketId>(b));
  }
  std::set<std::pair<int64_t, BucketId>> across;  // by size, largest first
  std::vector<bool> largest(held.size());
  for (size_t step = 0; step < marked.size(); ++step) {
    for (const BucketId b : begins[step]) across.emplace(-plan.buckets[Index(b)].bytes, b);
    for (const BucketId b : ends[step]) across.erase({-plan.buckets[Index(b)].bytes, b});
    if (marked[step] && !across.empty()) largest[Index(across.begin()->second)] = true;
  }
  return largest;
}

}  // namespace

bool MayExceed(const Graph& graph, const Plan& plan, absl::Span<const int64_t> live, size_t step,
               int64_t limit) {
  const int64_t before = step == 0 ? 0 : live[step - 1];
  return live[step] > limit || before + Allocates(graph, plan, plan.order[step]) > limit;
}

int64_t MemoryLimit(const PassContext& context) {
  const int64_t resident = context.options.resident_bytes;
  if (context.options.memory_limit_bytes > 0) return context.options.memory_limit_bytes - resident;
  const int64_t peak = context.program_order.peak_bytes + resident;
  return PartsPerMillion(peak, context.options.memory_limit_ppm) - resident;
}

absl::Status CheckMemory(const PassContext& context, int64_t peak, absl::string_view refusal,
                         Plan& plan) {
  const int64_t limit = MemoryLimit(context);
  if (peak <= limit) return absl::OkStatus();
  std::string text = absl::Substitute(refusal, peak, limit, context.program_order.peak_bytes);
  if (context.options.memory_limit_bytes > 0) return absl::FailedPreconditionError(text);
  plan.diagnostics.push_back({"memory-limit", std::move(text), {}});
  return absl::OkStatus();
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

bool SplitOverLimit(PassContext& context, absl::Span<const int64_t> live, int64_t limit,
                    Plan& plan) {
  const Graph& graph = context.graph;
  const std::vector<bool> split =
      LargestAt(plan, HeldBy(graph, plan), OverLimit(context, plan, live, limit));
  if (std::find(split.begin(), split.end(), true) == split.end()) return false;
  std::vector<Bucket> buckets;
  std::vector<Launch> launches, singles;
  for (const Launch& launch : context.launches) {
    Launch part = launch;
    if (launch.bucket < 0) {
      singles.push_back(launch);
      continue;
    }
    Bucket& whole = plan.buckets[Index(launch.bucket)];
    const size_t parts = split[Index(launch.bucket)] ? 2 : 1;
    const size_t half = (whole.members.size() + parts - 1) / parts;
    for (size_t p = 0; p < parts; ++p) {
      Bucket bucket = whole;
      const auto begin = whole.members.begin() + static_cast<int64_t>(p * half);
      bucket.members.assign(
          begin, p + 1 == parts ? whole.members.end() : begin + static_cast<int64_t>(half));
      if (bucket.members.size() == 1) {
        part.bucket = -1;
        part.collective = graph.collective_of(bucket.members[0]);
        singles.push_back(part);
        continue;
      }
      if (parts > 1) {
        absl::StrAppend(&bucket.name, "/", p + 1);
        bucket.mode = ModeOf(graph, bucket.members, context.options);
        LayOut(graph, bucket);
      }
      part.bucket = static_cast<BucketId>(buckets.size());
      part.collective = -1;
      buckets.push_back(std::move(bucket));
      launches.push_back(part);
    }
  }
  launches.insert(launches.end(), singles.begin(), singles.end());
  plan.buckets = std::move(buckets);
  context.launches = std::move(launches);
  return true;
}

}  // namespace bucketd
