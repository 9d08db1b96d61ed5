#include "passes/pass/overlap/overlap_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"

#include "passes/base/collectives.h"
#include "passes/base/int128.h"
#include "passes/ir/bucket_key.h"
#include "passes/pass/numerics.h"
#include "passes/pass/schedule.h"

namespace bucketd::overlap {
namespace {

// Windows are added up.
constexpr int64_t kMostPs = std::numeric_limits<int64_t>::max() / 4;

bool IsCheap(const Graph& graph, NodeId n, const OverlapPolicy& policy) {
  return graph.kind(n) == NodeKind::kCall && (graph.flags(n) & (kViewFlag | kPointwiseFlag)) != 0 &&
         !absl::c_linear_search(policy.dear_ops, graph.op(n));
}

}  // namespace

OverlapGraph::OverlapGraph(const PassContext& context, const OverlapPolicy& policy,
                           const Plan& plan) {
  AddSteps(context, policy, plan);
  AddEdges(context, plan);
  AddLaunches(context, policy, plan);
  AddKeys(context, policy);
  ScanForward();
  ScanBackward(context);
}

void OverlapGraph::AddSteps(const PassContext& context, const OverlapPolicy& policy,
                            const Plan& plan) {
  const Graph& graph = context.graph;
  const size_t steps = plan.order.size();
  kind_.assign(steps, StepKind::kOther);
  window_ps_.assign(steps, 0);
  launch_of_.assign(steps, -1);
  stays_in_loop_.assign(steps, false);
  cheap_.assign(steps, false);
  std::vector<int8_t> talks(graph.strings().size(), -1);  // of an op's name; -1: not yet known
  for (size_t i = 0; i < steps; ++i) {
    const Step& step = plan.order[i];
    if (step.kind != Step::Kind::kNode) {
      for (const NodeId member : plan.buckets[Index(step.id)].members) {
        const NodeId wait = graph.collective(graph.collective_of(member)).wait;
        nodes_.all.push_back(step.kind == Step::Kind::kStart ? member : wait);
      }
      nodes_.Close();
      continue;
    }
    nodes_.all.push_back(step.id);
    nodes_.Close();
    cheap_[i] = IsCheap(graph, step.id, policy);
    const NodeKind kind = graph.kind(step.id);
    if (kind == NodeKind::kCollective || kind == NodeKind::kWait) {
      stays_in_loop_[i] = true;
      continue;
    }
    int8_t& known = talks[Index(graph.op_id(step.id))];
    if (known < 0) {
      const absl::string_view op = graph.op(step.id);
      known = absl::StrContains(op, "c10") || absl::StrContains(op, "_dtensor") ? 1 : 0;
    }
    stays_in_loop_[i] = known == 1;
    const int64_t cost_ps = context.costs.node_ps(step.id);
    window_ps_[i] =
        std::min(PartsPerMillion(cost_ps, context.options.compute_overlap_ppm), kMostPs);
    if (kind == NodeKind::kPlaceholder) kind_[i] = StepKind::kPlaceholder;
    if (kind == NodeKind::kOutput) kind_[i] = StepKind::kOutput;
    if (kind == NodeKind::kCall && graph.is_compute(step.id)) {
      kind_[i] = StepKind::kCompute;
      compute_.push_back(static_cast<Position>(i));
    }
  }
}

void OverlapGraph::AddEdges(const PassContext& context, const Plan& plan) {
  const ItemGraph items(context.graph, context.constraints, plan.buckets);
  std::vector<Position> position(Index(items.size()), -1);
  for (Position v = 0; v < size(); ++v) position[Index(items.item(plan.order[Index(v)]))] = v;
  for (Position v = 0; v < size(); ++v) {
    const size_t from = parents_.all.size();
    for (const int32_t item : items.before(items.item(plan.order[Index(v)]))) {
      parents_.all.push_back(position[Index(item)]);
    }
    const auto begin = parents_.all.begin() + static_cast<std::ptrdiff_t>(from);
    std::sort(begin, parents_.all.end());
    parents_.all.erase(std::unique(begin, parents_.all.end()), parents_.all.end());
    parents_.Close();
  }
  users_ = MakeCsr(size(), [&](auto add) {
    for (Position v = 0; v < size(); ++v) {
      for (const Position parent : parents(v)) add(parent, v);
    }
  });
}

void OverlapGraph::AddLaunches(const PassContext& context, const OverlapPolicy& policy,
                               const Plan& plan) {
  const Graph& graph = context.graph;
  for (Position v = 0; v < size(); ++v) {
    const Step& step = plan.order[Index(v)];
    if (step.kind == Step::Kind::kStart) continue;
    const bool alone = step.kind == Step::Kind::kNode;
    if (alone && graph.kind(step.id) != NodeKind::kWait) continue;
    LaunchSpan launch{LaunchOf(graph, context.costs, plan, alone ? -1 : step.id,
                               alone ? graph.collective_of(step.id) : -1)};
    launch.latency_ps = context.costs.AlphaPs(launch.collective);
    launch.wait = v;
    // Other parents than the start are order that an in-place op asks for.
    const Collective& first = graph.collective(launch.collective);
    for (const Position parent : parents(v)) {
      const absl::Span<const NodeId> members = nodes(parent);
      if (std::find(members.begin(), members.end(), first.start) != members.end()) {
        launch.start = parent;
      }
    }
    launch.moves = parents(v).size() == 1 &&
                   (policy.every_kind_moves || Bucketable(first.kind) || Exchanges(first.kind));
    if (launch.moves) {
      kind_[Index(v)] = StepKind::kWait;
      kind_[Index(launch.start)] = StepKind::kStart;
      launch_of_[Index(v)] = launch_of_[Index(launch.start)] =
          static_cast<int32_t>(launches_.size());
      stays_in_loop_[Index(v)] = stays_in_loop_[Index(launch.start)] = false;
    }
    launches_.push_back(launch);
  }
}

void OverlapGraph::AddKeys(const PassContext& context, const OverlapPolicy& policy) {
  using Key = std::pair<BucketKey, Direction>;
  std::map<GroupId, int32_t> groups;
  absl::flat_hash_map<Key, int32_t> keys, mates;
  for (LaunchSpan& launch : launches_) {
    const Collective& c = context.graph.collective(launch.collective);
    launch.group = groups.emplace(c.group, static_cast<int32_t>(groups.size())).first->second;
    const bool joins = Bucketable(c.kind) && !c.symbolic;
    const Direction direction = policy.keys_have_directions && !context.directions.empty()
                                    ? context.directions[Index(launch.collective)]
                                    : Direction::kNone;
    // All that never merges shares one key.
    const Key key = joins ? Key{BucketKey::Of(c), direction} : Key{};
    launch.key = keys.emplace(key, static_cast<int32_t>(keys.size())).first->second;
    if (!joins) continue;
    if (!policy.mates_may_merge) {
      // The kind is not in it, only whether there is a reduce op.
      Key plain{BucketKey::Of(c), Direction::kNone};
      plain.first.kind = CollectiveKind::kUnspecified;
      launch.mate_key = mates.emplace(plain, static_cast<int32_t>(mates.size())).first->second;
    } else if (MayJoinBucket(context, launch.collective)) {
      launch.mate_key = launch.key;
    }
  }
  groups_ = static_cast<int32_t>(groups.size());
  keys_ = static_cast<int32_t>(std::max(keys.size(), mates.size()));
}

void OverlapGraph::ScanForward() {
  last_compute_.assign(Index(size()), -1);
  for (Position v = 0; v < size(); ++v) {
    Position last = -1;
    for (const Position parent : parents(v)) {
      last = std::max(last, kind(parent) == StepKind::kCompute ? parent : last_compute(parent));
    }
    last_compute_[Index(v)] = last;
  }
}

void OverlapGraph::ScanBackward(const PassContext& context) {
  first_compute_.assign(Index(size()), kNever);
  feeds_scatter_.assign(Index(size()), false);
  leads_to_launch_.assign(Index(size()), false);
  int32_t number = compute_count();
  for (Position v = size() - 1; v >= 0; --v) {
    int32_t first = kNever;
    bool feeds = false;
    for (const Position user : users(v)) {
      first = std::min(first, first_compute(user));
      feeds = feeds || feeds_reduce_scatter(user);
    }
    if (kind(v) == StepKind::kCompute) first = --number;
    const NodeId node = nodes(v).front();
    if (context.graph.kind(node) == NodeKind::kCollective) {
      const Collective& c = context.graph.collective(context.graph.collective_of(node));
      feeds = feeds || Scatters(c.kind);
    }
    first_compute_[Index(v)] = first;
    feeds_scatter_[Index(v)] = feeds;
    if (users(v).size() != 1 || parents(users(v).front()).size() != 1) continue;
    const Position user = users(v).front();
    leads_to_launch_[Index(v)] =
        kind(user) == StepKind::kStart || (cheap_[Index(user)] && leads_to_launch(user));
  }
}

}  // namespace bucketd::overlap
