// Where launches stand in a step. Everything else keeps program order as far as its inputs let it.
//
// Every node, bucket start and bucket wait gets a key, its place in program order or where it is
// wanted; what a start that is wanted early is computed from is wanted as early; a topological sort
// then takes the smallest key that is ready. So an order is always legal, whatever is wanted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/base/csr.h"
#include "passes/ir/graph.h"
#include "passes/pass/constraints.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd {

// Steps of a plan as graph nodes: node n is item n, bucket b's start and wait follow behind.
class ItemGraph {
 public:
  ItemGraph(const Graph& graph, const Constraints& constraints, absl::Span<const Bucket> buckets);

  int32_t size() const { return static_cast<int32_t>(exists_.size()); }
  int32_t output() const { return nodes_ - 1; }
  int32_t start_item(BucketId b) const { return nodes_ + 2 * b; }
  int32_t wait_item(BucketId b) const { return nodes_ + 2 * b + 1; }
  Step step(int32_t item) const;
  int32_t item(const Step& step) const;
  std::vector<Step> steps(absl::Span<const int32_t> items) const;
  // Where a node stands: itself, or its bucket's start or wait.
  int32_t item_of(NodeId n) const { return item_of_[static_cast<size_t>(n)]; }
  bool exists(int32_t item) const { return exists_[static_cast<size_t>(item)]; }
  absl::Span<const int32_t> before(int32_t item) const { return before_.of(item); }
  absl::Span<const int32_t> after(int32_t item) const { return after_.of(item); }

 private:
  template <typename F>
  void ForEdges(const Graph& graph, const Constraints& constraints, F f) const;

  int32_t nodes_ = 0;
  std::vector<bool> exists_;
  std::vector<int32_t> item_of_;
  Csr before_, after_;
};

// Orders one set of buckets under any distances.
class Scheduler {
 public:
  // INTERNAL if the buckets admit no order. The arguments outlive the scheduler. REQUIRES: launches
  // gather or reduce.
  static absl::StatusOr<Scheduler> Make(const PassContext& context,
                                        absl::Span<const Bucket> buckets,
                                        absl::Span<const Launch> launches);

  // One distance a launch, >= 0, in units of its kind and direction in execution order; 0: not
  // moved. An all-gather of distance d starts before the wait of the unit d earlier. A reduction of
  // distance d is waited for after the start of the unit d later, at most of the last one. Gathers
  // of the first unit: 1 is before the unit's first wait, 2 before the direction's first compute
  // node that these gathers do not need, kToTheFront before the first kernel of any kind.
  // O((nodes + edges) log).
  std::vector<Step> Order(absl::Span<const int32_t> distances) const;
  static constexpr int32_t kToTheFront = 3;

  // Whether some reductions are inputs of others, as HSDP's are. These are waited for where
  // distances say, or earlier, once compute since their start has taken `percent` of their own
  // time; kWholeUnits: never earlier.
  bool has_chains() const { return has_chains_; }
  void HurryChains(int32_t percent) { hurry_percent_ = percent; }
  static constexpr int32_t kWholeUnits = -1;

  // `distance`, or less where the launch's series of units ends. 0: nothing would move.
  int32_t Reach(size_t launch, int32_t distance) const;

  // Reach() of an option's distance: in the first unit any but 0 means kToTheFront.
  int32_t Wanted(size_t launch, int32_t distance) const;
  // Whether it is of a first unit and goes before a kernel.
  bool IsAtTheFront(size_t launch, int32_t distance) const;

  // Steps of `order` across which a launch reaches: a gather from its start to the first wait of
  // its unit, a reduction from its unit's last start to its wait. Empty if it is not moved.
  struct Window {
    int32_t first = 0, last = -1;
  };
  // REQUIRES: order == Order(distances).
  std::vector<Window> Windows(absl::Span<const Step> order,
                              absl::Span<const int32_t> distances) const;

 private:
  // A launch where program order and its bucket alone put it.
  struct Place {
    int32_t start_item = -1, wait_item = -1;
    int64_t start_key = 0, wait_key = 0;
    CollectiveKind kind = CollectiveKind::kUnspecified;
    bool urgent = false;   // its inputs follow it forward
    bool chained = false;  // a reduction of what another launch reduces
    bool feeds = false;    // such another launch
    int64_t wire_ps = 0;
    int32_t series = -1;  // launches of one kind and direction
    int32_t number = 0;   // of its unit in the series, by execution
  };
  // The units of one series, by number.
  struct Series {
    struct Unit {
      int64_t first_wait = std::numeric_limits<int64_t>::max(), last_start = -1;  // keys
      int32_t first_wait_item = -1, last_start_item = -1;
    };
    std::vector<Unit> units;
    CollectiveKind kind = CollectiveKind::kUnspecified;
    Direction direction = Direction::kNone;
    int64_t first_kernel = -1, first_compute = -1;  // keys; the first unit's gathers may go before
  };

  Scheduler(const PassContext& context, absl::Span<const Bucket> buckets,
            absl::Span<const Launch> launches);
  Place PlaceOf(const Launch& launch, absl::Span<const Bucket> buckets) const;
  void NumberUnits(absl::Span<const Launch> launches);
  bool SortTopologically();
  void FindChains(const PassContext& context, absl::Span<const Bucket> buckets,
                  absl::Span<const Launch> launches);
  void FindFirstKernels(const PassContext& context);
  int64_t EarlyKey(const Place& place, int32_t reach) const;
  int64_t HiddenKey(int64_t from, const Place& place) const;
  void PlaceChainedWaits(absl::Span<const int32_t> distances, std::vector<int64_t>& keys) const;
  const Series::Unit& UnitAt(const Place& place, int32_t number) const {
    return series_[static_cast<size_t>(place.series)].units[static_cast<size_t>(number)];
  }
  const Series::Unit& UnitAfter(const Place& place, int32_t reach) const {
    const auto last = static_cast<int32_t>(series_[static_cast<size_t>(place.series)].units.size());
    return UnitAt(place, std::min(last - 1, place.number + reach));
  }

  const Graph& graph_;
  ItemGraph items_;
  std::vector<Place> places_;
  std::vector<Series> series_;
  std::vector<int32_t> topological_;
  std::vector<int64_t> computed_ps_;  // before each node of program order
  bool has_chains_ = false;
  int32_t hurry_percent_ = kWholeUnits;
};

}  // namespace bucketd
