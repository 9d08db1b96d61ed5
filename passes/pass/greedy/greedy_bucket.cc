#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/ir/bucket_key.h"
#include "passes/pass/compute_run.h"
#include "passes/pass/fit_memory.h"
#include "passes/pass/greedy/greedy.h"
#include "passes/pass/greedy/greedy_policy.h"
#include "passes/pass/numerics.h"
#include "passes/pass/plan_launch.h"
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

constexpr int kMaxHalvings = 8;
constexpr size_t kMaxListed = 1000;
// Scans of the whole graph that the search for buckets may cost; real graphs need a handful.
constexpr int64_t kMaxScans = 100;

// What one bucket may hold, and its caps.
struct GreedyKey {
  BucketKey of;
  Direction direction = Direction::kNone;
  int64_t bytes = 0;          // of all candidates
  std::vector<int64_t> caps;  // of bucket 0, 1, ...; the last repeats
};

// Collectives that may be merged: those that the policy wants, that are in no bucket yet and that
// in-place ops leave alone; numerics as in context.options.
struct GreedyInput {
  GreedyInput(const PassContext& context, const GreedyPolicy& policy, const Plan& plan,
              const ItemGraph& items);

  std::vector<GreedyKey> keys;
  // Lists by position of the wait in plan.order, as the policy has them.
  std::vector<std::vector<GreedyCandidate>> stages;
};

GreedyInput::GreedyInput(const PassContext& context, const GreedyPolicy& policy, const Plan& plan,
                         const ItemGraph& items)
    : stages(Index(policy.stages())) {
  const Graph& graph = context.graph;
  const std::vector<int32_t> at = PlacesOf(graph, plan.buckets, plan.order);
  std::vector<std::pair<int32_t, CollectiveId>> by_wait;
  for (CollectiveId c = 0; c < static_cast<CollectiveId>(graph.collectives().size()); ++c) {
    const Collective& collective = graph.collective(c);
    const bool is_free = items.exists(collective.start);  // in no bucket yet
    if (!is_free || !policy.Wants(c) || !MayJoinBucket(context, c)) continue;
    by_wait.emplace_back(at[Index(collective.wait)], c);
  }
  std::sort(by_wait.begin(), by_wait.end());
  absl::flat_hash_map<std::pair<BucketKey, Direction>, int32_t> key_at;
  for (const auto& [wait, c] : by_wait) {
    const Collective& collective = graph.collective(c);
    const BucketKey key = BucketKey::Of(collective);
    const Direction direction = policy.DirectionOf(c);
    const auto [it, added] =
        key_at.emplace(std::make_pair(key, direction), static_cast<int32_t>(keys.size()));
    if (added) {
      keys.push_back({key, direction, 0, context.options.bucket_cap_bytes});
      if (keys.back().caps.empty()) keys.back().caps = {policy.AutoCap(c)};
    }
    keys[Index(it->second)].bytes += collective.bytes;
    const int32_t position = at[Index(collective.start)];
    stages[Index(policy.StageOf(c))].push_back(
        {c, it->second, position, collective.bytes, collective.start, collective.wait});
  }
}

// Where a bucket stands: a gather at its first member, others at their last.
NodeId PlaceOf(const Graph& graph, const GreedyBucket& bucket) {
  NodeId first = graph.size(), last = 0;
  for (const CollectiveId c : bucket.members) {
    first = std::min(first, graph.collective(c).start);
    last = std::max(last, graph.collective(c).start);
  }
  return Gathers(graph.collective(bucket.members[0]).kind) ? first : last;
}

class Planner {
 public:
  Planner(PassContext& context, const GreedyPolicy& policy, const Plan& before)
      : context_(context),
        policy_(policy),
        graph_(context.graph),
        before_(before),
        items_(context.graph, context.constraints, before.buckets),
        input_(context, policy, before, items_) {
    for (int32_t item = 0; item < items_.size(); ++item) {
      edges_ += static_cast<int64_t>(items_.before(item).size()) + 1;
    }
  }

  const GreedyInput& input() const { return input_; }
  const GreedyResult& result() const { return result_; }
  bool auto_caps() const {
    return context_.options.bucket_cap_bytes.empty() && policy_.caps_shrink();
  }

  // Buckets with automatic caps halved so many times; -1: no buckets at all.
  absl::StatusOr<Plan> Try(int halvings) {
    result_ = {};
    if (halvings >= 0) Search(halvings);
    std::stable_sort(result_.buckets.begin(), result_.buckets.end(),
                     [&](const GreedyBucket& a, const GreedyBucket& b) {
                       return PlaceOf(graph_, a) < PlaceOf(graph_, b);
                     });
    Plan plan = before_;
    MakeLaunches(plan);
    if (result_.buckets.empty()) return plan;
    RETURN_IF_ERROR(policy_.Order(context_, before_, plan));
    return plan;
  }

