// Random graphs: greedy buckets against a search that follows every path, and what must hold on
// graphs with several groups.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "passes/cost/saturation.h"
#include "passes/planner.h"
#include "tests/passes/greedy_test_util.h"
#include "tests/passes/ladder.h"

namespace bucketd::testing {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Below(int bound) { return static_cast<int>(engine_() % static_cast<uint32_t>(bound)); }
  bool OneIn(int n) { return Below(n) == 0; }

 private:
  std::mt19937 engine_;
};

// Tagged all-reduces of two groups and two dtypes that depend on one another at random.
Graph Tangle(uint32_t seed) {
  Random random(seed);
  Net net;
  const GroupId second = net.AddGroup("other", 2);
  std::vector<NodeId> values;
  for (int i = 0; i < 4; ++i) values.push_back(net.Input(absl::StrCat("x", i), {8, 8}));
  const int reductions = 4 + random.Below(14);
  for (int i = 0; i < reductions; ++i) {
    std::vector<NodeId> inputs;
    for (int j = 1 + random.Below(2); j > 0; --j) {
      // Rather early values, so that chains stay short and merging is possible.
      const int reach = random.OneIn(2) ? 4 : static_cast<int>(values.size());
      const NodeId x = values[static_cast<size_t>(random.Below(reach))];
      if (std::find(inputs.begin(), inputs.end(), x) == inputs.end()) inputs.push_back(x);
    }
    net.Typed(random.OneIn(2) ? DType::kBF16 : DType::kF32).OnGroup(random.OneIn(2) ? 0 : second);
    const NodeId sum = net.Call(absl::StrCat("sum", i), inputs, {8, 8});
    const std::string name = absl::StrCat("r", i);
    const NodeId start =
        net.Tagged(Tag::kDdpAllReduce, name, CollectiveKind::kAllReduce, name, sum, ReduceOp::kSum);
    values.push_back(net.Wait(absl::StrCat("w", i), start));
  }
  net.Out(net.Call("last", {values.back()}, {8, 8}), SlotKind::kOutput);
  return net.Build();
}

// The rules once more, with a search along all paths of the merged graph for every question.
class Reference {
 public:
  Reference(const Graph& graph, int64_t cap, int32_t span) : graph_(graph) {
    for (NodeId n = 0; n < graph.size(); ++n) merged_.push_back(n);
    std::vector<CollectiveId> by_wait;
    for (CollectiveId c = 0; c < static_cast<CollectiveId>(graph.collectives().size()); ++c) {
      by_wait.push_back(c);
    }
    std::sort(by_wait.begin(), by_wait.end(), [&](CollectiveId a, CollectiveId b) {
      return graph.collective(a).wait < graph.collective(b).wait;
    });
    using Key = std::pair<GroupId, DType>;
    std::vector<Key> keys;
    std::map<Key, std::vector<CollectiveId>> lists;
    for (const CollectiveId c : by_wait) {
      const Key key = {graph.collective(c).group, graph.collective(c).dtype};
      if (lists.find(key) == lists.end()) keys.push_back(key);
      lists[key].push_back(c);
    }
    for (const Key& key : keys) {
      for (std::vector<CollectiveId> list = lists[key]; !list.empty();)
        list = Round(list, cap, span);
    }
  }
  std::set<std::vector<NodeId>> buckets() const { return buckets_; }

 private:
  std::vector<CollectiveId> Round(const std::vector<CollectiveId>& list, int64_t cap,
                                  int32_t span) {
    std::vector<CollectiveId> deferred, open;
    int64_t bytes = 0;
    const auto close = [&] {
      if (open.size() > 1) {
        std::vector<NodeId> members;
        for (const CollectiveId c : open) {
          members.push_back(graph_.collective(c).start);
          merged_[static_cast<size_t>(graph_.collective(c).start)] = graph_.size() + next_;
          merged_[static_cast<size_t>(graph_.collective(c).wait)] = graph_.size() + next_;
        }
        ++next_;
        std::sort(members.begin(), members.end());
        buckets_.insert(members);
      }
      open.clear();
      bytes = 0;
    };
    for (const CollectiveId c : list) {
      const auto joined = [&](CollectiveId m) { return Reaches(m, c) || Reaches(c, m); };
      if (std::any_of(open.begin(), open.end(), joined)) {
        deferred.push_back(c);
        continue;
      }
      const Collective& collective = graph_.collective(c);
      if (!open.empty() && (bytes + collective.bytes > cap ||
                            collective.start - graph_.collective(open[0]).start > span)) {
        close();
      }
      open.push_back(c);
      bytes += collective.bytes;
    }
    close();
    return deferred;
  }

  bool Reaches(CollectiveId from, CollectiveId to) const {
    const auto at = [&](NodeId n) { return merged_[static_cast<size_t>(n)]; };
    const NodeId target = at(graph_.collective(to).start);
    std::set<NodeId> seen = {at(graph_.collective(from).start)};
    for (bool grew = true; grew;) {
      grew = false;
      for (NodeId n = 0; n < graph_.size(); ++n) {
        for (const NodeId x : graph_.inputs(n)) {
          if (seen.count(at(x)) != 0 && seen.insert(at(n)).second) grew = true;
        }
      }
    }
    return seen.count(target) != 0;
  }

  const Graph& graph_;
  std::vector<NodeId> merged_;
  NodeId next_ = 0;
  std::set<std::vector<NodeId>> buckets_;
};

