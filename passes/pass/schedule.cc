#include "passes/pass/schedule.h"

#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/status/status.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/sim/bucket_costs.h"

namespace bucketd {
namespace {

// Steps whose keys name one node of program order: those in front of it, it, those behind it.
enum Phase : int64_t { kBefore = 0, kAt = 1, kAfter = 2 };

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

// At `position` of program order; `number` orders what is wanted there in one phase, with room
// between two numbers for what is wanted right behind the first.
int64_t Key(NodeId position, Phase phase, int32_t number = 0) {
  return (int64_t{position} << 32) | (int64_t{phase} << 30) |
         std::min<int64_t>(int64_t{number} * 4, (int64_t{1} << 30) - 4);
}
NodeId PositionOf(int64_t key) { return static_cast<NodeId>(key >> 32); }
int64_t WithPhase(int64_t key, Phase phase, int32_t number) {
  return Key(PositionOf(key), phase, number);
}

int64_t PhaseOf(int64_t key) { return key >> 30 & 3; }

// Smallest key first, then smallest item. Most items become ready right before their turn, so the
// smallest of them is kept in hand and only the others go through the heap.
std::vector<int32_t> SortByKey(const ItemGraph& items, absl::Span<const int64_t> keys) {
  std::vector<int32_t> missing(Index(items.size())), order;
  order.reserve(Index(items.size()));
  using Entry = std::pair<int64_t, int32_t>;
  constexpr Entry kNone = {kLast, std::numeric_limits<int32_t>::max()};
  std::vector<Entry> first;  // ready from the beginning
  for (int32_t item = 0; item < items.size(); ++item) {
    if (!items.exists(item)) continue;
    missing[Index(item)] = static_cast<int32_t>(items.before(item).size());
    if (missing[Index(item)] == 0) first.emplace_back(keys[Index(item)], item);
  }
  std::sort(first.begin(), first.end());
  first.push_back(kNone);
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> later;
  later.push(kNone);
  Entry hand = kNone;
  for (size_t next_first = 0;;) {
    if (first[next_first] < std::min(hand, later.top())) {
      if (hand != kNone) later.push(hand);
      hand = first[next_first++];
    } else if (later.top() < hand) {
      if (hand != kNone) later.push(hand);
      hand = later.top();
      later.pop();
    }
    if (hand == kNone) return order;
    const int32_t item = std::exchange(hand, kNone).second;
    order.push_back(item);
    for (const int32_t next : items.after(item)) {
      if (--missing[Index(next)] > 0) continue;
      Entry ready = {keys[Index(next)], next};
      if (ready < hand) std::swap(ready, hand);
      if (ready != kNone) later.push(ready);
    }
  }
}

}  // namespace

absl::StatusOr<Scheduler> Scheduler::Make(const PassContext& context,
                                          absl::Span<const Bucket> buckets,
                                          absl::Span<const Launch> launches) {
  Scheduler scheduler(context, buckets, launches);
  if (!scheduler.SortTopologically()) {
    return absl::InternalError("the buckets depend on one another: no order exists");
  }
  scheduler.FindChains(context, buckets, launches);
  scheduler.FindFirstKernels(context);
  return scheduler;
}

Scheduler::Scheduler(const PassContext& context, absl::Span<const Bucket> buckets,
                     absl::Span<const Launch> launches)
    : graph_(context.graph), items_(context.graph, context.constraints, buckets) {
  places_.reserve(launches.size());
  for (const Launch& launch : launches) places_.push_back(PlaceOf(launch, buckets));
  NumberUnits(launches);
}

bool Scheduler::SortTopologically() {
  size_t expected = 0;
  std::vector<int64_t> keys(Index(items_.size()));
  for (int32_t item = 0; item < items_.size(); ++item) {
    if (items_.exists(item)) ++expected;
    keys[Index(item)] = item;
  }
  topological_ = SortByKey(items_, keys);
  return topological_.size() == expected;
}

Scheduler::Place Scheduler::PlaceOf(const Launch& launch, absl::Span<const Bucket> buckets) const {
  const bool alone = launch.bucket < 0;
  std::vector<NodeId> members;
  if (alone) members = {graph_.collective(launch.collective).start};
  NodeId first_start = graph_.size(), last_start = 0, first_wait = graph_.size();
  for (const NodeId member : alone ? members : buckets[Index(launch.bucket)].members) {
    first_start = std::min(first_start, member);
    last_start = std::max(last_start, member);
    first_wait = std::min(first_wait, graph_.collective(graph_.collective_of(member)).wait);
  }
  Place place;
  place.kind = launch.kind;
  place.start_item = items_.item_of(first_start);
  place.wait_item = items_.item_of(first_wait);
  if (Gathers(launch.kind)) {
    place.start_key = Key(first_start, kAt);
    place.wait_key = Key(first_wait, kAt);
    place.urgent = !alone;
  } else {
    place.start_key = Key(last_start, kAt);
    place.wait_key = std::max(Key(last_start, kAfter), Key(first_wait, kAt));
  }
  return place;
}

void Scheduler::NumberUnits(absl::Span<const Launch> launches) {
  // By series, its units by the first wait of any of their launches.
  std::map<std::pair<CollectiveKind, Direction>, std::map<int32_t, int64_t>> units;
  for (size_t i = 0; i < launches.size(); ++i) {
    auto& first_wait = units[{launches[i].kind, launches[i].direction}];
    const auto it = first_wait.emplace(launches[i].unit, places_[i].wait_key).first;
    it->second = std::min(it->second, places_[i].wait_key);
  }
  std::map<std::tuple<CollectiveKind, Direction, int32_t>, std::pair<int32_t, int32_t>> number;
  for (const auto& [key, first_wait] : units) {
    std::vector<std::pair<int64_t, int32_t>> by_wait;
    for (const auto& [unit, wait] : first_wait) by_wait.emplace_back(wait, unit);
    std::sort(by_wait.begin(), by_wait.end());
    for (size_t n = 0; n < by_wait.size(); ++n) {
      number[{key.first, key.second, by_wait[n].second}] = {static_cast<int32_t>(series_.size()),
                                                            static_cast<int32_t>(n)};
    }
    series_.push_back({std::vector<Series::Unit>(by_wait.size()), key.first, key.second, -1});
  }
  for (size_t i = 0; i < launches.size(); ++i) {
    Place& place = places_[i];
    std::tie(place.series, place.number) =
        number.at({launches[i].kind, launches[i].direction, launches[i].unit});
    Series::Unit& unit = series_[Index(place.series)].units[Index(place.number)];
    if (place.wait_key < unit.first_wait) {
      unit.first_wait = place.wait_key;
      unit.first_wait_item = place.wait_item;
    }
    if (place.start_key > unit.last_start) {
      unit.last_start = place.start_key;
      unit.last_start_item = place.start_item;
    }
    // Deferred waits of earlier units that land here come first.
    if (PhaseOf(place.wait_key) == kAfter) {
      place.wait_key = WithPhase(place.wait_key, kAfter, place.number);
    }
  }
}

// A reduction that another one's result goes into starts where that one is waited for, which is
// not where program order has it.
void Scheduler::FindChains(const PassContext& context, absl::Span<const Bucket> buckets,
                           absl::Span<const Launch> launches) {
  std::vector<int32_t> launch_of(Index(items_.size()), -1);
  bool scatters = false, reduces = false;
  for (size_t i = 0; i < places_.size(); ++i) {
    scatters = scatters || Scatters(places_[i].kind);
    reduces = reduces || ReducesWhole(places_[i].kind);
    if (!Reduces(places_[i].kind)) continue;
    launch_of[Index(places_[i].start_item)] = static_cast<int32_t>(i);
  }
  if (!scatters || !reduces) return;
  const auto mark = [&](int32_t item, absl::Span<const int32_t> neighbours, bool Place::*flag,
                        std::vector<bool>& beyond) {
    for (const int32_t x : neighbours) {
      if (beyond[Index(x)]) beyond[Index(item)] = true;
    }
    if (launch_of[Index(item)] < 0) return;
    places_[Index(launch_of[Index(item)])].*flag = beyond[Index(item)];
    has_chains_ = has_chains_ || beyond[Index(item)];
    beyond[Index(item)] = true;
  };
  std::vector<bool> behind(Index(items_.size())), ahead(Index(items_.size()));
  for (const int32_t item : topological_) mark(item, items_.before(item), &Place::chained, behind);
  for (size_t i = topological_.size(); i-- > 0;) {
    mark(topological_[i], items_.after(topological_[i]), &Place::feeds, ahead);
  }
  if (!has_chains_) return;
  for (size_t i = 0; i < places_.size(); ++i) {
    const Launch& launch = launches[i];
    if (!places_[i].feeds) continue;
    if (launch.bucket < 0) {
      places_[i].wire_ps = context.costs.node_ps(places_[i].start_item);
      continue;
    }
    const Bucket& bucket = buckets[Index(launch.bucket)];
    places_[i].wire_ps = internal::CostsOf(graph_, bucket, context.costs).collective_ps;
  }
  computed_ps_.assign(Index(graph_.size()) + 1, 0);
  for (NodeId n = 0; n < graph_.size(); ++n) {
    const int64_t ps = graph_.kind(n) == NodeKind::kCall ? context.costs.node_ps(n) : 0;
    computed_ps_[Index(n) + 1] = computed_ps_[Index(n)] + ps;
  }
}

// The first kernel, and the first compute node, of each direction that its first gathers are not
// computed from: before these they may start.
void Scheduler::FindFirstKernels(const PassContext& context) {
  const NodeId last_forward = LastForwardNode(graph_);
  std::vector<bool> both(2);
  for (const Series& series : series_) both[series.direction == Direction::kBackward] = true;
  for (size_t s = 0; s < series_.size(); ++s) {
    Series& series = series_[s];
    if (!Gathers(series.kind)) continue;
    std::vector<bool> needed(Index(items_.size()));
    for (const Place& place : places_) {
      if (place.series == static_cast<int32_t>(s) && place.number == 0) {
        needed[Index(place.start_item)] = true;
      }
    }
    for (size_t i = topological_.size(); i-- > 0;) {
      if (!needed[Index(topological_[i])]) continue;
      for (const int32_t x : items_.before(topological_[i])) needed[Index(x)] = true;
    }
    for (NodeId n = 0; n < graph_.size() && series.first_compute < 0; ++n) {
      if (graph_.kind(n) != NodeKind::kCall || needed[Index(n)]) continue;
      if (context.costs.node_ps(n) == 0) continue;
      const bool elsewhere =
          both[0] && both[1] && DirectionOf(graph_, n, last_forward) != series.direction;
      if (elsewhere) continue;
      if (series.first_kernel < 0) series.first_kernel = Key(n, kBefore);
      if (graph_.is_compute(n)) series.first_compute = Key(n, kBefore);
    }
  }
}

int32_t Scheduler::Reach(size_t launch, int32_t distance) const {
  const Place& place = places_[launch];
  const Series& series = series_[Index(place.series)];
  if (!Gathers(place.kind)) {
    const auto last = static_cast<int32_t>(series.units.size()) - 1;
    if (place.number < last) return std::min(distance, last - place.number);
    // Within the last unit, waits still stand behind the last of its starts.
    const bool closes = series.units.back().last_start_item == place.start_item;
    return closes ? 0 : std::min(distance, 1);
  }
  if (place.number > 0) return std::min(distance, place.number);
  // Gathers of several groups still start before the first of their waits.
  int32_t most = series.units[0].first_wait_item == place.wait_item ? 0 : 1;
  if (series.first_compute >= 0 && series.first_compute < place.start_key) most = 2;
  if (series.first_kernel >= 0 && series.first_kernel < place.start_key) most = kToTheFront;
  return std::min(distance, most);
}

int32_t Scheduler::Wanted(size_t launch, int32_t distance) const {
  const Place& place = places_[launch];
  const bool first = Gathers(place.kind) && place.number == 0;
  return Reach(launch, first && distance > 0 ? kToTheFront : distance);
}

bool Scheduler::IsAtTheFront(size_t launch, int32_t distance) const {
  return Gathers(places_[launch].kind) && places_[launch].number == 0 && distance >= 2;
}

// Where an early gather is wanted.
int64_t Scheduler::EarlyKey(const Place& place, int32_t reach) const {
  const int64_t target = UnitAt(place, std::max(0, place.number - reach)).first_wait;
  const int64_t key = WithPhase(target, kBefore, place.number);
  if (place.number > 0 || reach < 2) return key;
  const Series& series = series_[Index(place.series)];
  const int64_t front = reach == kToTheFront ? series.first_kernel : series.first_compute;
  return front < 0 ? key : std::min(key, front);
}

// Behind the node of program order by which enough has been computed since `from` to hide the
// launch.
int64_t Scheduler::HiddenKey(int64_t from, const Place& place) const {
  const auto begin = static_cast<size_t>(PositionOf(from));
  const int64_t until = computed_ps_[begin] + place.wire_ps / 100 * hurry_percent_;
  const auto end = std::lower_bound(computed_ps_.begin() + static_cast<int64_t>(begin) + 1,
                                    computed_ps_.end() - 1, until);
  return Key(static_cast<NodeId>(end - computed_ps_.begin() - 1), kAfter, place.number);
}

// Waits of reductions in chains: behind where the start that they are wanted after will stand,
// given all other keys; those that others follow on perhaps before that.
void Scheduler::PlaceChainedWaits(absl::Span<const int32_t> distances,
                                  std::vector<int64_t>& keys) const {
  if (!has_chains_) return;
  for (const bool chained : {false, true}) {
    std::vector<int64_t> lands = keys;
    for (const int32_t item : topological_) {
      for (const int32_t x : items_.before(item)) {
        lands[Index(item)] = std::max(lands[Index(item)], lands[Index(x)]);
      }
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      const Place& place = places_[i];
      if (place.chained != chained || !(chained || place.feeds)) continue;
      int64_t& key = keys[Index(place.wait_item)];
      if (chained) {
        const int32_t after = UnitAfter(place, Reach(i, distances[i])).last_start_item;
        key = std::max(key, lands[Index(after)] + 1);
      }
      if (place.feeds && hurry_percent_ != kWholeUnits) {
        const int64_t hidden = HiddenKey(lands[Index(place.start_item)], place);
        key = std::min(key, std::max(place.wait_key, hidden));
      }
    }
  }
}

std::vector<Step> Scheduler::Order(absl::Span<const int32_t> distances) const {
  std::vector<int64_t> keys(Index(items_.size()));
  for (NodeId n = 0; n < graph_.size(); ++n) keys[Index(n)] = Key(n, kAt);
  keys[Index(items_.output())] = kLast;
  std::vector<bool> urgent(Index(items_.size()));
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    int64_t start = place.start_key, wait = place.wait_key;
    const int32_t reach = Reach(i, distances[i]);
    const bool early = reach > 0 && Gathers(place.kind);
    if (early) {
      start = std::min(start, EarlyKey(place, reach));
    } else if (reach > 0) {
      const int64_t target = UnitAfter(place, reach).last_start;
      wait = std::max(wait, WithPhase(target, kAfter, place.number));
    }
    keys[Index(place.start_item)] = start;
    keys[Index(place.wait_item)] = wait;
    urgent[Index(place.start_item)] = place.urgent || early;
  }
  for (size_t i = topological_.size(); i-- > 0;) {
    const int32_t item = topological_[i];
    if (!urgent[Index(item)]) continue;
    for (const int32_t x : items_.before(item)) {
      urgent[Index(x)] = true;
      keys[Index(x)] = std::min(keys[Index(x)], keys[Index(item)]);
    }
  }
  PlaceChainedWaits(distances, keys);
  return items_.steps(SortByKey(items_, keys));
}

std::vector<Scheduler::Window> Scheduler::Windows(absl::Span<const Step> order,
                                                  absl::Span<const int32_t> distances) const {
  std::vector<int32_t> position(Index(items_.size()), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    position[Index(items_.item(order[i]))] = static_cast<int32_t>(i);
  }
  std::vector<Window> windows(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (Reach(i, distances[i]) == 0) continue;
    const Series::Unit& unit = UnitAt(place, place.number);
    if (Gathers(place.kind)) {
      windows[i] = {position[Index(place.start_item)], position[Index(unit.first_wait_item)]};
    } else {
      windows[i] = {position[Index(unit.last_start_item)], position[Index(place.wait_item)]};
    }
  }
  return windows;
}

}  // namespace bucketd
