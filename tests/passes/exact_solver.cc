#include "tests/passes/exact_solver.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "passes/base/index.h"
#include "passes/sim/bucket_costs.h"
#include "passes/sim/simulator.h"
#include "passes/sim/stream_clock.h"

namespace bucketd::testing {
namespace {

using internal::LaunchWork;
using internal::StreamClock;

// The simulator's clocks at one place of an order.
struct Clocks {
  StreamClock clock;
  std::vector<int64_t> end;  // of a block
};

// Collectives that are launched as one.
struct Block {
  std::vector<CollectiveId> members;
  Bucket bucket;  // of two members or more
  LaunchWork work;
};

class Solver {
 public:
  Solver(const Graph& graph, const Costs& costs, int64_t best_known, int64_t limit, int64_t steps)
      : graph_(graph), costs_(costs), limit_(limit), steps_(steps) {
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
      block.work = {};
      block.work.group = graph_.collective(block.members[0]).group;
      block.work.slot_ps = costs_.node_ps(graph_.collective(block.members[0]).start);
      Forms(b + 1);
      return;
    }
    block.bucket.members.clear();
    for (const CollectiveId c : block.members) {
      block.bucket.members.push_back(graph_.collective(c).start);
    }
    for (int form = 0; form < 3; ++form) {
      block.bucket.mode = form == 0 ? BucketMode::kGrouped : BucketMode::kPacked;
      block.bucket.copies = form == 1 ? CopyStream::kCompute : CopyStream::kComm;
      block.work = internal::WorkOf(internal::CostsOf(graph_, block.bucket, costs_), costs_);
      Forms(b + 1);
    }
  }

  void Orders() {
    done_.assign(Index(graph_.size()), false);
    launched_.assign(blocks_.size(), false);
    wire_left_.assign(graph_.groups().size(), 0);
    kernels_left_ = 0;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      wire_left_[Index(blocks_[b].work.group)] += blocks_[b].work.slot_ps;
    }
    for (NodeId n = 0; n < graph_.size(); ++n) {
      if (graph_.collective_of(n) < 0) kernels_left_ += costs_.node_ps(n);
    }
    Clocks clocks;
    clocks.clock.Reset(graph_.groups().size(), internal::RatesOf(costs_));
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
    const int64_t now = clocks.clock.now_ps();
    int64_t end = now + kernels_left_;
    for (size_t g = 0; g < wire_left_.size(); ++g) {
      const int64_t free = clocks.clock.free_ps(static_cast<GroupId>(g));
      const int64_t begin = wire_left_[g] > 0 ? std::max(now, free) : free;
      end = std::max(end, begin + wire_left_[g]);
    }
    return end;
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
    clocks.clock.Kernel(costs_.node_ps(n));
    kernels_left_ -= costs_.node_ps(n);
    const size_t length = order_.size();
    Take({Step::Kind::kNode, n}, {n});
    Next(clocks);
    Undo(length, {n});
    kernels_left_ += costs_.node_ps(n);
  }

  void Launch(const Clocks& before, size_t b) {
    Clocks clocks = before;
    const LaunchWork& work = blocks_[b].work;
    const size_t g = Index(work.group);
    clocks.clock.Kernel(work.copy_in_ps);
    clocks.end[b] = clocks.clock.Launch(work).end_ps;
    std::vector<NodeId> starts;
    for (const CollectiveId c : blocks_[b].members) starts.push_back(graph_.collective(c).start);
    launched_[b] = true;
    wire_left_[g] -= work.slot_ps;
    const size_t length = order_.size();
    const bool alone = starts.size() == 1;
    Take(alone ? Step{Step::Kind::kNode, starts[0]}
               : Step{Step::Kind::kStart, static_cast<int32_t>(b)},
         starts);
    Next(clocks);
    Undo(length, starts);
    wire_left_[g] += work.slot_ps;
    launched_[b] = false;
  }

  void Wait(const Clocks& before, size_t b) {
    Clocks clocks = before;
    clocks.clock.WaitUntil(clocks.end[b]);
    clocks.clock.Kernel(blocks_[b].work.copy_out_ps);
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
    const int64_t total = clocks.clock.end_ps();
    if (total >= best_.total_ps) return;
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
    if (limit_ != std::numeric_limits<int64_t>::max() &&
        Simulate(graph_, plan, costs_).prediction.peak_bytes > limit_) {
      return;
    }
    best_.total_ps = total;
    best_.plan = std::move(plan);
  }

  const Graph& graph_;
  const Costs& costs_;
  const int64_t limit_;
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
                                   int64_t limit, int64_t steps) {
  return Solver(graph, costs, best_known, limit, steps).Run();
}

}  // namespace bucketd::testing
