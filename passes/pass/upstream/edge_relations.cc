#include "passes/pass/upstream/edge_relations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "passes/base/cancellation.h"
#include "passes/base/index.h"
#include "passes/pass/upstream/torch_overlap.h"

namespace bucketd::upstream {
namespace {

constexpr int64_t kMaxAncestorBits = int64_t{1} << 31;
// Compute nodes are events of every group.
constexpr size_t kMaxEvents = size_t{1} << 24;

template <typename List>
auto Find(List& list, int32_t item) {
  return std::find_if(list.begin(), list.end(), [&](const auto& dep) { return dep.item == item; });
}

// Takes out, one after the other, each edge from `before` to `after` where a path leads back.
// Returns how many. Of a plan that nobody wants any more, which looks no further, some number.
class CycleRepair {
 public:
  CycleRepair(const ItemGraph& items, std::vector<Edge>& edges)
      : items_(items), edges_(edges), kept_(edges.size(), true), seen_(Index(items.size())) {
    into_.resize(Index(items.size()));
    for (size_t e = 0; e < edges.size(); ++e) into_[Index(edges[e].after)].push_back(e);
  }

  size_t Run() {
    std::vector<Edge> kept;
    for (size_t e = 0; e < edges_.size() && !IsCancelled(); ++e) {
      kept_[e] = !IsAncestor(edges_[e].after, edges_[e].before);
      if (kept_[e]) kept.push_back(edges_[e]);
    }
    const size_t removed = edges_.size() - kept.size();
    edges_ = std::move(kept);
    return removed;
  }

 private:
  bool IsAncestor(int32_t ancestor, int32_t item) {
    ++stamp_;
    std::vector<int32_t> stack = {item};
    bool found = false;
    const auto look = [&](int32_t x) {
      found = found || x == ancestor;
      if (std::exchange(seen_[Index(x)], stamp_) != stamp_) stack.push_back(x);
    };
    while (!found && !stack.empty()) {
      const int32_t at = stack.back();
      stack.pop_back();
      for (const int32_t x : items_.before(at)) look(x);
      for (const size_t e : into_[Index(at)]) {
        if (kept_[e]) look(edges_[e].before);
      }
    }
    return found;
  }

