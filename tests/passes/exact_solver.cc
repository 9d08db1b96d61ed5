#include "tests/passes/exact_solver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "passes/base/index.h"
#include "passes/sim/busy_time.h"
#include "passes/sim/model.h"

namespace bucketd::testing {
namespace {

using internal::BucketCosts;
using internal::BusyTime;

// The simulator's clocks at one place of an order.
struct Clocks {
  int64_t now = 0, host = 0;
  std::vector<int64_t> stream_free, end;  // of a group; of a block
  BusyTime busy;
};

// Collectives that are launched as one.
struct Block {
  std::vector<CollectiveId> members;
  Bucket bucket;  // of two members or more
  BucketCosts costs;
};

class Solver {
 public:
  Solver(const Graph& graph, const Costs& costs, int64_t best_known, int64_t steps)
      : graph_(graph), costs_(costs), steps_(steps) {
    best_.total_ps = best_known;
  }

  std::optional<Optimum> Run() {
    Partition(0);
    if (steps_ <= 0) return std::nullopt;
    return std::move(best_);
  }

 private:
  bool MayJoin(CollectiveId a, CollectiveId b) const {
    const Collective &x = graph_.collective(a), &y = graph_.collective(b);
    return x.wait != kNoNode && y.wait != kNoNode && x.kind == y.kind && x.group == y.group &&
           x.reduce_op == y.reduce_op && x.dtype == y.dtype &&
           x.kind != CollectiveKind::kAllToAll && x.kind != CollectiveKind::kBroadcast;
  }

  void Partition(CollectiveId c) {
    if (Index(c) == graph_.collectives().size()) {
      Forms(0);
      return;
    }
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (!MayJoin(blocks_[b].members.front(), c)) continue;
      blocks_[b].members.push_back(c);
      Partition(c + 1);
      blocks_[b].members.pop_back();
    }
    blocks_.push_back({{c}, {}, {}});
    Partition(c + 1);
    blocks_.pop_back();
  }

  void Forms(size_t b) {
    if (b == blocks_.size()) {
      Orders();
      return;
    }
    Block& block = blocks_[b];
    if (block.members.size() == 1) {
      block.costs = {};
      block.costs.group = graph_.collective(block.members[0]).group;
      block.costs.collective_ps = costs_.node_ps(graph_.collective(block.members[0]).start);
      Forms(b + 1);
      return;
    }
    // The first member's link counts for all.
    const auto same_link = [&](CollectiveId x, CollectiveId y) {
      return costs_.CollectivePs(x, 1 << 20, 1) == costs_.CollectivePs(y, 1 << 20, 1);
    };
    for (size_t first = 0; first < block.members.size(); ++first) {
      if (first > 0 && same_link(block.members[0], block.members[first])) continue;
      block.bucket.members.clear();
      for (const CollectiveId c : block.members) {
        block.bucket.members.push_back(graph_.collective(c).start);
      }
      std::swap(block.bucket.members[0], block.bucket.members[first]);
      for (int form = 0; form < 3; ++form) {
        block.bucket.mode = form == 0 ? BucketMode::kGrouped : BucketMode::kPacked;
        block.bucket.copies = form == 1 ? CopyStream::kCompute : CopyStream::kComm;
        block.costs = internal::CostsOf(graph_, block.bucket, costs_);
        Forms(b + 1);
      }
    }
  }