TEST(GreedyProperty, T3_11_BucketsAreThoseOfASearchAlongAllPaths) {
  size_t buckets = 0, refused = 0;
  for (uint32_t seed = 0; seed < Seeds(400); ++seed) {
    const Graph graph = Tangle(seed);
    const int64_t cap = seed % 3 == 0 ? 600 : kMiB;
    const int32_t span = seed % 2 == 0 ? 20 : 1500;
    // The pipeline verifies that an order exists.
    const Plan plan = Greedy(graph, GreedyOptions({cap}, span));
    std::set<std::vector<NodeId>> found;
    for (const Bucket& bucket : plan.buckets) {
      std::vector<NodeId> members = bucket.members;
      std::sort(members.begin(), members.end());
      found.insert(members);
    }
    ASSERT_EQ(found, Reference(graph, cap, span).buckets()) << "seed " << seed;
    buckets += found.size();
    for (const Diagnostic& d : plan.diagnostics) {
      if (d.text.find("dependence: ") != std::string::npos) ++refused;
    }
  }
  EXPECT_GT(static_cast<int64_t>(buckets), Share(800));
  EXPECT_GT(static_cast<int64_t>(refused), Share(100));
}

// As AutoParallel makes them: parameters sharded over dp (most), over tp, or over both at once
// (norms), between gathers and scatters of activations on tp.
Graph ManyGroups(uint32_t seed) {
  Random random(seed);
  Net net(8);
  const GroupId tp = net.AddGroup("tp", 4), both = net.AddGroup("dp_tp", 32);
  NodeId h = net.Input("x", {64, 64});
  struct Parameter {
    NodeId node;
    GroupId group;
  };
  std::vector<Parameter> parameters;
  const int count = 40 + random.Below(60);
  const int only_tp = random.Below(count);
  for (int i = 0; i < count; ++i) {
    const GroupId group = i == only_tp ? tp : random.OneIn(5) ? both : GroupId{0};
    const Shape shape = {group == both ? 1 : (1 << random.Below(10)), 2048};
    parameters.push_back({net.Parameter(absl::StrCat("layers.", i / 9, ".w", i), shape), group});
  }
  for (int i = 0; i < count; ++i) {
    const Parameter& p = parameters[static_cast<size_t>(i)];
    const NodeId w = net.OnGroup(p.group).Gather(absl::StrCat(i), p.node);
    h = net.Call(absl::StrCat("mm", i), {h, w}, {64, 64});
    if (!random.OneIn(3)) continue;
    net.OnGroup(tp);
    h = net.Scatter(absl::StrCat("act", i), h);
    h = net.Gather(absl::StrCat("act", i), net.Call(absl::StrCat("norm", i), {h}, {16, 64}));
  }
  net.Out(h, SlotKind::kOutput);
  return net.Build();
}

std::set<std::vector<std::string>> BucketsOf(const Graph& graph, const Plan& plan, GroupId group) {
  std::set<std::vector<std::string>> found;
  for (const Bucket& bucket : plan.buckets) {
    const Collective& first = graph.collective(graph.collective_of(bucket.members[0]));
    if (first.group == group) found.insert(Members(graph, bucket));
  }
  return found;
}

TEST(GreedyProperty, A17_GroupsDoNotDisturbEachOther) {
  size_t spread = 0;
  for (uint32_t seed = 0; seed < Seeds(60); ++seed) {
    const Graph graph = ManyGroups(seed);
    const Costs costs = CostsOf(graph);
    PlanOptions options = GreedyOptions({}, seed % 2 == 0 ? 1500 : kNoLimit);
    const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::map<GroupId, int64_t> caps;
    for (size_t c = 0; c < graph.collectives().size(); ++c) {
      const auto cap = AutoCapBytes(costs, static_cast<CollectiveId>(c));
      EXPECT_EQ(caps.emplace(graph.collectives()[c].group, cap).first->second, cap);
    }
    for (const Bucket& bucket : plan->buckets) {
      const GroupId group = graph.collective(graph.collective_of(bucket.members[0])).group;
      EXPECT_LE(bucket.bytes, caps[group]) << "seed " << seed;
      const NodeId first = *std::min_element(bucket.members.begin(), bucket.members.end());
      const NodeId last = *std::max_element(bucket.members.begin(), bucket.members.end());
      for (const Collective& between : graph.collectives()) {
        if (between.start > first && between.start < last && between.group != group) ++spread;
      }
      for (const NodeId member : bucket.members) {
        EXPECT_EQ(std::string(graph.node_name(member)).find("act"), std::string::npos);
      }
    }
    options.primary_group_only = true;
    const absl::StatusOr<Plan> primary = MakePlan(graph, costs, options);
    ASSERT_TRUE(primary.ok()) << primary.status();
    EXPECT_FALSE(BucketsOf(graph, *plan, 0).empty());
    EXPECT_EQ(BucketsOf(graph, *plan, 0), BucketsOf(graph, *primary, 0)) << "seed " << seed;
    EXPECT_TRUE(BucketsOf(graph, *primary, 2).empty());
  }
  EXPECT_GT(static_cast<int64_t>(spread),
            Share(1000));  // members do stand on either side of other groups' collectives
}

TEST(GreedyProperty, TheSamePlanComesTwice) {
  const Graph graph = ManyGroups(7);
  const Plan a = Greedy(graph, GreedyOptions({})), b = Greedy(graph, GreedyOptions({}));
  EXPECT_EQ(a.order, b.order);
  EXPECT_EQ(Buckets(graph, a), Buckets(graph, b));
}

}  // namespace
}  // namespace bucketd::testing