  const ItemGraph& items_;
  std::vector<Edge>& edges_;
  std::vector<bool> kept_;
  std::vector<std::vector<size_t>> into_;
  std::vector<int32_t> seen_;
  int32_t stamp_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EdgeRelations>> EdgeRelations::Make(const Model& model,
                                                                   const Defects& defects) {
  size_t asked = 0;  // at most so many items' ancestors
  for (const LaunchInfo& launch : model.launches) asked += 2 + launch.hidden_by.size();
  asked = std::min(asked, Index(model.items()));
  if ((asked > 0 && static_cast<int64_t>(asked) > kMaxAncestorBits / model.items()) ||
      model.groups.size() * model.compute.size() > kMaxEvents) {
    return absl::FailedPreconditionError(absl::StrCat(
        "upstream: ", model.launches.size(), " launches of ", model.groups.size(), " groups among ",
        model.items(), " nodes are too many for the algorithm of torch 2.13, which is quadratic"));
  }
  return absl::WrapUnique(new EdgeRelations(model, defects));
}

EdgeRelations::EdgeRelations(const Model& model, const Defects& defects)
    : model_(model),
      defects_(defects),
      deps_(Index(model.items())),
      uses_(Index(model.items())),
      start_event_(model.launches.size(), -1),
      wait_event_(model.launches.size(), -1),
      sets_(Index(model.items())),
      bucket_of_(model.launches.size(), -1),
      hiding_before_(Index(model.items())),
      ancestors_(Index(model.items())),
      seen_(Index(model.items()), 0) {
  for (int32_t item = 0; item < model.items(); ++item) {
    first_of_set_.push_back(item);
    sets_[Index(item)] = {item};
  }
  AddTimelines();
  for (const Edge& edge : overlap_bucket::HidingEdges(model)) {
    AddEdge(edge.before, edge.after);
    hiding_before_[Index(edge.after)].push_back(edge.before);
  }
}

void EdgeRelations::AddTimelines() {
  for (const GroupId group : model_.groups) {
    std::vector<bool> hiding(Index(model_.items()));
    int32_t last = -1;
    for (const int32_t item : model_.order) {
      const int32_t l = model_.launch_of[Index(item)];
      const bool own = l >= 0 && model_.launches[Index(l)].group == group;
      if (!own && model_.compute_index[Index(item)] < 0 && !hiding[Index(item)]) continue;
      const auto e = static_cast<int32_t>(events_.size());
      events_.push_back({item, last, -1});
      if (own) {
        const LaunchInfo& launch = model_.launches[Index(l)];
        const bool start = item == launch.start_item;
        (start ? start_event_ : wait_event_)[Index(l)] = e;
        if (start) {
          for (const int32_t h : launch.hidden_by) hiding[Index(h)] = true;
        }
      }
      if (last >= 0) {
        events_[Index(last)].next = e;
        AddEdge(ItemOf(last), item);
      }
      last = e;
    }
  }
}

int32_t EdgeRelations::ItemOf(int32_t event) const { return events_[Index(event)].item; }

void EdgeRelations::AddEdge(int32_t before, int32_t after) {
  const auto add = [&](std::vector<Dep>& list, int32_t item) {
    const auto it = Find(list, item);
    if (it == list.end()) {
      list.push_back({item, 1});
    } else if (!defects_.edges_are_shared) {
      ++it->count;
    }
  };
  add(deps_[Index(after)], before);
  add(uses_[Index(before)], after);
}

void EdgeRelations::RemoveEdge(int32_t before, int32_t after) {
  const auto remove = [&](std::vector<Dep>& list, int32_t item) {
    const auto it = Find(list, item);
    if (it != list.end() && --it->count == 0) list.erase(it);
  };
  remove(deps_[Index(after)], before);
  remove(uses_[Index(before)], after);
}

EdgeRelations::Unlinked EdgeRelations::Unlink(int32_t event, int32_t item) {
  const Event& e = events_[Index(event)];
  const Unlinked unlinked = {event, defects_.edges_of_first_member ? item : e.item};
  if (e.prev >= 0) {
    events_[Index(e.prev)].next = e.next;
    RemoveEdge(ItemOf(e.prev), unlinked.item);
  }
  if (e.next >= 0) {
    events_[Index(e.next)].prev = e.prev;
    RemoveEdge(unlinked.item, ItemOf(e.next));
  }
  if (e.prev >= 0 && e.next >= 0) AddEdge(ItemOf(e.prev), ItemOf(e.next));
  return unlinked;
}

void EdgeRelations::Relink(const Unlinked& unlinked) {
  const Event& e = events_[Index(unlinked.event)];
  if (e.prev >= 0) {
    events_[Index(e.prev)].next = unlinked.event;
    AddEdge(ItemOf(e.prev), unlinked.item);
  }
  if (e.next >= 0) {
    events_[Index(e.next)].prev = unlinked.event;
    if (e.prev < 0 || !defects_.drops_edge_on_relink) AddEdge(unlinked.item, ItemOf(e.next));
  }
  if (e.prev >= 0 && e.next >= 0) RemoveEdge(ItemOf(e.prev), ItemOf(e.next));
}

const std::vector<int32_t>& EdgeRelations::SetOf(int32_t item) const {
  return sets_[Index(first_of_set_[Index(item)])];
}

void EdgeRelations::Join(int32_t into, int32_t item) {
  const int32_t first = first_of_set_[Index(into)];
  first_of_set_[Index(item)] = first;
  sets_[Index(first)].push_back(item);
}

// The last one that joined.
void EdgeRelations::Separate(int32_t item) {
  sets_[Index(first_of_set_[Index(item)])].pop_back();
  first_of_set_[Index(item)] = item;
}

// By data and hiding edges alone, as they were before the first merge, in one walk over the
// schedule: of what stands later nothing is known yet.
const std::vector<bool>& EdgeRelations::AncestorsOf(int32_t item) {
  std::vector<bool>& ancestors = ancestors_[Index(item)];
  if (!ancestors.empty()) return ancestors;
  ancestors.resize(Index(model_.items()));
  std::vector<bool> known(Index(model_.items()));
  std::vector<int32_t> stack = {item};
  const auto add = [&](int32_t at, int32_t x) {
    ancestors[Index(x)] = true;
    if (known[Index(x)] || model_.position[Index(x)] > model_.position[Index(at)]) return;
    known[Index(x)] = true;
    stack.push_back(x);
  };
  while (!stack.empty()) {
    const int32_t at = stack.back();
    stack.pop_back();
    for (const int32_t x : model_.items_of_plan.before(at)) add(at, x);
    for (const int32_t x : hiding_before_[Index(at)]) add(at, x);
  }
  return ancestors;
}

bool EdgeRelations::IsAncestor(int32_t ancestor, int32_t item) {
  return AncestorsOf(item)[Index(ancestor)];
}

bool EdgeRelations::Conflict(absl::Span<const int32_t> members, int32_t candidate) {
  const LaunchInfo& added = model_.launches[Index(candidate)];
  const auto related = [&](int32_t a, int32_t b) { return IsAncestor(a, b) || IsAncestor(b, a); };
  for (const int32_t l : members) {
    const LaunchInfo& member = model_.launches[Index(l)];
    if (related(member.start_item, added.start_item)) return true;
    if (related(member.wait_item, added.wait_item)) return true;
    for (const int32_t h : member.hidden_by) {
      if (IsAncestor(added.wait_item, h)) return true;
    }
    for (const int32_t h : added.hidden_by) {
      if (IsAncestor(member.wait_item, h)) return true;
    }
  }
  return false;
}

bool EdgeRelations::HasPath(int32_t source, int32_t target) {
  ++stamp_;
  const std::vector<int32_t>& sources = SetOf(source);
  std::vector<int32_t> stack = {target};
  seen_[Index(target)] = stamp_;
  bool found = false;
  const auto look = [&](int32_t x) {
    found = found || first_of_set_[Index(x)] == first_of_set_[Index(source)];
    if (found || seen_[Index(x)] == stamp_) return;
    seen_[Index(x)] = stamp_;
    // A path from here back to the source would be a cycle.
    for (const int32_t s : sources) {
      if (IsAncestor(x, s)) return;
    }
    stack.push_back(x);
  };
  while (!found && !stack.empty()) {
    const int32_t at = stack.back();
    stack.pop_back();
    for (const int32_t item : SetOf(at)) {
      for (const int32_t x : model_.items_of_plan.before(item)) look(x);
      for (const Dep& dep : deps_[Index(item)]) look(dep.item);
    }
  }
  return found;
}

bool EdgeRelations::TryMerge(int32_t first, int32_t candidate, bool start_at_first,
                             bool wait_at_first) {
  const LaunchInfo& into = model_.launches[Index(first)];
  const LaunchInfo& added = model_.launches[Index(candidate)];
  const int32_t moved_start = start_at_first ? candidate : first;
  const int32_t moved_wait = wait_at_first ? candidate : first;
  const auto unlink_wait = [&] {
    return Unlink(wait_event_[Index(moved_wait)], model_.launches[Index(moved_wait)].wait_item);
  };
  const Unlinked start =
      Unlink(start_event_[Index(moved_start)], model_.launches[Index(moved_start)].start_item);
  Unlinked wait;
  if (!defects_.one_after_the_other) wait = unlink_wait();
  if (HasPathEitherWay(into.start_item, added.start_item)) {
    if (wait.event >= 0) Relink(wait);
    Relink(start);
    return false;
  }
  Join(into.start_item, added.start_item);
  if (defects_.one_after_the_other) wait = unlink_wait();
  if (HasPathEitherWay(into.wait_item, added.wait_item)) {
    Relink(wait);
    Separate(added.start_item);
    Relink(start);
    return false;
  }
  Join(into.wait_item, added.wait_item);
  start_event_[Index(first)] = start_event_[Index(candidate)] =
      start_event_[Index(start_at_first ? first : candidate)];
  wait_event_[Index(first)] = wait_event_[Index(candidate)] =
      wait_event_[Index(wait_at_first ? first : candidate)];
  if (bucket_of_[Index(first)] < 0) {
    bucket_of_[Index(first)] = static_cast<int32_t>(buckets_.size());
    buckets_.push_back({first});
  }
  bucket_of_[Index(candidate)] = bucket_of_[Index(first)];
  buckets_[Index(bucket_of_[Index(first)])].push_back(candidate);
  return true;
}

// Hands the edges of merged launches on to their buckets.
struct EdgeRelations::MovedEdges {
  Deps deps, uses;
  std::vector<int32_t> now;  // of an item: what stands for it while a bucket is handed on