 private:
  void Search(int halvings) {
    GreedyRules rules;
    rules.max_topo_span = context_.options.max_topo_span;
    policy_.Adjust(rules);
    rules.max_work = kMaxScans * edges_;
    rules.cap = [&](int32_t k, int32_t index) {
      const GreedyKey& key = input_.keys[Index(k)];
      const int64_t cap = key.caps[std::min(Index(index), key.caps.size() - 1)];
      return halvings == 0 ? cap : std::min(cap, key.bytes) >> halvings;
    };
    QuotientDag dag(items_, before_.order);
    result_ = FindGreedyBuckets(input_.stages, rules, dag);
  }

  void MakeLaunches(Plan& plan) {
    context_.launches.clear();
    context_.units.clear();
    std::vector<bool> merged(graph_.collectives().size());
    const auto add = [&](Launch launch, std::string name, std::vector<CollectiveId> members) {
      launch.kind = graph_.collective(members[0]).kind;
      launch.direction = context_.directions[Index(members[0])];
      launch.unit = static_cast<int32_t>(context_.units.size());
      for (const CollectiveId c : members) merged[Index(c)] = true;
      std::sort(members.begin(), members.end());
      context_.units.push_back({std::move(name), {}, std::move(members)});
      context_.launches.push_back(launch);
    };
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      std::vector<CollectiveId> members;
      for (const NodeId n : plan.buckets[b].members) members.push_back(graph_.collective_of(n));
      add({static_cast<BucketId>(b)}, plan.buckets[b].name, std::move(members));
    }
    for (const GreedyBucket& found : result_.buckets) {
      const auto id = static_cast<BucketId>(plan.buckets.size());
      const std::string name = NameOf(found, id);
      plan.buckets.push_back(MakeBucket(found, name));
      add({id}, name, found.members);
    }
    for (const std::vector<GreedyCandidate>& stage : input_.stages) {
      for (const GreedyCandidate& candidate : stage) {
        const CollectiveId c = candidate.collective;
        if (!merged[Index(c)]) add({-1, c}, std::string(context_.tags[c].parameter), {c});
      }
    }
  }

  std::string NameOf(const GreedyBucket& bucket, BucketId id) const {
    const Collective& collective = graph_.collective(bucket.members[0]);
    return absl::StrCat(graph_.group(collective).mesh_dim, ".", Name(collective.kind), ".", id);
  }

  Bucket MakeBucket(const GreedyBucket& found, const std::string& name) const {
    Bucket bucket;
    for (const CollectiveId c : found.members) bucket.members.push_back(graph_.collective(c).start);
    bucket.mode = ModeOf(graph_, bucket.members, context_.options);
    bucket.name = absl::StrCat(name, " ", Name(context_.directions[Index(found.members[0])]));
    LayOut(graph_, bucket);
    return bucket;
  }

  PassContext& context_;
  const GreedyPolicy& policy_;
  const Graph& graph_;
  const Plan& before_;
  const ItemGraph items_;
  const GreedyInput input_;
  GreedyResult result_;
  int64_t edges_ = 0;
};

// Each key: "dp (8 ranks) all_gather bf16 forward: 290 -> 162, cap 88914285 bytes".
std::string KeysText(const Graph& graph, const GreedyInput& input, const GreedyResult& result) {
  std::vector<size_t> before(input.keys.size()), saved(input.keys.size());
  for (const std::vector<GreedyCandidate>& stage : input.stages) {
    for (const GreedyCandidate& candidate : stage) ++before[Index(candidate.key)];
  }
  for (const GreedyBucket& bucket : result.buckets) {
    saved[Index(bucket.key)] += bucket.members.size() - 1;
  }
  std::vector<std::string> lines;
  for (size_t k = 0; k < input.keys.size() && k < kMaxListed; ++k) {
    const GreedyKey& key = input.keys[k];
    const Group& group = graph.groups()[Index(key.of.group)];
    const std::string caps = absl::StrJoin(
        key.caps, ", ", [](std::string* out, int64_t cap) { absl::StrAppend(out, cap, " bytes"); });
    const bool directed = key.direction != Direction::kNone;
    lines.push_back(absl::StrCat(group.mesh_dim, " (", group.size, " ranks) ", Name(key.of.kind),
                                 " ", Name(key.of.dtype), directed ? " " : "",
                                 directed ? Name(key.direction) : "", ": ", before[k], " -> ",
                                 before[k] - saved[k], ", cap ", caps));
  }
  return absl::StrJoin(lines, "; ");
}

std::string WhyClosed(const GreedyBucket& bucket, const PlanOptions& options) {
  const std::string cap = absl::StrCat("cap of ", bucket.cap, " bytes");
  const std::string span = absl::StrCat("span of ", options.max_topo_span);
  std::string why = "the end of its list";
  if (bucket.by_bytes) why = cap;
  if (bucket.by_span) why = bucket.by_bytes ? absl::StrCat(cap, " and ", span) : span;
  absl::StrAppend(&why, " (", bucket.bytes, " bytes, span ", bucket.span, ")");
  if (bucket.refused > 0) {
    absl::StrAppend(&why, "; dependence: ", bucket.refused,
                    " candidates depend on a member or would close a cycle");
  }
  return why;
}

