#include <algorithm>
#include <limits>
#include <vector>

#include "passes/base/collectives.h"
#include "passes/base/int128.h"
#include "passes/sim/busy_time.h"
#include "passes/sim/model.h"

namespace bucketd::internal {
namespace {

class Timeline {
 public:
  Timeline(const Graph& graph, const Plan& plan, const Costs& costs,
           const std::vector<BucketCosts>& buckets, bool with_events, Launches launches,
           Simulation& result)
      : graph_(graph),
        plan_(plan),
        costs_(costs),
        buckets_(buckets),
        with_events_(with_events),
        kernel_launch_(launches == Launches::kCost ? costs.host_ps_per_kernel() : 0),
        collective_launch_(launches == Launches::kCost ? costs.host_ps_per_collective() : 0),
        result_(result),
        stream_free_(graph.groups().size(), 0),
        group_total_(graph.groups().size(), 0),
        ends_(graph.collectives().size(), 0) {
    result_.bucket_wire.assign(plan.buckets.size(), WireTime{});
  }

  void Run() {
    for (const Step& step : plan_.order) {
      Visit(step, *this);
      if (with_events_) result_.step_compute_ps.push_back(now_);
    }
    Prediction& p = result_.prediction;
    p.total_ps = now_;
    for (const int64_t free : stream_free_) p.total_ps = std::max(p.total_ps, free);
    p.exposed_ps += p.total_ps - now_;
    for (const int64_t total : group_total_) {
      p.busiest_group_ps = std::max(p.busiest_group_ps, total);
    }
  }

 private:
  friend void internal::Visit<>(const Step& step, Timeline& walk);
  using Kind = TimelineEvent::Kind;

  void Event(Kind kind, NodeId node, BucketId bucket, GroupId group, int64_t start, int64_t end) {
    if (with_events_ && end > start) {
      result_.events.push_back({kind, node, bucket, group, start, end});
    }
  }

  // A kernel on the compute stream.
  void RunKernel(Kind kind, NodeId node, BucketId bucket, int64_t work) {
    host_ += kernel_launch_;
    const int64_t start = std::max(now_, host_);
    now_ = busy_.Finish(start, work, costs_.overlap_slowdown_ppb());
    Event(kind, node, bucket, -1, start, now_);
  }

  WireTime RunCollective(GroupId group, int64_t ps, int64_t charged_to_compute) {
    const size_t g = static_cast<size_t>(group);
    WireTime wire;
    wire.start_ps = std::max({stream_free_[g], now_, host_});
    wire.end_ps = wire.start_ps + ps;
    if (charged_to_compute > 0) {
      now_ = busy_.Finish(std::max(now_, host_), charged_to_compute, costs_.overlap_slowdown_ppb());
    }
    stream_free_[g] = wire.end_ps;
    group_total_[g] += ps;
    busy_.Add(wire.start_ps, wire.end_ps);
    result_.prediction.comm_ps += ps;
    ++result_.prediction.collectives;
    return wire;
  }

  void WaitUntil(int64_t end, NodeId node, BucketId bucket) {
    if (end <= now_) return;
    Event(Kind::kStall, node, bucket, -1, now_, end);
    result_.prediction.exposed_ps += end - now_;
    now_ = end;
  }

  void RunNode(NodeId n) {
    const CollectiveId c = graph_.collective_of(n);
    if (graph_.kind(n) == NodeKind::kCollective) {
      host_ += collective_launch_;
      const GroupId group = graph_.collective(c).group;
      const WireTime wire = RunCollective(group, costs_.node_ps(n), 0);
      ends_[static_cast<size_t>(c)] = wire.end_ps;
      Event(Kind::kCollective, n, -1, group, wire.start_ps, wire.end_ps);
    } else if (graph_.kind(n) == NodeKind::kWait) {
      WaitUntil(ends_[static_cast<size_t>(c)], n, -1);
    } else if (costs_.node_ps(n) > 0) {
      RunKernel(Kind::kCompute, n, -1, costs_.node_ps(n));
      result_.prediction.compute_ps += costs_.node_ps(n);
    }
  }

  void StartBucket(BucketId k) {
    const BucketCosts& b = buckets_[static_cast<size_t>(k)];
    const int64_t copies = b.copy_in_ps + b.copy_out_ps;
    int64_t slot = b.collective_ps;
    int64_t charged = 0;
    if (b.copies_on_compute && b.copy_in_ps > 0) {
      RunKernel(Kind::kCopyIn, kNoNode, k, b.copy_in_ps);
      result_.prediction.copies_ps += b.copy_in_ps;
    }
    host_ += collective_launch_;
    if (b.copies_on_comm) {
      // These copies take memory bandwidth from compute: that share of them is charged to it.
      host_ += (Gathers(b.kind) ? 2 : 1) * kernel_launch_;
      slot += copies;
      charged = static_cast<int64_t>(
          (Int128{copies} * costs_.comm_copy_share_ppb() + kBillion / 2) / kBillion);
      result_.prediction.copies_ps += copies;
    }
    const WireTime wire = RunCollective(b.group, slot, charged);
    result_.bucket_wire[static_cast<size_t>(k)] = wire;
    const int64_t begin = wire.start_ps + (b.copies_on_comm ? b.copy_in_ps : 0);
    Event(Kind::kCopyIn, kNoNode, k, b.group, wire.start_ps, begin);
    Event(Kind::kCollective, kNoNode, k, b.group, begin, begin + b.collective_ps);
    Event(Kind::kCopyOut, kNoNode, k, b.group, begin + b.collective_ps, wire.end_ps);
  }

  void WaitBucket(BucketId k) {
    const BucketCosts& b = buckets_[static_cast<size_t>(k)];
    WaitUntil(result_.bucket_wire[static_cast<size_t>(k)].end_ps, kNoNode, k);
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
  const int64_t kernel_launch_, collective_launch_;  // host time
  Simulation& result_;
  int64_t now_ = 0, host_ = 0;  // clocks of the compute stream and of the launching host
  std::vector<int64_t> stream_free_, group_total_;  // one a group
  std::vector<int64_t> ends_;                       // one a collective
  BusyTime busy_;
};

}  // namespace

void RunTimeline(const Graph& graph, const Plan& plan, const Costs& costs,
                 const std::vector<BucketCosts>& buckets, bool with_timeline, Launches launches,
                 Simulation& result) {
  Timeline(graph, plan, costs, buckets, with_timeline, launches, result).Run();
}

}  // namespace bucketd::internal
