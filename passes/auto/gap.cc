#include "passes/auto/gap.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/sim/simulator.h"

namespace bucketd::search {
namespace {

// Whether a stall is for a collective that the search may move.
bool IsMovable(const Problem& problem, const Plan& plan, const TimelineEvent& stall) {
  const NodeId node = stall.bucket >= 0 ? plan.buckets[Index(stall.bucket)].members[0] : stall.node;
  return problem.transfer(problem.graph->collective_of(node)).use != Use::kInline;
}

}  // namespace

Gap GapOf(const Problem& problem, const Plan& plan) {
  using Kind = TimelineEvent::Kind;
  const Simulation simulation = Simulate(*problem.graph, plan, *problem.costs, true);
  int64_t first = simulation.prediction.total_ps, last = 0;
  for (const TimelineEvent& event : simulation.events) {
    const bool kernel = event.group < 0 && event.kind != Kind::kStall;
    if (!kernel) continue;
    first = std::min(first, event.start_ps);
    last = std::max(last, event.end_ps);
  }
  Gap gap;
  gap.tail = simulation.prediction.total_ps - last;
  int64_t kernels = 0;
  for (const TimelineEvent& event : simulation.events) {
    const int64_t time = event.end_ps - event.start_ps;
    if (event.kind == Kind::kCompute) {
      kernels += time;
    } else if (event.kind != Kind::kStall) {
      if (event.group < 0 && event.kind != Kind::kCollective) gap.copies += time;
    } else if (event.start_ps < first) {
      gap.head += time;
    } else if (event.start_ps < last) {
      (IsMovable(problem, plan, event) ? gap.wire : gap.path) += time;
    }
  }
  gap.slowdown = kernels - simulation.prediction.compute_ps;
  gap.host = std::max<int64_t>(0, simulation.prediction.total_ps - kernels - gap.copies - gap.head -
                                      gap.tail - gap.wire - gap.path);
  return gap;
}

std::string GapText(const Gap& gap, int64_t total_ps, int64_t bound_ps, int64_t memory_ps) {
  const auto us = [](int64_t ps) { return static_cast<double>(ps) * 1e-6; };
  const double over = 100.0 * (us(total_ps) / std::max(us(bound_ps), 1e-6) - 1.0);
  std::string text = absl::StrFormat(
      "%.3f %% (%.3f us) above the lower bound. Besides computing, the compute stream waits %.3f "
      "us "
      "at the head and %.3f us at the tail, %.3f us for movable collectives and %.3f us for those "
      "on "
      "the critical path, copies %.3f us, is slowed down by %.3f us and waits %.3f us for the host",
      over, us(total_ps - bound_ps), us(gap.head), us(gap.tail), us(gap.wire), us(gap.path),
      us(gap.copies), us(gap.slowdown), us(gap.host));
  if (memory_ps > 0) {
    absl::StrAppendFormat(&text, "; the memory limit costs at least %.3f us", us(memory_ps));
  }
  return text;
}

}  // namespace bucketd::search