void Report(const PassContext& context, absl::string_view pass, const Planner& planner,
            const Plan& before, int halvings, Plan& plan) {
  const GreedyInput& input = planner.input();
  const GreedyResult& result = planner.result();
  if (input.keys.empty()) return;
  const auto metric = [&](const Plan& of) {
    return MaxComputeBetweenReduceScatters(context.graph, of.buckets, of.order);
  };
  int32_t by_bytes = 0, by_span = 0, max_span = 0;  // both reasons may count for one bucket
  for (const GreedyBucket& bucket : result.buckets) {
    by_bytes += bucket.by_bytes ? 1 : 0;
    by_span += bucket.by_span ? 1 : 0;
    max_span = std::max(max_span, bucket.span);
  }
  const int32_t span = context.options.max_topo_span;
  std::string text =
      absl::StrCat(pass, ": ", result.buckets.size(), " buckets, max span ", max_span,
                   ", closed by bytes ", by_bytes, ", by span ", by_span, ", max_topo_span ",
                   span == kNoLimit ? "none" : absl::StrCat(span), ", refused for dependence ",
                   result.refused, ", most compute between reduce-scatters ", metric(before),
                   " -> ", metric(plan), "; ", KeysText(context.graph, input, result));
  if (halvings != 0) {
    absl::StrAppend(&text, halvings < 0 ? "; nothing is merged, to stay within the memory limit"
                                        : absl::StrCat("; caps halved ", halvings,
                                                       " times to stay within the memory limit"));
  }
  if (result.out_of_work) {
    absl::StrAppend(&text, "; the search was cut short: the rest stays alone");
  }
  plan.diagnostics.push_back({"greedy-summary", std::move(text), {}});
  for (size_t b = 0; b < result.buckets.size() && b < kMaxListed; ++b) {
    const Bucket& bucket = plan.buckets[before.buckets.size() + b];
    std::vector<NodeId> members = bucket.members;
    std::sort(members.begin(), members.end());
    plan.diagnostics.push_back(
        {"bucket-closed", WhyClosed(result.buckets[b], context.options), std::move(members)});
  }
}

// Merges parameter and gradient collectives by bytes and topological span, whatever stands between
// them. Blind to overlap: prefetch, or a scheduler, comes after it.
//
// Before an overlap scheduler, which then moves fewer and larger collectives and answers for
// memory, it is the pass "pre-bucket". torch's bucketer, behind its scheduler, cannot merge two of
// which one is waited for before the next compute node and the other starts after it; here they are
// merged. Off: the plan stays as it is.
//
// Automatic caps are halved, a few times at most, while memory is above the limit; without a
// scheduler and launches that a later pass could move, what then still is above it is reported, or
// FAILED_PRECONDITION if the limit is in bytes. Fills units and launches, unless the policy takes
// them out: each bucket, and each candidate that is in none, is a unit. Diagnostics, under the
// pass's name: greedy-summary, and one bucket-closed a bucket (the first thousand), whose nodes are
// the members, ascending.
class GreedyPass : public Pass {
 public:
  GreedyPass(bool before_scheduler, MakeGreedyPolicy upstream)
      : before_scheduler_(before_scheduler), upstream_(upstream) {}

  absl::string_view name() const override {
    return before_scheduler_ ? "pre-bucket" : "greedy-bucket";
  }
  bool needs_tags() const override { return true; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (before_scheduler_ && !context.options.pre_bucketing) return false;
    const auto make = context.options.upstream ? upstream_ : MakeOwnGreedyPolicy;
    const auto policy =
        make(context, before_scheduler_ ? GreedyTraffic::kFsdpGroups : GreedyTraffic::kAny);
    const Plan before = plan;
    Planner planner(context, *policy, before);
    const int64_t limit = MemoryLimit(context);
    int64_t peak = 0;
    int halvings = 0;
    for (;;) {
      ASSIGN_OR_RETURN(plan, planner.Try(halvings));
      peak = Simulate(context.graph, plan, context.costs).prediction.peak_bytes;
      if (peak <= limit || !planner.auto_caps() || planner.result().buckets.empty()) break;
      const bool last = halvings == kMaxHalvings || planner.result().out_of_work;
      halvings = last ? -1 : halvings + 1;
    }
    Report(context, name(), planner, before, halvings, plan);
    // Whatever moves launches later enforces it there.
    if (!before_scheduler_ && context.launches.empty()) {
      RETURN_IF_ERROR(CheckMemory(context, peak,
                                  "the plan needs $0 bytes at its peak, the limit is $1 (program "
                                  "order needs $2): allow more memory, or smaller buckets",
                                  plan));
    }
    return !planner.result().buckets.empty();
  }

 private:
  const bool before_scheduler_;
  const MakeGreedyPolicy upstream_;
};

}  // namespace

std::unique_ptr<Pass> MakeGreedyBucketPass(MakeGreedyPolicy upstream) {
  return std::make_unique<GreedyPass>(false, upstream);
}

std::unique_ptr<Pass> MakePreBucketPass(MakeGreedyPolicy upstream) {
  return std::make_unique<GreedyPass>(true, upstream);
}

}  // namespace bucketd