  static bool Has(const std::vector<Dep>& list, int32_t item) {
    return Find(list, item) != list.end();
  }
  static void Add(std::vector<Dep>& list, int32_t item) {
    if (!Has(list, item)) list.push_back({item, 1});
  }
  static void Remove(std::vector<Dep>& list, int32_t item) {
    const auto it = Find(list, item);
    if (it != list.end()) list.erase(it);
  }

  // An edge whose reverse is there already, or whose ends have become one, is dropped.
  void HandOn(int32_t old, int32_t fresh, int32_t fresh_start, int32_t fresh_wait) {
    const auto dropped = [&](int32_t before, int32_t after) {
      return before == after || Has(deps[Index(before)], after) ||
             (before == fresh_wait && after == fresh_start);
    };
    const std::vector<Dep> old_deps = deps[Index(old)];
    for (const Dep& dep : old_deps) {
      const int32_t before = now[Index(dep.item)];
      if (dropped(before, fresh)) continue;
      Add(deps[Index(fresh)], before);
      Remove(uses[Index(before)], old);
      Add(uses[Index(before)], fresh);
    }
    const std::vector<Dep> old_uses = uses[Index(old)];
    for (const Dep& use : old_uses) {
      const int32_t after = now[Index(use.item)];
      if (dropped(fresh, after)) continue;
      Remove(deps[Index(after)], old);
      Add(deps[Index(after)], fresh);
      Add(uses[Index(fresh)], after);
    }
  }
};

std::vector<Edge> EdgeRelations::Edges() const {
  const int32_t items = model_.items();
  const size_t all = Index(items) + 2 * buckets_.size();
  MovedEdges transfer{deps_, uses_, {}};
  transfer.deps.resize(all);
  transfer.uses.resize(all);
  for (int32_t item = 0; Index(item) < all; ++item) transfer.now.push_back(item);
  std::vector<int32_t> stands_for = transfer.now;
  std::vector<bool> erased(all);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const int32_t start = items + 2 * static_cast<int32_t>(b), wait = start + 1;
    std::vector<int32_t> starts, waits, casts;
    for (const int32_t l : buckets_[b]) {
      const LaunchInfo& launch = model_.launches[Index(l)];
      const NodeId cast = AbsorbedCast(model_.context.graph, launch);
      if (cast != kNoNode) casts.push_back(cast);
      if (cast != kNoNode) transfer.now[Index(cast)] = start;
      starts.push_back(launch.start_item);
      waits.push_back(launch.wait_item);
      transfer.now[Index(starts.back())] = start;
      transfer.now[Index(waits.back())] = wait;
    }
    stands_for[Index(start)] = starts.front();
    stands_for[Index(wait)] = waits.front();
    for (const int32_t old : starts) transfer.HandOn(old, start, start, wait);
    for (const int32_t old : waits) transfer.HandOn(old, wait, start, wait);
    for (const int32_t old : casts) transfer.HandOn(old, start, start, wait);
    for (const std::vector<int32_t>* olds : {&starts, &waits, &casts}) {
      for (const int32_t old : *olds) {
        transfer.deps[Index(old)].clear();
        transfer.uses[Index(old)].clear();
        transfer.now[Index(old)] = old;
        erased[Index(old)] = true;
      }
    }
  }
  std::vector<Edge> edges;
  for (size_t after = 0; after < all; ++after) {
    for (const Dep& dep : transfer.deps[after]) {
      if (erased[after] || erased[Index(dep.item)]) continue;
      edges.push_back({stands_for[Index(dep.item)], stands_for[after]});
    }
  }
  return edges;
}

absl::StatusOr<std::vector<int32_t>> EdgeRelations::Order(const ItemGraph& items,
                                                          const std::vector<int32_t>& ids,
                                                          std::vector<Edge> edges) const {
  std::optional<std::vector<int32_t>> order = StableTopologicalSort(ids, items, edges);
  if (order.has_value()) return *std::move(order);
  const size_t removed = CycleRepair(items, edges).Run();
  if (removed > 0 && !model_.context.options.autofix_cycles) {
    return absl::FailedPreconditionError(
        absl::StrCat("upstream: buckets that were each found legal make a cycle of ", removed,
                     " control edges together; autofix_cycles drops them"));
  }
  order = StableTopologicalSort(ids, items, edges);
  if (order.has_value()) return *std::move(order);
  return absl::FailedPreconditionError(
      "upstream: buckets that were each found legal depend on one another");
}

}  // namespace bucketd::upstream
