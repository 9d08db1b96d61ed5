#include <algorithm>
#include <utility>

#include "passes/base/index.h"
#include "passes/pass/overlap_bucket/overlap_bucket_relations.h"

namespace bucketd::overlap_bucket {

std::vector<Edge> HidingEdges(const Model& model) {
  std::vector<Edge> edges;
  for (const LaunchInfo& launch : model.launches) {
    if (!launch.fully_hidden()) continue;
    for (const int32_t item : launch.hidden_by) {
      edges.push_back({launch.start_item, item});
      edges.push_back({item, launch.wait_item});
    }
  }
  return edges;
}

absl::StatusOr<std::vector<int32_t>> Relations::Order(const ItemGraph& items,
                                                      const std::vector<int32_t>& ids,
                                                      std::vector<Edge> edges) const {
  std::optional<std::vector<int32_t>> order = StableTopologicalSort(ids, items, edges);
  if (order.has_value()) return *std::move(order);
  return absl::InternalError("the buckets and what hides them admit no order");
}

Quotient::Quotient(const Model& model, GroupTimelines& timeline)
    : model_(model),
      timeline_(timeline),
      seen_(Index(model.items()), 0),
      visits_left_(kVisitsPerItem * model.items()) {
  for (int32_t item = 0; item < model.items(); ++item) {
    node_of_.push_back(item);
    circle_.push_back(item);
  }
  std::vector<Edge> edges = HidingEdges(model);
  std::sort(edges.begin(), edges.end());
  after_ = MakeCsr(model.items(), [&](auto add) {
    for (const Edge& edge : edges) add(edge.before, edge.after);
  });
  before_ = MakeCsr(model.items(), [&](auto add) {
    for (const Edge& edge : edges) add(edge.after, edge.before);
  });
  FindBounds();
}

void Quotient::Contract(int32_t into, int32_t item) {
  const int32_t node = node_of_[Index(into)];
  node_of_[Index(item)] = node;
  circle_[Index(item)] = circle_[Index(node)];
  circle_[Index(node)] = item;
  Bounds& bounds = bounds_[Index(node)];
  bounds.last_before = std::max(bounds.last_before, bounds_[Index(item)].last_before);
  bounds.first_after = std::min(bounds.first_after, bounds_[Index(item)].first_after);
}

template <typename F>
void Quotient::ForEvents(int32_t node, F f) const {
  int32_t item = node;
  do {
    for (int32_t e = timeline_.first_of_item(item); e >= 0; e = timeline_.event(e).next_of_item) {
      if (timeline_.event(e).linked) f(timeline_.event(e));
    }
    item = circle_[Index(item)];
  } while (item != node);
}

// Along data and hiding edges, until f returns false; then returns false too.
template <bool kBackward, typename F>
bool Quotient::ForLasting(int32_t node, F f) const {
  const Csr& hiding = kBackward ? before_ : after_;
  int32_t item = node;
  do {
    for (const int32_t x :
         kBackward ? model_.items_of_plan.before(item) : model_.items_of_plan.after(item)) {
      if (!f(node_of_[Index(x)])) return false;
    }
    for (const int32_t x : hiding.of(item)) {
      if (!f(node_of_[Index(x)])) return false;
    }
    item = circle_[Index(item)];
  } while (item != node);
  return true;
}

template <bool kBackward, typename F>
void Quotient::ForNeighbours(int32_t node, F f) const {
  if (!ForLasting<kBackward>(node, f)) return;
  ForEvents(node, [&](const GroupTimelines::Event& event) {
    const int32_t other = kBackward ? event.prev : event.next;
    if (other >= 0 && timeline_.event(other).slot == event.slot) {
      f(node_of_[Index(timeline_.event(other).item)]);
      return;
    }
    const int32_t compute = kBackward ? event.slot - 1 : event.slot;
    if (compute >= 0 && Index(compute) < model_.compute.size()) f(model_.compute[Index(compute)]);
  });
}

void Quotient::FindBounds() {
  bounds_.assign(Index(model_.items()), {-1, static_cast<int32_t>(model_.compute.size())});
  const auto index = [&](int32_t item) { return model_.compute_index[Index(item)]; };
  for (const int32_t item : model_.order) {
    int32_t& last = bounds_[Index(item)].last_before;
    ForLasting<true>(item, [&](int32_t x) {
      last = std::max(last, index(x) >= 0 ? index(x) : bounds_[Index(x)].last_before);
      return true;
    });
  }
  for (size_t i = model_.order.size(); i-- > 0;) {
    const int32_t item = model_.order[i];
    int32_t& first = bounds_[Index(item)].first_after;
    ForLasting<false>(item, [&](int32_t x) {
      first = std::min(first, index(x) >= 0 ? index(x) : bounds_[Index(x)].first_after);
      return true;
    });
  }
}

bool Quotient::Apart(int32_t a, int32_t b) const {
  const Bounds& x = bounds_[Index(node_of_[Index(a)])];
  const Bounds& y = bounds_[Index(node_of_[Index(b)])];
  return x.first_after <= y.last_before || y.first_after <= x.last_before;
}

bool Quotient::Conflict(absl::Span<const int32_t> members, int32_t candidate) {
  const LaunchInfo& first = model_.launches[Index(members.front())];
  const LaunchInfo& added = model_.launches[Index(candidate)];
  return Apart(first.start_item, added.start_item) || Apart(first.wait_item, added.wait_item);
}

// What `at`, which a search has come upon, says about a path between `node`, whose event `linked`
// is, and where the search began. Backward: is there one from `node` to `at`? Forward: from `at`
// to `node`?
template <bool kBackward>
Quotient::Answer Quotient::Look(const GroupTimelines::Event& linked, int32_t node,
                                int32_t at) const {
  if (at == node) return Answer::kPath;
  const auto compare = [](int32_t a, int32_t b) {  // a beyond b, seen along the search's aim
    return kBackward ? a > b : a < b;
  };
  const int32_t compute = model_.compute_index[Index(at)];
  if (compute >= 0) {
    const bool beyond = kBackward ? compute >= linked.slot : compute < linked.slot;
    return beyond ? Answer::kPath : Answer::kNo;
  }
  Answer answer = Answer::kLookOn;
  ForEvents(at, [&](const GroupTimelines::Event& event) {
    if (answer != Answer::kLookOn) return;
    if (event.slot != linked.slot) {
      answer = compare(event.slot, linked.slot) ? Answer::kPath : Answer::kNo;
    } else if (event.group == linked.group) {
      answer = compare(event.position, linked.position) ? Answer::kPath : Answer::kNo;
    }
  });
  return answer;
}

template <bool kBackward>
bool Quotient::Search(const GroupTimelines::Event& linked, int32_t node, int32_t loose) {
  ++stamp_;
  const int32_t most = visits_left_ > 0 ? kMaxVisits : kFewVisits;
  int32_t visits = 0;
  bool found = false;
  stack_.clear();
  const auto look = [&](int32_t at) {
    found = found || ++visits > most;
    if (found || seen_[Index(at)] == stamp_) return !found;
    seen_[Index(at)] = stamp_;
    const Answer answer = Look<kBackward>(linked, node, at);
    found = answer == Answer::kPath;
    if (answer == Answer::kLookOn) stack_.push_back(at);
    return !found;
  };
  look(loose);
  while (!found && !stack_.empty()) {
    const int32_t at = stack_.back();
    stack_.pop_back();
    ForNeighbours<kBackward>(at, look);
  }
  visits_left_ -= visits;
  return found;
}

// Either way between a node whose event is linked and one whose event is not.
bool Quotient::Path(int32_t linked, int32_t loose) {
  const GroupTimelines::Event& event = timeline_.event(linked);
  const int32_t node = node_of_[Index(event.item)];
  const int32_t other = node_of_[Index(timeline_.event(loose).item)];
  return Search<true>(event, node, other) || Search<false>(event, node, other);
}

// Both moved events leave their timelines before anything is looked for: what is waited for late
// would else stand between a start and an earlier one. Paths between waits are looked for with the
// starts not yet merged: one that passes the merged start would be one between the starts.
bool Quotient::TryMerge(int32_t first, int32_t candidate, bool start_at_first, bool wait_at_first) {
  const int32_t start = timeline_.start(start_at_first ? first : candidate);
  const int32_t wait = timeline_.wait(wait_at_first ? first : candidate);
  const int32_t moved_start = timeline_.start(start_at_first ? candidate : first);
  const int32_t moved_wait = timeline_.wait(wait_at_first ? candidate : first);
  timeline_.Unlink(moved_start);
  timeline_.Unlink(moved_wait);
  const bool path = Path(start, moved_start) || Path(wait, moved_wait);
  timeline_.Relink(moved_wait);
  timeline_.Relink(moved_start);
  if (path) return false;
  const LaunchInfo& into = model_.launches[Index(first)];
  const LaunchInfo& added = model_.launches[Index(candidate)];
  Contract(into.start_item, added.start_item);
  Contract(into.wait_item, added.wait_item);
  return true;
}

std::vector<Edge> Quotient::Edges() const {
  std::vector<Edge> edges;
  for (size_t i = 1; i < model_.compute.size(); ++i) {
    edges.push_back({model_.compute[i - 1], model_.compute[i]});
  }
  const auto compute = [&](int32_t slot) { return model_.compute[Index(slot)]; };
  for (int32_t e = 0; e < timeline_.size(); ++e) {
    const GroupTimelines::Event& event = timeline_.event(e);
    if (!event.linked) continue;
    const bool after_event = event.prev >= 0 && timeline_.event(event.prev).slot == event.slot;
    if (after_event) edges.push_back({timeline_.event(event.prev).item, event.item});
    if (!after_event && event.slot > 0) edges.push_back({compute(event.slot - 1), event.item});
    const bool last = event.next < 0 || timeline_.event(event.next).slot != event.slot;
    if (last && Index(event.slot) < model_.compute.size()) {
      edges.push_back({event.item, compute(event.slot)});
    }
  }
  const std::vector<Edge> hiding = HidingEdges(model_);
  edges.insert(edges.end(), hiding.begin(), hiding.end());
  return edges;
}

}  // namespace bucketd::overlap_bucket
