#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/ir/bucket_key.h"
#include "passes/pass/numerics.h"
#include "passes/pass/passes.h"
#include "passes/pass/schedule.h"

namespace bucketd {
namespace {

// How deep each candidate stands in chains of candidates. Members of one depth cannot depend on one
// another. Every path from a candidate to the next leads from gathers to reductions, from one kind
// of reduction to the one that follows it in this graph (all-reduce then reduce-scatter, or the
// other way round), or deeper among its kind; where reductions of both kinds follow on each other,
// one depth counts them all. So buckets of one depth each cannot form a cycle: an order always
// exists, and finding that out takes one walk. A gather behind a reduction is no candidate, and
// what may not merge stays a node of its own and counts for nothing.
class Depths {
 public:
  Depths(const PassContext& context, std::vector<bool>& candidate) : graph_(context.graph) {
    reached_.resize(Index(graph_.size()));
    own_.resize(graph_.collectives().size());
    all_ = own_;
    size_t edge = 0;
    const std::vector<Constraints::Edge>& edges = context.constraints.edges;
    for (NodeId n = 0; n < graph_.size(); ++n) {
      for (const NodeId x : graph_.inputs(n)) Follow(x, n);
      for (; edge < edges.size() && edges[edge].after == n; ++edge) Follow(edges[edge].before, n);
      if (graph_.kind(n) != NodeKind::kCollective) continue;
      const CollectiveId c = graph_.collective_of(n);
      if (!candidate[Index(c)] || !MayMerge(graph_, c, context.tags, context.options)) continue;
      Count(c, graph_.collective(c).kind, candidate);
    }
  }

  int32_t operator[](CollectiveId c) const {
    return scatters_reduced_ && reduces_scattered_ ? all_[Index(c)] : own_[Index(c)];
  }
  const std::vector<NodeId>& refused() const { return refused_; }

 private:
  // The depths that a node's inputs have reached.
  struct Reached {
    int32_t gathers = 0, scatters = 0, reduces = 0, reductions = 0;
  };

  void Follow(NodeId from, NodeId to) {
    const Reached& there = reached_[Index(from)];
    Reached& here = reached_[Index(to)];
    here.gathers = std::max(here.gathers, there.gathers);
    here.scatters = std::max(here.scatters, there.scatters);
    here.reduces = std::max(here.reduces, there.reduces);
    here.reductions = std::max(here.reductions, there.reductions);
  }

  void Count(CollectiveId c, CollectiveKind kind, std::vector<bool>& candidate) {
    const NodeId start = graph_.collective(c).start;
    Reached& here = reached_[Index(start)];
    if (Gathers(kind) && here.reductions > 0) {
      candidate[Index(c)] = false;
      refused_.push_back(start);
    } else if (Gathers(kind)) {
      own_[Index(c)] = all_[Index(c)] = ++here.gathers;
    } else {
      const bool scatter = Scatters(kind);
      scatters_reduced_ = scatters_reduced_ || (!scatter && here.scatters > 0);
      reduces_scattered_ = reduces_scattered_ || (scatter && here.reduces > 0);
      own_[Index(c)] = scatter ? ++here.scatters : ++here.reduces;
      all_[Index(c)] = ++here.reductions;
    }
  }

  const Graph& graph_;
  std::vector<Reached> reached_;    // one a node
  std::vector<int32_t> own_, all_;  // among its kind; among all reductions
  bool scatters_reduced_ = false, reduces_scattered_ = false;
  std::vector<NodeId> refused_;
};

// Merges the parameter all-gathers and gradient reductions of each unit, by kind, direction, group,
// reduce op and dtype, all-reduces only where the options let sums change. The order keeps program
// order as far as the buckets let it. All other collectives, and those without a partner, stay
// nodes. Fills launches; all-reduces that the options leave alone for good are none.
class BucketUnits : public Pass {
 public:
  absl::string_view name() const override { return "bucket-units"; }
  bool is_first_to_bucket() const override { return true; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    std::vector<bool> candidate = Candidates(context);
    const Depths depths(context, candidate);
    std::vector<Group> groups;
    for (size_t u = 0; u < context.units.size(); ++u) {
      Collect(context, candidate, depths, static_cast<int32_t>(u), groups);
    }
    Report(context, depths, plan.diagnostics);
    SortByExecution(groups);
    context.launches.clear();
    std::vector<Launch> singles;
    for (const Group& group : groups) Add(context, group, plan, singles);
    context.launches.insert(context.launches.end(), singles.begin(), singles.end());
    if (plan.buckets.empty()) return false;
    ASSIGN_OR_RETURN(const Scheduler scheduler,
                     Scheduler::Make(context, plan.buckets, context.launches));
    plan.order = scheduler.Order(std::vector<int32_t>(context.launches.size(), 0));
    return true;
  }

