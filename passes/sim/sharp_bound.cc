#include "passes/sim/sharp_bound.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/int128.h"
#include "passes/ir/bucket_key.h"
#include "passes/sim/busy_time.h"
#include "passes/sim/machine.h"

namespace bucketd {
namespace {

using internal::Backlog;
using internal::BatchMachine;
using internal::Job;
using internal::kBillion;
using internal::OneMachine;

// What every plan must run, by the least that it can take.
struct Least {
  std::vector<int64_t> kernel;       // of a node; 0: no kernel
  std::vector<int64_t> setup, wire;  // of a collective: its bucket's latency; its own share
  std::vector<int64_t> alone;        // of a collective: no bucket of it is shorter
  std::vector<int32_t> key;          // of a collective: who may share its bucket
  std::vector<bool> joins;           // whether it may at all
  int64_t kernel_launch = 0, collective_launch = 0;
  int32_t keys = 0;
  int64_t rounded = 0;  // how often a clock of the simulator rounds, at most
};

// Tells links apart: what 64 GiB take.
int64_t LongWirePs(const Costs& costs, CollectiveId c) {
  return costs.CollectivePs(c, int64_t{1} << 36, 1) - costs.AlphaPs(c);
}

// A bucket costs what its first member's link says, so each member takes the best link of its key.
Least LeastOf(const Graph& graph, const Costs& costs) {
  Least least;
  for (NodeId n = 0; n < graph.size(); ++n) {
    const bool kernel = graph.kind(n) != NodeKind::kCollective && graph.kind(n) != NodeKind::kWait;
    least.kernel.push_back(kernel ? costs.node_ps(n) : 0);
    if (least.kernel.back() > 0) ++least.rounded;
  }
  absl::flat_hash_map<BucketKey, int32_t> keys;
  std::vector<CollectiveId> fastest, soonest;
  const auto count = static_cast<CollectiveId>(graph.collectives().size());
  for (CollectiveId c = 0; c < count; ++c) {
    const Collective& collective = graph.collective(c);
    const bool joins =
        collective.wait != kNoNode && !collective.symbolic && Bucketable(collective.kind);
    int32_t key = least.keys;
    if (joins) key = keys.emplace(BucketKey::Of(collective), least.keys).first->second;
    if (key == least.keys) {
      ++least.keys;
      fastest.push_back(c);
      soonest.push_back(c);
    }
    if (LongWirePs(costs, c) < LongWirePs(costs, fastest[Index(key)])) fastest[Index(key)] = c;
    if (costs.AlphaPs(c) < costs.AlphaPs(soonest[Index(key)])) soonest[Index(key)] = c;
    least.key.push_back(key);
    least.joins.push_back(joins);
  }
  for (CollectiveId c = 0; c < count; ++c) {
    const CollectiveId link = fastest[Index(least.key[Index(c)])];
    const int64_t wire =
        costs.CollectivePs(link, graph.collective(c).bytes, 1) - costs.AlphaPs(link);
    least.setup.push_back(costs.AlphaPs(soonest[Index(least.key[Index(c)])]));
    least.alone.push_back(least.setup.back() + wire);
    // The bucket's wire time is rounded once, not once a member.
    least.wire.push_back(std::max<int64_t>(0, wire - 1 - (wire >> 48)));
  }
  least.kernel_launch = costs.host_ps_per_kernel();
  least.collective_launch = costs.host_ps_per_collective();
  least.rounded += count;
  return least;
}

// The time of wires and of the host runs slower: by/over of it counts.
Least Slowed(Least least, int64_t by, int64_t over) {
  const auto scale = [&](int64_t& ps) { ps = static_cast<int64_t>(Int128{ps} * by / over); };
  for (std::vector<int64_t>* const all : {&least.setup, &least.wire, &least.alone}) {
    for (int64_t& ps : *all) scale(ps);
  }
  scale(least.kernel_launch);
  scale(least.collective_launch);
  return least;
}

// How long after the begin of the step (or, backwards, before its end) each node can begin (end).
class Relaxation {
 public:
  Relaxation(const Graph& graph, const Least& least) : graph_(graph), least_(least) {
    head_ = Sweep<true>({});
    tail_ = Sweep<false>({});
    FindSpine();
    std::vector<int64_t> head = Sweep<true>(on_spine_);
    tail_ = Sweep<false>(on_spine_);
    head_ = std::move(head);
  }

  // Busiest wire, with as many latencies as no plan can spare.
  int64_t BusiestWire() const {
    std::vector<int64_t> busy(graph_.groups().size(), 0);
    for (size_t c = 0; c < least_.wire.size(); ++c) {
      busy[Group(c)] += least_.wire[c] + (own_setup_[c] ? least_.setup[c] : 0);
    }
    return busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end());
  }

  int64_t End() const {
    int64_t end = std::max(Wires(), HostEnd());
    std::vector<Job> kernels;
    for (NodeId n = 0; n < graph_.size(); ++n) {
      const size_t i = Index(n);
      end = std::max(end, head_[i] + Time(n) + tail_[i]);
      if (least_.kernel[i] > 0) kernels.push_back({head_[i], least_.kernel[i], tail_[i]});
    }
    return std::max(end, OneMachine(std::move(kernels)));
  }

