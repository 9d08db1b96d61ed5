#include "passes/pass/schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/status/status.h"

namespace bucketd {
namespace {

// Which of what is wanted at one place comes first.
enum Phase : int64_t { kBefore = 0, kAt = 1, kAfter = 2 };

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

size_t Index(int32_t i) { return static_cast<size_t>(i); }

// At `position` of program order; `number` orders what is wanted there in one phase.
int64_t Key(NodeId position, Phase phase, int32_t number = 0) {
  return (int64_t{position} << 26) | (int64_t{phase} << 24) |
         std::min<int64_t>(number, (int64_t{1} << 24) - 1);
}
int64_t WithPhase(int64_t key, Phase phase, int32_t number) {
  return Key(static_cast<NodeId>(key >> 26), phase, number);
}

int64_t PhaseOf(int64_t key) { return key >> 24 & 3; }

// Smallest key first, then smallest item.
std::vector<int32_t> SortByKey(const ItemGraph& items, absl::Span<const int64_t> keys) {
  std::vector<int32_t> missing(Index(items.size())), order;
  order.reserve(Index(items.size()));
  using Entry = std::pair<int64_t, int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> ready;
  for (int32_t item = 0; item < items.size(); ++item) {
    if (!items.exists(item)) continue;
    missing[Index(item)] = static_cast<int32_t>(items.before(item).size());
    if (missing[Index(item)] == 0) ready.emplace(keys[Index(item)], item);
  }
  while (!ready.empty()) {
    const int32_t item = ready.top().second;
    ready.pop();
    order.push_back(item);
    for (const int32_t next : items.after(item)) {
      if (--missing[Index(next)] == 0) ready.emplace(keys[Index(next)], next);
    }
  }
  return order;
}

}  // namespace

absl::StatusOr<Scheduler> Scheduler::Make(const PassContext& context,
                                          absl::Span<const Bucket> buckets,
                                          absl::Span<const Launch> launches) {
  Scheduler scheduler(context, buckets, launches);
  if (!scheduler.SortTopologically()) {
    return absl::InternalError("the buckets depend on one another: no order exists");
  }
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
  Place place;
  place.kind = launch.kind;
  if (launch.bucket < 0) {
    const Collective& collective = graph_.collective(launch.collective);
    place.start_item = collective.start;
    place.wait_item = collective.wait;
    place.start_key = Key(collective.start, kAt);
    place.wait_key = Key(collective.wait, kAt);
    return place;
  }
  NodeId first_start = graph_.size(), last_start = 0, first_wait = graph_.size();
  for (const NodeId member : buckets[Index(launch.bucket)].members) {
    first_start = std::min(first_start, member);
    last_start = std::max(last_start, member);
    first_wait = std::min(first_wait, graph_.collective(graph_.collective_of(member)).wait);
  }
  place.start_item = items_.start_item(launch.bucket);
  place.wait_item = items_.wait_item(launch.bucket);
  if (launch.kind == CollectiveKind::kAllGather) {
    place.start_key = Key(first_start, kAt);
    place.wait_key = Key(first_wait, kAt);
    place.urgent = true;
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
    const CollectiveKind kind = launches[i].kind;
    if (kind != CollectiveKind::kAllGather && kind != CollectiveKind::kReduceScatter) continue;
    auto& first_wait = units[{kind, launches[i].direction}];
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
    series_.push_back({std::vector<Series::Unit>(by_wait.size())});
  }
  for (size_t i = 0; i < launches.size(); ++i) {
    const auto it = number.find({launches[i].kind, launches[i].direction, launches[i].unit});
    if (it == number.end()) continue;
    Place& place = places_[i];
    std::tie(place.series, place.number) = it->second;
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
    if (PhaseOf(place.wait_key) == kAfter) place.wait_key += place.number;
  }
}

int32_t Scheduler::Reach(size_t launch, int32_t distance) const {
  const Place& place = places_[launch];
  if (place.series < 0) return 0;
  if (place.kind != CollectiveKind::kAllGather) {
    const auto last = static_cast<int32_t>(series_[Index(place.series)].units.size()) - 1;
    return std::min(distance, last - place.number);
  }
  // Within the first unit, gathers of several groups still start before the first of their waits.
  const bool leads = UnitAt(place, place.number).first_wait_item == place.wait_item;
  return std::min(distance, std::max(place.number, leads ? 0 : 1));
}

std::vector<Step> Scheduler::Order(absl::Span<const int32_t> distances) const {
  std::vector<int64_t> keys(Index(items_.size()));
  for (NodeId n = 0; n < graph_.size(); ++n) keys[Index(n)] = Key(n, kAt);
  keys[Index(graph_.output_node())] = kLast;
  std::vector<bool> urgent(Index(items_.size()));
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    int64_t start = place.start_key, wait = place.wait_key;
    const int32_t reach = Reach(i, distances[i]);
    const bool early = reach > 0 && place.kind == CollectiveKind::kAllGather;
    if (early) {
      const int64_t target = UnitAt(place, std::max(0, place.number - reach)).first_wait;
      start = std::min(start, WithPhase(target, kBefore, place.number));
    } else if (reach > 0) {
      const int64_t target = UnitAt(place, place.number + reach).last_start;
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
  std::vector<Step> order;
  order.reserve(topological_.size());
  for (const int32_t item : SortByKey(items_, keys)) order.push_back(items_.step(item));
  return order;
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
    if (place.kind == CollectiveKind::kAllGather) {
      windows[i] = {position[Index(place.start_item)], position[Index(unit.first_wait_item)]};
    } else {
      windows[i] = {position[Index(unit.last_start_item)], position[Index(place.wait_item)]};
    }
  }
  return windows;
}

}  // namespace bucketd