 private:
  using Group = std::pair<Launch, std::vector<NodeId>>;

  static std::vector<bool> Candidates(const PassContext& context) {
    const Graph& graph = context.graph;
    std::vector<bool> candidate(graph.collectives().size());
    for (const Unit& unit : context.units) {
      for (const CollectiveId c : unit.collectives) {
        const Collective& collective = graph.collective(c);
        const bool left_alone = ReducesWhole(collective.kind) && !context.options.bucket_all_reduce;
        // What numerics keep apart is a launch all the same, so MayMerge() is asked later.
        candidate[Index(c)] =
            context.tags[c].tag != Tag::kNone && !left_alone && FitsBucket(context, c);
      }
    }
    return candidate;
  }

  static void Collect(const PassContext& context, const std::vector<bool>& candidate,
                      const Depths& depths, int32_t unit, std::vector<Group>& groups) {
    absl::flat_hash_map<std::tuple<BucketKey, Direction, int32_t>, size_t> at;
    for (const CollectiveId c : context.units[Index(unit)].collectives) {
      if (!candidate[Index(c)]) continue;
      const Collective& collective = context.graph.collective(c);
      const Direction direction = context.directions[Index(c)];
      const auto [it, added] = at.emplace(
          std::make_tuple(BucketKey::Of(collective), direction, depths[c]), groups.size());
      if (added) groups.push_back({Launch{-1, -1, collective.kind, direction, unit}, {}});
      groups[it->second].second.push_back(collective.start);
    }
  }

  // All-gathers stand at their first member, reductions at their last.
  static void SortByExecution(std::vector<Group>& groups) {
    const auto place = [](const Group& group) {
      return Gathers(group.first.kind) ? group.second.front() : group.second.back();
    };
    std::sort(groups.begin(), groups.end(),
              [&](const Group& a, const Group& b) { return place(a) < place(b); });
  }

  static void Add(PassContext& context, const Group& group, Plan& plan,
                  std::vector<Launch>& singles) {
    Launch launch = group.first;
    const CollectiveId first = context.graph.collective_of(group.second[0]);
    if (group.second.size() > 1 && MayMerge(context.graph, first, context.tags, context.options)) {
      Bucket bucket;
      bucket.members = group.second;
      bucket.mode = ModeOf(context.graph, group.second, context.options);
      bucket.name =
          absl::StrCat(context.units[Index(launch.unit)].name, " ", Name(launch.direction));
      launch.bucket = static_cast<BucketId>(plan.buckets.size());
      LayOut(context.graph, bucket);
      plan.buckets.push_back(std::move(bucket));
      context.launches.push_back(launch);
      return;
    }
    for (const NodeId start : group.second) {
      launch.collective = context.graph.collective_of(start);
      singles.push_back(launch);
    }
  }

  static void Report(const PassContext& context, const Depths& depths,
                     std::vector<Diagnostic>& diagnostics) {
    std::vector<NodeId> pinned;
    for (const Unit& unit : context.units) {
      for (const CollectiveId c : unit.collectives) {
        if (context.constraints.pinned[Index(c)]) {
          pinned.push_back(context.graph.collective(c).start);
        }
      }
    }
    AddDiagnostic("pinned-collective", std::move(pinned),
                  "parameter collectives stay alone: in-place ops write what they read or make",
                  diagnostics);
    AddDiagnostic("dependent-collective", depths.refused(),
                  "parameter all-gathers stay alone: they depend on a gradient's reduction",
                  diagnostics);
  }
};

}  // namespace

std::unique_ptr<Pass> MakeBucketUnitsPass() { return std::make_unique<BucketUnits>(); }

}  // namespace bucketd
