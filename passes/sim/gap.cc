#include "passes/sim/gap.h"

#include <algorithm>
#include <vector>

#include "passes/base/index.h"
#include "passes/sim/model.h"

namespace bucketd {
namespace {

using internal::BucketCosts;
using Kind = TimelineEvent::Kind;

// What a timeline consists of besides compute at full speed.
struct Waits {
  int64_t head = 0, tail = 0, path = 0, slowdown = 0;
};

class Reader {
 public:
  Reader(const Graph& graph, const Plan& plan, const Simulation& simulation)
      : graph_(graph),
        plan_(plan),
        simulation_(simulation),
        computed_(Index(graph.size()), 0),
        wire_(graph.collectives().size()) {}

  Waits Read() {
    FindWires();
    FindComputed();
    int64_t first = simulation_.prediction.total_ps, last = 0, kernels = 0;
    for (const TimelineEvent& event : simulation_.events) {
      if (event.kind != Kind::kCompute) continue;
      first = std::min(first, event.start_ps);
      last = std::max(last, event.end_ps);
      kernels += event.end_ps - event.start_ps;
    }
    Waits waits;
    if (kernels == 0) return waits;
    waits.head = first;
    waits.tail = simulation_.prediction.total_ps - last;
    waits.slowdown = kernels - simulation_.prediction.compute_ps;
    for (const TimelineEvent& event : simulation_.events) {
      if (event.kind != Kind::kStall || event.start_ps < first || event.start_ps >= last) continue;
      waits.path += std::max<int64_t>(0, event.end_ps - event.start_ps - Late(event));
    }
    return waits;
  }

 private:
  // When each collective, by itself or in its bucket, was on the wire.
  void FindWires() {
    for (const TimelineEvent& event : simulation_.events) {
      if (event.kind != Kind::kCollective || event.bucket >= 0) continue;
      wire_[Index(graph_.collective_of(event.node))] = {event.start_ps, event.end_ps};
    }
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      for (const NodeId member : plan_.buckets[b].members) {
        wire_[Index(graph_.collective_of(member))] = simulation_.bucket_wire[b];
      }
    }
  }

  // When each node's result was there.
  void FindComputed() {
    for (const TimelineEvent& event : simulation_.events) {
      if (event.kind == Kind::kCompute) computed_[Index(event.node)] = event.end_ps;
    }
    for (NodeId n = 0; n < graph_.size(); ++n) {
      int64_t& computed = computed_[Index(n)];
      if (graph_.kind(n) == NodeKind::kWait) {
        computed = wire_[Index(graph_.collective_of(n))].end_ps;
      }
      for (const NodeId x : graph_.inputs(n)) computed = std::max(computed, computed_[Index(x)]);
    }
  }

  // How long after all that it reads was there the collective of a stall began.
  int64_t Late(const TimelineEvent& stall) const {
    const std::vector<NodeId> members =
        stall.bucket >= 0
            ? plan_.buckets[Index(stall.bucket)].members
            : std::vector<NodeId>{graph_.collective(graph_.collective_of(stall.node)).start};
    int64_t ready = 0;
    for (const NodeId member : members) {
      for (const NodeId x : graph_.inputs(member)) ready = std::max(ready, computed_[Index(x)]);
    }
    return std::max<int64_t>(0,
                             wire_[Index(graph_.collective_of(members.front()))].start_ps - ready);
  }

  const Graph& graph_;
  const Plan& plan_;
  const Simulation& simulation_;
  std::vector<int64_t> computed_;  // of a node
  std::vector<WireTime> wire_;     // of a collective
};

}  // namespace

std::array<std::pair<absl::string_view, int64_t>, 7> Gap::Causes() const {
  std::array<std::pair<absl::string_view, int64_t>, 7> causes = {{{"memory", memory},
                                                                  {"copies", copies},
                                                                  {"host", host},
                                                                  {"head", head},
                                                                  {"tail", tail},
                                                                  {"critical_path", path},
                                                                  {"wire", wire}}};
  std::stable_sort(causes.begin(), causes.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return causes;
}

Gap GapOf(const Graph& graph, const Plan& plan, const Costs& costs, const SharpBound& bound,
          int64_t fastest_ps) {
  std::vector<BucketCosts> buckets = internal::BucketCostsOf(graph, plan, costs);
  internal::ClockRates rates = internal::RatesOf(costs);
  const auto run = [&] {
    return internal::RunTimeline(graph, plan, costs, buckets, rates, /*with_timeline=*/true);
  };
  Simulation simulation = run();
  const int64_t total_ps = simulation.prediction.total_ps;
  Gap gap;
  gap.total = std::max<int64_t>(0, total_ps - bound.total_ps);
  int64_t rest = gap.total;
  const auto take = [&rest](int64_t ps, int64_t& cause) {
    cause = std::clamp<int64_t>(ps, 0, rest);
    rest -= cause;
  };
  take(total_ps - fastest_ps, gap.memory);
  if (simulation.prediction.copies_ps > 0) {
    for (BucketCosts& b : buckets) b.copy_in_ps = b.copy_out_ps = 0;
    simulation = run();
    take(total_ps - simulation.prediction.total_ps, gap.copies);
  }
  SharpBound least = bound;
  if (rates.host_ps_per_kernel > 0 || rates.host_ps_per_collective > 0) {
    const int64_t launched_ps = simulation.prediction.total_ps;
    rates.host_ps_per_kernel = rates.host_ps_per_collective = 0;
    simulation = run();
    least = SharpBoundOf(graph, costs, /*free_launches=*/true);
    take(launched_ps - simulation.prediction.total_ps - (bound.total_ps - least.total_ps),
         gap.host);
  }
  const Waits waits = Reader(graph, plan, simulation).Read();
  take(waits.head - least.head_ps, gap.head);
  take(waits.tail - least.tail_ps, gap.tail);
  const int64_t known = least.total_ps - simulation.prediction.compute_ps - least.head_ps -
                        least.tail_ps - waits.slowdown;
  take(waits.path - std::max<int64_t>(0, known), gap.path);
  gap.wire = rest;
  return gap;
}

}  // namespace bucketd
