#include "passes/auto/late_waits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "passes/pass/plan_launch.h"
#include "passes/sim/simulator.h"

namespace bucketd::search {
namespace {

class Settler {
 public:
  Settler(const PassContext& context, const Problem& problem, const Plan& plan)
      : context_(context), graph_(context.graph), problem_(problem), plan_(plan) {
    PlaceNodes();
    FindPosts();
  }

  // The order with its waits as late as may be, those of reductions at most `reach` steps later.
  std::vector<Step> Order(int32_t reach) const {
    const size_t size = plan_.order.size();
    std::vector<int32_t> place(size);
    std::vector<std::vector<int32_t>> late(size);  // before this step, last one first
    std::vector<int32_t> first_use(size, static_cast<int32_t>(size) - 1);
    for (size_t p = size; p-- > 0;) {
      const auto here = static_cast<int32_t>(p);
      place[p] = std::min(first_use[p], here + Reach(plan_.order[p], reach));
      if (place[p] != here) late[Index(place[p])].push_back(static_cast<int32_t>(p));
      ForInputs(plan_.order[p], [&](int32_t input) {
        first_use[Index(input)] = std::min(first_use[Index(input)], place[p]);
      });
    }
    std::vector<Step> order;
    order.reserve(size);
    for (size_t p = 0; p < size; ++p) {
      for (size_t i = late[p].size(); i-- > 0;) order.push_back(plan_.order[Index(late[p][i])]);
      if (place[p] == static_cast<int32_t>(p)) order.push_back(plan_.order[p]);
    }
    return order;
  }

 private:
  // Where each node stands, in or out of a bucket.
  void PlaceNodes() {
    place_of_ = PlacesOf(graph_, plan_.buckets, plan_.order);
    const std::vector<Constraints::Edge>& edges = context_.constraints.edges;
    for (const Constraints::Edge& edge : edges) kept_before_.all.push_back(edge.before);
    size_t edge = 0;
    kept_before_.begin.clear();
    for (NodeId n = 0; n <= graph_.size(); ++n) {
      while (edge < edges.size() && edges[edge].after < n) ++edge;
      kept_before_.begin.push_back(static_cast<int32_t>(edge));
    }
  }

  // What nothing but results of reductions is computed for.
  void FindPosts() {
    is_post_.assign(Index(graph_.size()), false);
    for (LeaderId l = 0; l < problem_.size(); ++l) {
      const CollectiveId c = problem_.wait_of[Index(l)];
      if (!problem_.is_post[Index(l)] && c < 0) continue;
      if (problem_.start_of[Index(l)] >= 0) continue;
      if (c < 0) is_post_[Index(problem_.node[Index(l)])] = true;
      for (const NodeId n : problem_.followers.of(l)) is_post_[Index(n)] = true;
    }
  }

  CollectiveId WaitedFor(const Step& step) const {
    if (step.kind == Step::Kind::kWait) {
      return graph_.collective_of(plan_.buckets[Index(step.id)].members[0]);
    }
    if (step.kind != Step::Kind::kNode || graph_.kind(step.id) != NodeKind::kWait) return -1;
    return graph_.collective_of(step.id);
  }

  // How much later a step may stand.
  int32_t Reach(const Step& step, int32_t of_reductions) const {
    const auto any = static_cast<int32_t>(plan_.order.size());
    const CollectiveId c = WaitedFor(step);
    if (c >= 0) {
      const Transfer& t = problem_.transfer(c);
      return t.pinned ? 0 : t.use == Use::kSink ? of_reductions : any;
    }
    const bool post = step.kind == Step::Kind::kNode && is_post_[Index(step.id)];
    return post && !graph_.is_ordered(step.id) ? of_reductions : 0;
  }

  template <typename F>
  void ForInputsOf(NodeId n, F f) const {
    for (const NodeId x : graph_.inputs(n)) f(place_of_[Index(x)]);
    for (const NodeId x : kept_before_.of(n)) f(place_of_[Index(x)]);
  }

  template <typename F>
  void ForInputs(const Step& step, F f) const {
    if (step.kind == Step::Kind::kNode) {
      ForInputsOf(step.id, f);
      return;
    }
    for (const NodeId n : plan_.buckets[Index(step.id)].members) {
      const Collective& c = graph_.collective(graph_.collective_of(n));
      ForInputsOf(step.kind == Step::Kind::kStart ? c.start : c.wait, f);
    }
  }

  const PassContext& context_;
  const Graph& graph_;
  const Problem& problem_;
  const Plan& plan_;
  std::vector<int32_t> place_of_;  // of a node
  Csr kept_before_;                // constraints
  std::vector<bool> is_post_;      // of a node
};

}  // namespace

Prediction SettleWaits(const PassContext& context, const Problem& problem, int64_t limit,
                       const Prediction& before, Plan& plan) {
  const Settler settler(context, problem, plan);
  const int64_t most =
      std::max(before.peak_bytes, std::min(limit, context.program_order.peak_bytes));
  const auto size = static_cast<int32_t>(plan.order.size());
  for (const int32_t reach : {size, size / 8, size / 32, 0}) {
    std::vector<Step> order = settler.Order(reach);
    std::swap(plan.order, order);
    const Prediction now = Simulate(context.graph, plan, context.costs).prediction;
    // More memory, within the limit, only where that makes the step faster.
    const int64_t allowed = now.total_ps < before.total_ps ? limit : most;
    if (now.peak_bytes <= allowed && now.total_ps <= before.total_ps) return now;
    std::swap(plan.order, order);
  }
  return before;
}

}  // namespace bucketd::search