  int64_t FirstKernel() const { return LeastOfKernels(head_); }
  int64_t AfterLastKernel() const { return LeastOfKernels(tail_); }

 private:
  int64_t LeastOfKernels(const std::vector<int64_t>& times) const {
    int64_t least = -1;
    for (size_t n = 0; n < times.size(); ++n) {
      if (least_.kernel[n] > 0 && (least < 0 || times[n] < least)) least = times[n];
    }
    return std::max<int64_t>(0, least);
  }

  size_t Group(size_t c) const { return Index(graph_.collectives()[c].group); }

  int64_t Time(NodeId n) const {
    if (graph_.kind(n) != NodeKind::kCollective) return least_.kernel[Index(n)];
    return least_.alone[Index(graph_.collective_of(n))];
  }

  int64_t Launch(NodeId n) const {
    if (graph_.kind(n) == NodeKind::kCollective) return least_.collective_launch;
    return least_.kernel[Index(n)] > 0 ? least_.kernel_launch : 0;
  }

  // Calls f with every node that must be over before n begins (backwards: that begins after n).
  template <bool forward, typename F>
  void Before(NodeId n, F f) const {
    // Nobody knows when a collective is over but who waits for it.
    const auto tells = [this](NodeId x, NodeId user) {
      return graph_.kind(x) != NodeKind::kCollective ||
             graph_.collective(graph_.collective_of(x)).wait == user;
    };
    if constexpr (forward) {
      for (const NodeId x : graph_.inputs(n)) {
        if (tells(x, n)) f(x);
      }
    } else {
      for (const NodeId x : graph_.users(n)) {
        if (tells(n, x)) f(x);
      }
    }
  }

  // Everything that must be over before a node of the spine, by machine.
  template <bool forward>
  class Done {
   public:
    Done(const Relaxation& relaxation, const std::vector<int64_t>& begin)
        : r_(relaxation),
          begin_(begin),
          marked_(begin.size(), false),
          compute_(r_.kernels_),
          wire_of_(r_.graph_.groups().size(), -1) {}

    void Reach(NodeId n) {
      found_.clear();
      open_.assign(1, n);
      while (!open_.empty()) {
        const NodeId at = open_.back();
        open_.pop_back();
        r_.Before<forward>(at, [this](NodeId x) {
          if (marked_[Index(x)]) return;
          marked_[Index(x)] = true;
          open_.push_back(x);
          if (r_.Time(x) > 0) found_.push_back(x);
        });
      }
      std::sort(found_.begin(), found_.end(), [this](NodeId a, NodeId b) {
        return std::tie(begin_[Index(a)], a) < std::tie(begin_[Index(b)], b);
      });
      for (const NodeId x : found_) Add(x);
    }

    int64_t end() const { return std::max(compute_.end(), wires_end_); }
    int64_t launched() const { return launched_; }

   private:
    void Add(NodeId x) {
      if (r_.graph_.kind(x) != NodeKind::kCollective) {
        compute_.Add(begin_[Index(x)], r_.least_.kernel[Index(x)]);
        launched_ += r_.least_.kernel_launch;
        return;
      }
      const auto c = static_cast<size_t>(r_.graph_.collective_of(x));
      const Job job = r_.WireJob(c, begin_[Index(x)]);
      if (r_.own_setup_[c]) launched_ += r_.least_.collective_launch;
      int32_t& wire = wire_of_[r_.Group(c)];
      if (wire < 0) {
        wire = static_cast<int32_t>(wires_.size());
        wires_.emplace_back(r_.group_size_[r_.Group(c)]);
      }
      wires_[Index(wire)].Add(job.head, job.work);
      wires_end_ = std::max(wires_end_, wires_[Index(wire)].end());
    }

    const Relaxation& r_;
    const std::vector<int64_t>& begin_;
    std::vector<bool> marked_;
    Backlog compute_;
    std::vector<Backlog> wires_;
    std::vector<int32_t> wire_of_;
    int64_t wires_end_ = 0, launched_ = 0;
    std::vector<NodeId> open_, found_;
  };

  template <bool forward>
  std::vector<int64_t> Sweep(const std::vector<bool>& on_spine) const {
    std::vector<int64_t> begin(Index(graph_.size()), 0);
    Done<forward> done(*this, begin);
    for (int32_t k = 0; k < graph_.size(); ++k) {
      const NodeId n = forward ? k : graph_.size() - 1 - k;
      int64_t& at = begin[Index(n)];
      if (forward) at = Launch(n);
      Before<forward>(n, [&](NodeId x) { at = std::max(at, begin[Index(x)] + Time(x)); });
      if (on_spine.empty() || !on_spine[Index(n)]) continue;
      done.Reach(n);
      at = std::max(at, done.end());
      if (forward) at = std::max(at, done.launched() + Launch(n));
    }
    return begin;
  }

