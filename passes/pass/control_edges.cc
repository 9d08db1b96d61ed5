#include "passes/pass/control_edges.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "passes/pass/schedule.h"

namespace bucketd {
namespace {

constexpr int kMaxVisits = 64;  // of one search for a data path

size_t Index(int32_t i) { return static_cast<size_t>(i); }

class Collector {
 public:
  Collector(const Graph& graph, const Plan& plan)
      : graph_(graph),
        items_(graph, Constraints(), plan.buckets),
        position_(Index(items_.size()), -1),
        marked_(Index(items_.size()), -1),
        seen_(Index(items_.size()), -1) {
    for (const Step& step : plan.order) {
      const int32_t item = items_.item(step);
      position_[Index(item)] = static_cast<int32_t>(order_.size());
      order_.push_back(item);
      if (step.kind == Step::Kind::kNode && graph.is_compute(step.id)) compute_.push_back(item);
    }
    chained_.assign(compute_.size() + 1, 0);
  }

  std::vector<ControlEdge> Run(absl::Span<const LaunchOverlap> overlap) {
    // Hiding nodes of a launch, at its start item.
    std::vector<const std::vector<NodeId>*> hidden_by(Index(items_.size()), nullptr);
    for (const LaunchOverlap& launch : overlap) {
      const int32_t start = launch.bucket >= 0 ? items_.start_item(launch.bucket)
                                               : graph_.collective(launch.collective).start;
      hidden_by[Index(start)] = &launch.hidden_by;
    }
    for (const int32_t start : order_) {
      const int32_t wait = WaitOf(start);
      if (wait < 0) continue;
      const std::vector<NodeId>* nodes = hidden_by[Index(start)];
      if (nodes != nullptr && !nodes->empty()) {
        AddHidden(start, wait, *nodes);
      } else {
        AddBetween(start, wait);
      }
    }
    AddChain();
    return std::move(edges_);
  }

 private:
  // Of a launch's start; -1 for anything else.
  int32_t WaitOf(int32_t item) const {
    const Step step = items_.step(item);
    if (step.kind == Step::Kind::kStart) return items_.wait_item(step.id);
    if (step.kind != Step::Kind::kNode || graph_.kind(step.id) != NodeKind::kCollective) return -1;
    return graph_.collective(graph_.collective_of(step.id)).wait;
  }

  bool IsCommunication(int32_t item) const {
    const Step step = items_.step(item);
    return step.kind != Step::Kind::kNode || graph_.kind(step.id) == NodeKind::kCollective ||
           graph_.kind(step.id) == NodeKind::kWait;
  }

  void Add(int32_t before, int32_t after) {
    edges_.push_back({items_.step(before), items_.step(after)});
  }

  void AddHidden(int32_t start, int32_t wait, const std::vector<NodeId>& nodes) {
    std::vector<int32_t> hiding;
    for (const NodeId n : nodes) {
      const int32_t at = position_[Index(n)];  // -1: inside a bucket
      if (at <= position_[Index(start)] || at >= position_[Index(wait)]) continue;
      if (!IsCommunication(n)) hiding.push_back(n);
    }
    std::sort(hiding.begin(), hiding.end(),
              [&](int32_t a, int32_t b) { return position_[Index(a)] < position_[Index(b)]; });
    hiding.erase(std::unique(hiding.begin(), hiding.end()), hiding.end());
    // One that follows another by data needs no edge from the start, and that other one none to
    // the wait.
    for (size_t i = 0; i < hiding.size(); ++i) marked_[Index(hiding[i])] = static_cast<int32_t>(i);
    std::vector<bool> follows(hiding.size()), followed(hiding.size());
    for (size_t i = 1; i < hiding.size(); ++i) {
      Search(hiding[i], position_[Index(hiding[0])], [&](int32_t item) {
        const int32_t found = marked_[Index(item)];
        if (found < 0) return;
        follows[i] = true;
        followed[Index(found)] = true;
      });
    }
    for (const int32_t item : hiding) marked_[Index(item)] = -1;
    for (size_t i = 0; i < hiding.size(); ++i) {
      if (!follows[i]) Add(start, hiding[i]);
    }
    for (size_t i = 0; i < hiding.size(); ++i) {
      if (!followed[i]) Add(hiding[i], wait);
    }
  }

  void AddBetween(int32_t start, int32_t wait) {
    const auto after = [&](int32_t item) {
      return std::partition_point(compute_.begin(), compute_.end(), [&](int32_t node) {
        return position_[Index(node)] < position_[Index(item)];
      });
    };
    const auto first = after(start), end = after(wait);
    if (first == end) return;
    Add(start, *first);
    Add(*(end - 1), wait);
    ++chained_[static_cast<size_t>(first - compute_.begin())];
    --chained_[static_cast<size_t>(end - 1 - compute_.begin())];
  }

  // Compute nodes that stand between one launch's start and wait, one after the other.
  void AddChain() {
    int32_t windows = 0;
    for (size_t i = 0; i + 1 < compute_.size(); ++i) {
      windows += chained_[i];
      if (windows == 0) continue;
      bool implied = false;
      Search(compute_[i + 1], position_[Index(compute_[i])],
             [&](int32_t item) { implied = implied || item == compute_[i]; });
      if (!implied) Add(compute_[i], compute_[i + 1]);
    }
  }

  // Calls f for what `item` is computed from, no further back than `position`.
  template <typename F>
  void Search(int32_t item, int32_t position, F f) {
    const int32_t stamp = stamp_++;
    std::vector<int32_t> stack = {item};
    int visits = 0;
    while (!stack.empty()) {
      const int32_t at = stack.back();
      stack.pop_back();
      for (const int32_t x : items_.before(at)) {
        if (++visits > kMaxVisits) return;
        if (position_[Index(x)] < position) continue;
        if (std::exchange(seen_[Index(x)], stamp) == stamp) continue;
        f(x);
        stack.push_back(x);
      }
    }
  }

  const Graph& graph_;
  const ItemGraph items_;
  std::vector<int32_t> order_, position_, compute_;
  std::vector<int32_t> chained_;  // by compute node: windows that begin here, less those that end
  std::vector<int32_t> marked_, seen_;
  int32_t stamp_ = 0;
  std::vector<ControlEdge> edges_;
};

}  // namespace

std::vector<ControlEdge> ControlEdges(const Graph& graph, const Plan& plan,
                                      absl::Span<const LaunchOverlap> overlap) {
  return Collector(graph, plan).Run(overlap);
}

}  // namespace bucketd
