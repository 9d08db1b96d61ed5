#include <algorithm>
#include <utility>
#include <vector>

#include "passes/base/index.h"
#include "passes/sim/model.h"

namespace bucketd::internal {
namespace {

class Timeline {
 public:
  Timeline(const Graph& graph, const Plan& plan, const Costs& costs,
           const std::vector<BucketCosts>& buckets, const ClockRates& rates, bool with_events)
      : graph_(graph),
        plan_(plan),
        costs_(costs),
        buckets_(buckets),
        with_events_(with_events),
        group_total_(graph.groups().size(), 0),
        ends_(graph.collectives().size(), 0) {
    result_.bucket_wire.resize(plan.buckets.size());
    clock_.Reset(graph.groups().size(), rates);
  }

  Simulation Run() && {
    for (const Step& step : plan_.order) {
      if (step.kind == Step::Kind::kNode) RunNode(step.id);
      if (step.kind == Step::Kind::kStart) StartBucket(step.id);
      if (step.kind == Step::Kind::kWait) WaitBucket(step.id);
      if (with_events_) result_.step_compute_ps.push_back(clock_.now_ps());
    }
    Prediction& p = result_.prediction;
    p.total_ps = clock_.end_ps();
    p.exposed_ps += p.total_ps - clock_.now_ps();
    for (const int64_t total : group_total_) {
      p.busiest_group_ps = std::max(p.busiest_group_ps, total);
    }
    return std::move(result_);
  }

 private:
  using Kind = TimelineEvent::Kind;

  void Event(Kind kind, NodeId node, BucketId bucket, GroupId group, int64_t start, int64_t end) {
    if (with_events_ && end > start) {
      result_.events.push_back({kind, node, bucket, group, start, end});
    }
  }

  // A kernel on the compute stream.
  void RunKernel(Kind kind, NodeId node, BucketId bucket, int64_t work) {
    const int64_t start = clock_.Kernel(work);
    Event(kind, node, bucket, -1, start, clock_.now_ps());
  }

  WireTime RunCollective(const LaunchWork& work) {
    group_total_[Index(work.group)] += work.slot_ps;
    result_.prediction.comm_ps += work.slot_ps;
    ++result_.prediction.collectives;
    return clock_.Launch(work);
  }

  void WaitUntil(int64_t end, NodeId node, BucketId bucket) {
    if (end <= clock_.now_ps()) return;
    Event(Kind::kStall, node, bucket, -1, clock_.now_ps(), end);
    result_.prediction.exposed_ps += end - clock_.now_ps();
    clock_.WaitUntil(end);
  }

  void RunNode(NodeId n) {
    const CollectiveId c = graph_.collective_of(n);
    if (graph_.kind(n) == NodeKind::kCollective) {
      LaunchWork work;
      work.group = graph_.collective(c).group;
      work.slot_ps = costs_.node_ps(n);
      const WireTime wire = RunCollective(work);
      ends_[Index(c)] = wire.end_ps;
      Event(Kind::kCollective, n, -1, work.group, wire.start_ps, wire.end_ps);
    } else if (graph_.kind(n) == NodeKind::kWait) {
      WaitUntil(ends_[Index(c)], n, -1);
    } else if (costs_.node_ps(n) > 0) {
      RunKernel(Kind::kCompute, n, -1, costs_.node_ps(n));
      result_.prediction.compute_ps += costs_.node_ps(n);
    }
  }

  void StartBucket(BucketId k) {
    const BucketCosts& b = buckets_[Index(k)];
    const LaunchWork work = WorkOf(b, costs_);
    if (work.copy_in_ps > 0) RunKernel(Kind::kCopyIn, kNoNode, k, work.copy_in_ps);
    if (b.copies_on_compute) result_.prediction.copies_ps += b.copy_in_ps;
    if (b.copies_on_comm) result_.prediction.copies_ps += b.copy_in_ps + b.copy_out_ps;
    const WireTime wire = RunCollective(work);
    result_.bucket_wire[Index(k)] = wire;
    const int64_t begin = wire.start_ps + (b.copies_on_comm ? b.copy_in_ps : 0);
    Event(Kind::kCopyIn, kNoNode, k, b.group, wire.start_ps, begin);
    Event(Kind::kCollective, kNoNode, k, b.group, begin, begin + b.collective_ps);
    Event(Kind::kCopyOut, kNoNode, k, b.group, begin + b.collective_ps, wire.end_ps);
  }

  void WaitBucket(BucketId k) {
    const BucketCosts& b = buckets_[Index(k)];
    WaitUntil(result_.bucket_wire[Index(k)].end_ps, kNoNode, k);
    if (b.copies_on_compute && b.copy_out_ps > 0) {
      RunKernel(Kind::kCopyOut, kNoNode, k, b.copy_out_ps);
      result_.prediction.copies_ps += b.copy_out_ps;
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Costs& costs_;
  const std::vector<BucketCosts>& buckets_;
  const bool with_events_;
  Simulation result_;
  std::vector<int64_t> group_total_;  // one a group
  std::vector<int64_t> ends_;         // one a collective
  StreamClock clock_;
};

}  // namespace

Simulation RunTimeline(const Graph& graph, const Plan& plan, const Costs& costs,
                       const std::vector<BucketCosts>& buckets, const ClockRates& rates,
                       bool with_timeline) {
  return Timeline(graph, plan, costs, buckets, rates, with_timeline).Run();
}

}  // namespace bucketd::internal