  // The longest path, and which collectives cannot share a bucket with another that has a latency
  // counted: those of the path among themselves, and one of every key that the path lacks.
  void FindSpine() {
    on_spine_.assign(Index(graph_.size()), false);
    NodeId longest = 0;
    const auto length = [this](NodeId n) { return head_[Index(n)] + Time(n) + tail_[Index(n)]; };
    for (NodeId n = 1; n < graph_.size(); ++n) {
      if (length(n) > length(longest)) longest = n;
    }
    Follow<true>(longest, head_);
    Follow<false>(longest, tail_);
    own_setup_.assign(least_.wire.size(), false);
    std::vector<CollectiveId> longest_of(Index(least_.keys), -1);
    std::vector<bool> counted(Index(least_.keys), false);
    for (size_t c = 0; c < least_.wire.size(); ++c) {
      const NodeId start = graph_.collectives()[c].start;
      const auto key = Index(least_.key[c]);
      if (on_spine_[Index(start)]) {
        own_setup_[c] = true;
        counted[key] = true;
      }
      CollectiveId& kept = longest_of[key];
      if (kept < 0 || length(start) > length(graph_.collective(kept).start)) {
        kept = static_cast<CollectiveId>(c);
      }
    }
    for (size_t key = 0; key < counted.size(); ++key) {
      if (!counted[key]) own_setup_[Index(longest_of[key])] = true;
    }
  }

  template <bool forward>
  void Follow(NodeId n, const std::vector<int64_t>& times) {
    while (n != kNoNode) {
      on_spine_[Index(n)] = true;
      NodeId next = kNoNode;
      int64_t latest = -1;
      Before<forward>(n, [&](NodeId x) {
        const int64_t end = times[Index(x)] + Time(x);
        if (end > latest) {
          latest = end;
          next = x;
        }
      });
      n = next;
    }
  }

  // A latency of its own is part of the work; else it passes before the bytes.
  Job WireJob(size_t c, int64_t begin) const {
    const int64_t setup = least_.setup[c];
    if (own_setup_[c]) return {begin, least_.wire[c] + setup, 0};
    return {begin + setup, least_.wire[c], 0};
  }

  int64_t Wires() const {
    std::vector<std::vector<Job>> single(graph_.groups().size()), batches(single);
    std::vector<int64_t> setup(single.size(), INT64_MAX);
    for (size_t c = 0; c < least_.wire.size(); ++c) {
      setup[Group(c)] = std::min(setup[Group(c)], least_.setup[c]);
    }
    for (size_t c = 0; c < least_.wire.size(); ++c) {
      const auto start = Index(graph_.collectives()[c].start);
      Job job = WireJob(c, head_[start]);
      job.tail = tail_[start];
      single[Group(c)].push_back(job);
      const int64_t more = least_.joins[c] ? 0 : least_.setup[c] - setup[Group(c)];
      batches[Group(c)].push_back({head_[start], least_.wire[c] + more, tail_[start]});
    }
    int64_t end = 0;
    for (size_t g = 0; g < single.size(); ++g) {
      end = std::max(end, OneMachine(std::move(single[g])));
      if (!batches[g].empty()) end = std::max(end, BatchMachine(std::move(batches[g]), setup[g]));
    }
    return end;
  }

  // The host launches one after the other, in the plan's order.
  int64_t HostEnd() const {
    std::vector<Job> launches;
    for (NodeId n = 0; n < graph_.size(); ++n) {
      const bool counts =
          graph_.kind(n) != NodeKind::kCollective || own_setup_[Index(graph_.collective_of(n))];
      if (counts) launches.push_back({0, Launch(n), Time(n) + tail_[Index(n)]});
    }
    return OneMachine(std::move(launches));
  }

  const Graph& graph_;
  const Least& least_;
  const size_t kernels_ = static_cast<size_t>(
      std::count_if(least_.kernel.begin(), least_.kernel.end(), [](int64_t k) { return k > 0; }));
  const std::vector<size_t> group_size_ = [this] {
    std::vector<size_t> size(graph_.groups().size(), 0);
    for (size_t c = 0; c < least_.wire.size(); ++c) ++size[Group(c)];
    return size;
  }();
  std::vector<int64_t> head_, tail_;  // of a node, without its own time
  std::vector<bool> on_spine_;
  std::vector<bool> own_setup_ = std::vector<bool>(least_.wire.size(), false);
};

}  // namespace

SharpBound SharpBoundOf(const Graph& graph, const Costs& costs, bool free_launches) {
  Least least = LeastOf(graph, costs);
  if (free_launches) least.kernel_launch = least.collective_launch = 0;
  const Relaxation plain(graph, least);
  SharpBound bound = {plain.End(), plain.FirstKernel(), plain.AfterLastKernel()};
  const int64_t slowdown = costs.overlap_slowdown_ppb();
  if (slowdown == 0) return bound;
  const Least slowed = Slowed(least, kBillion, kBillion + slowdown);
  const int64_t hidden =
      static_cast<int64_t>(Int128{plain.BusiestWire()} * slowdown / (kBillion + slowdown));
  bound.total_ps =
      std::max(bound.total_ps, Relaxation(graph, slowed).End() + hidden - least.rounded);
  return bound;
}

}  // namespace bucketd
