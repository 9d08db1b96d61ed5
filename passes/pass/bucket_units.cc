#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/pass/numerics.h"
#include "passes/pass/passes.h"
#include "passes/pass/schedule.h"

namespace bucketd {
namespace {

size_t Index(int32_t i) { return static_cast<size_t>(i); }

bool IsReduction(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllReduce;
}

// How deep each candidate stands in chains of candidates: gathers behind gathers, reductions
// (reduce-scatters and all-reduces, in whichever order HSDP has them) behind reductions. Members of
// one depth cannot depend on one another; buckets of one depth each cannot form a cycle either, for
// every path from one to another leads from gathers to reductions or goes deeper, and all-gathers
// that follow a reduction are no candidates. So an order always exists, and finding that out takes
// one walk. What may not merge stays a node of its own and counts for nothing.
class Depths {
 public:
  Depths(const PassContext& context, std::vector<bool>& candidate) : graph_(context.graph) {
    of_.resize(graph_.collectives().size());
    std::vector<int32_t> gathers(Index(graph_.size())), reductions(Index(graph_.size()));
    size_t edge = 0;
    const std::vector<Constraints::Edge>& edges = context.constraints.edges;
    for (NodeId n = 0; n < graph_.size(); ++n) {
      const auto follow = [&](NodeId x) {
        gathers[Index(n)] = std::max(gathers[Index(n)], gathers[Index(x)]);
        reductions[Index(n)] = std::max(reductions[Index(n)], reductions[Index(x)]);
      };
      for (const NodeId x : graph_.inputs(n)) follow(x);
      for (; edge < edges.size() && edges[edge].after == n; ++edge) follow(edges[edge].before);
      if (graph_.kind(n) != NodeKind::kCollective) continue;
      const CollectiveId c = graph_.collective_of(n);
      const CollectiveKind kind = graph_.collective(c).kind;
      if (!candidate[Index(c)] || !MayMerge(kind, context.options)) continue;
      if (IsReduction(kind)) {
        of_[Index(c)] = ++reductions[Index(n)];
      } else if (reductions[Index(n)] > 0) {
        candidate[Index(c)] = false;
        refused_.push_back(n);
      } else {
        of_[Index(c)] = ++gathers[Index(n)];
      }
    }
  }

  int32_t operator[](CollectiveId c) const { return of_[Index(c)]; }
  const std::vector<NodeId>& refused() const { return refused_; }

 private:
  const Graph& graph_;
  std::vector<int32_t> of_;
  std::vector<NodeId> refused_;
};

// Merges the parameter all-gathers and gradient reductions of each unit, by kind, direction, group,
// reduce op and dtype, all-reduces only where the options let sums change. The order keeps program
// order as far as the buckets let it. All other collectives, and those without a partner, stay
// nodes. Fills launches; all-reduces that the options leave alone for good are none.
class BucketUnits : public Pass {
 public:
  absl::string_view name() const override { return "bucket-units"; }

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
        const bool left_alone = collective.kind == CollectiveKind::kAllReduce &&
                                context.options.bucket_all_reduce == Choice::kOff;
        candidate[Index(c)] = context.tags[c].tag != Tag::kNone && !left_alone &&
                              !context.constraints.pinned[Index(c)] &&
                              graph.outputs(collective.start).size() == 1 &&
                              graph.inputs(collective.start).size() == 1;
      }
    }
    return candidate;
  }

  static void Collect(const PassContext& context, const std::vector<bool>& candidate,
                      const Depths& depths, int32_t unit, std::vector<Group>& groups) {
    std::map<std::tuple<CollectiveKind, Direction, GroupId, ReduceOp, DType, int32_t>, size_t> at;
    for (const CollectiveId c : context.units[Index(unit)].collectives) {
      if (!candidate[Index(c)]) continue;
      const Collective& collective = context.graph.collective(c);
      const Direction direction = context.directions[Index(c)];
      const auto [it, added] =
          at.emplace(std::make_tuple(collective.kind, direction, collective.group,
                                     collective.reduce_op, collective.dtype, depths[c]),
                     groups.size());
      if (added) groups.push_back({Launch{-1, -1, collective.kind, direction, unit}, {}});
      groups[it->second].second.push_back(collective.start);
    }
  }

  // All-gathers stand at their first member, reductions at their last.
  static void SortByExecution(std::vector<Group>& groups) {
    const auto place = [](const Group& group) {
      return group.first.kind == CollectiveKind::kAllGather ? group.second.front()
                                                            : group.second.back();
    };
    std::sort(groups.begin(), groups.end(),
              [&](const Group& a, const Group& b) { return place(a) < place(b); });
  }

  static void Add(PassContext& context, const Group& group, Plan& plan,
                  std::vector<Launch>& singles) {
    Launch launch = group.first;
    if (group.second.size() > 1 && MayMerge(launch.kind, context.options)) {
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
    Diagnostic pinned, reduced, kept;
    for (const Unit& unit : context.units) {
      for (const CollectiveId c : unit.collectives) {
        const Collective& collective = context.graph.collective(c);
        if (context.constraints.pinned[Index(c)]) {
          pinned.nodes.push_back(collective.start);
        } else if (collective.kind == CollectiveKind::kAllReduce &&
                   !MayMerge(collective.kind, context.options)) {
          reduced.nodes.push_back(collective.start);
        } else if (!MayMerge(collective.kind, context.options)) {
          kept.nodes.push_back(collective.start);
        }
      }
    }
    const auto add = [&](Diagnostic& diagnostic, absl::string_view code, absl::string_view text) {
      if (diagnostic.nodes.empty()) return;
      diagnostic.code = std::string(code);
      diagnostic.text = absl::StrCat(diagnostic.nodes.size(), " ", text);
      diagnostics.push_back(std::move(diagnostic));
    };
    add(pinned, "pinned-collective",
        "parameter collectives stay alone: in-place ops write what they read or make");
    add(reduced, "all-reduce-unmerged",
        "all-reduces of gradients stay alone: merging them changes sums (numerics free, or "
        "bucket_all_reduce on, allows it)");
    add(kept, "numerics-unmerged",
        absl::StrCat("reduce-scatters stay alone: merging them can change sums on ",
                     context.options.backend));
    Diagnostic dependent;
    dependent.nodes = depths.refused();
    add(dependent, "dependent-collective",
        "parameter all-gathers stay alone: they depend on a gradient's reduction");
  }
};

}  // namespace

std::unique_ptr<Pass> MakeBucketUnitsPass() { return std::make_unique<BucketUnits>(); }

}  // namespace bucketd