  void Orders() {
    done_.assign(Index(graph_.size()), false);
    launched_.assign(blocks_.size(), false);
    wire_left_.assign(graph_.groups().size(), 0);
    kernels_left_ = 0;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      wire_left_[Index(blocks_[b].costs.group)] += blocks_[b].costs.collective_ps;
    }
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (graph_.collective_of(n) < 0) kernels_left_ += costs_.node_ps(n);
    }
    Clocks clocks;
    clocks.stream_free.assign(graph_.groups().size(), 0);
    clocks.end.assign(blocks_.size(), 0);
    order_.clear();
    Next(clocks);
  }

  bool InputsDone(NodeId n) const {
    const absl::Span<const NodeId> inputs = graph_.inputs(n);
    return std::all_of(inputs.begin(), inputs.end(), [&](NodeId x) { return done_[Index(x)]; });
  }

  void Take(Step step, const std::vector<NodeId>& nodes) {
    order_.push_back(step);
    for (const NodeId n : nodes) done_[Index(n)] = true;
  }
  void Undo(size_t length, const std::vector<NodeId>& nodes) {
    order_.resize(length);
    for (const NodeId n : nodes) done_[Index(n)] = false;
  }

  int64_t LeastEnd(const Clocks& clocks) const {
    int64_t end = clocks.now + kernels_left_;
    for (size_t g = 0; g < wire_left_.size(); ++g) {
      const int64_t begin =
          wire_left_[g] > 0 ? std::max(clocks.now, clocks.stream_free[g]) : clocks.stream_free[g];
      end = std::max(end, begin + wire_left_[g]);
    }
    return end;
  }

  void Kernel(Clocks& clocks, int64_t work) const {
    clocks.host += costs_.host_ps_per_kernel();
    clocks.now =
        clocks.busy.Finish(std::max(clocks.now, clocks.host), work, costs_.overlap_slowdown_ppb());
  }

  void Next(const Clocks& clocks) {
    if (--steps_ <= 0 || LeastEnd(clocks) >= best_.total_ps) return;
    // Nodes that take no time wait for nothing.
    const size_t length = order_.size();
    std::vector<NodeId> free;
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (done_[Index(n)] || graph_.collective_of(n) >= 0 || costs_.node_ps(n) > 0) continue;
      if (!InputsDone(n) || n == graph_.output_node()) continue;
      Take({Step::Kind::kNode, n}, {n});
      free.push_back(n);
    }
    if (Branch(clocks)) Leaf(clocks);
    Undo(length, free);
  }

  // True if nothing is left.
  bool Branch(const Clocks& clocks) {
    bool end = true;
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (done_[Index(n)] || graph_.collective_of(n) >= 0 || costs_.node_ps(n) == 0) continue;
      end = false;
      if (InputsDone(n)) RunKernel(clocks, n);
    }
    for (size_t b = 0; b < blocks_.size(); ++b) {
      const std::vector<CollectiveId>& members = blocks_[b].members;
      const NodeId wait = graph_.collective(members[0]).wait;
      if (!launched_[b]) {
        end = false;
        const bool ready = std::all_of(members.begin(), members.end(), [&](CollectiveId c) {
          return InputsDone(graph_.collective(c).start);
        });
        if (ready) Launch(clocks, b);
      } else if (wait != kNoNode && !done_[Index(wait)]) {
        end = false;
        Wait(clocks, b);
      }
    }
    return end;
  }

  void RunKernel(const Clocks& before, NodeId n) {
    Clocks clocks = before;
    Kernel(clocks, costs_.node_ps(n));
    kernels_left_ -= costs_.node_ps(n);
    const size_t length = order_.size();
    Take({Step::Kind::kNode, n}, {n});
    Next(clocks);
    Undo(length, {n});
    kernels_left_ += costs_.node_ps(n);
  }

  void Launch(const Clocks& before, size_t b) {
    Clocks clocks = before;
    const BucketCosts& costs = blocks_[b].costs;
    const size_t g = Index(costs.group);
    int64_t slot = costs.collective_ps, charged = 0;
    if (costs.copies_on_compute && costs.copy_in_ps > 0) Kernel(clocks, costs.copy_in_ps);
    clocks.host += costs_.host_ps_per_collective();
    if (costs.copies_on_comm) {
      const int64_t copies = costs.copy_in_ps + costs.copy_out_ps;
      clocks.host +=
          (costs.kind == CollectiveKind::kAllGather ? 2 : 1) * costs_.host_ps_per_kernel();
      slot += copies;
      charged = static_cast<int64_t>(
          (Int128{copies} * costs_.comm_copy_share_ppb() + internal::kBillion / 2) /
          internal::kBillion);
    }
    const int64_t start = std::max({clocks.stream_free[g], clocks.now, clocks.host});
    if (charged > 0) {
      clocks.now = clocks.busy.Finish(std::max(clocks.now, clocks.host), charged,
                                      costs_.overlap_slowdown_ppb());
    }
    clocks.stream_free[g] = clocks.end[b] = start + slot;
    clocks.busy.Add(start, start + slot);
    std::vector<NodeId> starts;
    for (const CollectiveId c : blocks_[b].members) starts.push_back(graph_.collective(c).start);
    launched_[b] = true;
    wire_left_[g] -= costs.collective_ps;
    const size_t length = order_.size();
    const bool alone = starts.size() == 1;
    Take(alone ? Step{Step::Kind::kNode, starts[0]}
               : Step{Step::Kind::kStart, static_cast<int32_t>(b)},
         starts);
    Next(clocks);
    Undo(length, starts);
    wire_left_[g] += costs.collective_ps;
    launched_[b] = false;
  }

  void Wait(const Clocks& before, size_t b) {
    Clocks clocks = before;
    const BucketCosts& costs = blocks_[b].costs;
    clocks.now = std::max(clocks.now, clocks.end[b]);
    if (costs.copies_on_compute && costs.copy_out_ps > 0) Kernel(clocks, costs.copy_out_ps);
    std::vector<NodeId> waits;
    for (const CollectiveId c : blocks_[b].members) waits.push_back(graph_.collective(c).wait);
    const size_t length = order_.size();
    Take(waits.size() == 1 ? Step{Step::Kind::kNode, waits[0]}
                           : Step{Step::Kind::kWait, static_cast<int32_t>(b)},
         waits);
    Next(clocks);
    Undo(length, waits);
  }

  void Leaf(const Clocks& clocks) {
    int64_t total = clocks.now;
    for (const int64_t free : clocks.stream_free) total = std::max(total, free);
    if (total >= best_.total_ps) return;
    best_.total_ps = total;
    Plan plan = ProgramOrder(graph_);
    plan.order = order_;
    plan.order.push_back({Step::Kind::kNode, graph_.output_node()});
    std::vector<BucketId> number(blocks_.size(), -1);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].members.size() < 2) continue;
      number[b] = static_cast<BucketId>(plan.buckets.size());
      plan.buckets.push_back(blocks_[b].bucket);
      LayOut(graph_, plan.buckets.back());
    }
    for (Step& step : plan.order) {
      if (step.kind != Step::Kind::kNode) step.id = number[Index(step.id)];
    }
    best_.plan = std::move(plan);
  }

  const Graph& graph_;
  const Costs& costs_;
  int64_t steps_;
  Optimum best_;
  std::vector<Block> blocks_;
  std::vector<bool> done_, launched_;
  std::vector<int64_t> wire_left_;  // of a group
  int64_t kernels_left_ = 0;
  std::vector<Step> order_;
};

}  // namespace

std::optional<Optimum> FindOptimum(const Graph& graph, const Costs& costs, int64_t best_known,
                                   int64_t steps) {
  return Solver(graph, costs, best_known, steps).Run();
}

}  // namespace bucketd::testing
