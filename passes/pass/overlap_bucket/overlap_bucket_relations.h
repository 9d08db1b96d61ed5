// Which launches may become one without making an order impossible. Internal to the bucketer.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/base/csr.h"
#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/pass/overlap_bucket/overlap_bucket_timeline.h"
#include "passes/pass/stable_sort.h"

namespace bucketd::overlap_bucket {

// Between items.
using Edge = ExtraDep;

// start -> hiding node -> wait of what is hidden altogether.
std::vector<Edge> HidingEdges(const Model& model);

class Relations {
 public:
  virtual ~Relations() = default;

  // Whether the schedule's own edges forbid that `candidate` joins these launches, wherever the
  // result would stand. May say no where TryMerge() then says so.
  virtual bool Conflict(absl::Span<const int32_t> members, int32_t candidate) = 0;

  // Merges `candidate` into the bucket of `first` if no path joins their starts or their waits;
  // they happen where the first's or the candidate's start and wait are now. The caller then does
  // the same to the timeline. On false nothing has changed.
  virtual bool TryMerge(int32_t first, int32_t candidate, bool start_at_first,
                        bool wait_at_first) = 0;

  // What an order of the merged launches has to keep besides the graph's own edges; items of
  // merged launches stand for their buckets.
  virtual std::vector<Edge> Edges() const = 0;

  // A stable sort of `ids` by the graph's edges and `edges`. INTERNAL if there is none: these
  // relations let through what they may not.
  virtual absl::StatusOr<std::vector<int32_t>> Order(const ItemGraph& items,
                                                     const std::vector<int32_t>& ids,
                                                     std::vector<Edge> edges) const;
};

// Data edges, HidingEdges() and the timelines, with merged starts and merged waits as one node
// each. Acyclic at all times, so an order always exists.
//
// Launches stand in timelines, so a path that passes a compute node is found by comparing slots; a
// search goes only through nodes that stand in no timeline and through other groups' launches of
// the same slot: as a rule a handful of casts and views. It gives up, and forbids the merge, after
// kMaxVisits edges, and after kFewVisits once all searches have had kVisitsPerItem of every item.
class Quotient : public Relations {
 public:
  // Both outlive this. O(nodes + edges + hiding nodes).
  Quotient(const Model& model, GroupTimelines& timeline);

  bool Conflict(absl::Span<const int32_t> members, int32_t candidate) override;
  bool TryMerge(int32_t first, int32_t candidate, bool start_at_first, bool wait_at_first) override;
  std::vector<Edge> Edges() const override;

 private:
  static constexpr int32_t kMaxVisits = 4096, kFewVisits = 64;
  static constexpr int64_t kVisitsPerItem = 32;  // captured graphs take less than one
  enum class Answer { kNo, kPath, kLookOn };

  // Compute nodes around a node, as indices into Model::compute: the last one before it and the
  // first one behind it that stay there whatever becomes of timelines.
  struct Bounds {
    int32_t last_before = -1;
    int32_t first_after = 0;
  };
  void FindBounds();
  bool Apart(int32_t a, int32_t b) const;  // items; whether compute stands between them
  // Items that are one node, as a circle.
  void Contract(int32_t into, int32_t item);
  bool Path(int32_t linked, int32_t loose);
  template <bool kBackward>
  bool Search(const GroupTimelines::Event& linked, int32_t node, int32_t loose);
  template <bool kBackward>
  Answer Look(const GroupTimelines::Event& linked, int32_t node, int32_t at) const;
  template <bool kBackward, typename F>
  bool ForLasting(int32_t node, F f) const;
  template <bool kBackward, typename F>
  void ForNeighbours(int32_t node, F f) const;
  template <typename F>
  void ForEvents(int32_t node, F f) const;

  const Model& model_;
  GroupTimelines& timeline_;
  std::vector<int32_t> node_of_;  // of an item: the first item of its node
  std::vector<int32_t> circle_;
  // Hiding edges, both ways, by item.
  Csr after_, before_;
  std::vector<Bounds> bounds_;  // of an item; of a merged node at its first item
  std::vector<int32_t> seen_;   // stamp of the search that saw a node last
  int32_t stamp_ = 0;
  std::vector<int32_t> stack_;
  int64_t visits_left_;
};

}  // namespace bucketd::overlap_bucket
