// The bucketer's relations as an explicit set of edges that every merge edits, searched in full.
// Quadratic: for comparison with torch 2.13, and for tests of the fast form. Internal.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/pass/overlap_bucket/overlap_bucket_relations.h"

namespace bucketd::upstream {

using overlap_bucket::Edge;
using overlap_bucket::LaunchInfo;
using overlap_bucket::Model;
using overlap_bucket::Relations;

// What torch 2.13 gets wrong, one flag each.
struct Defects {
  bool drops_edge_on_relink = false;   // event -> next is not put back after a failed attempt
  bool edges_of_first_member = false;  // unlinking edits edges of the bucket's first launch
                                       // instead of those of the event's own
  bool one_after_the_other = false;    // the wait is still linked while starts are tested
  bool edges_are_shared = false;       // one edge stands for all reasons to have it

  static Defects All() { return {true, true, true, true}; }
};

class EdgeRelations : public Relations {
 public:
  // FAILED_PRECONDITION: launches times items are too many for a bit each.
  static absl::StatusOr<std::unique_ptr<EdgeRelations>> Make(const Model& model,
                                                             const Defects& defects);

  bool Conflict(absl::Span<const int32_t> members, int32_t candidate) override;
  bool TryMerge(int32_t first, int32_t candidate, bool start_at_first, bool wait_at_first) override;
  std::vector<Edge> Edges() const override;
  // FAILED_PRECONDITION if there is no order, or if only one without the edges that make the cycle
  // and autofix_cycles is off. Quadratic in what lies on cycles.
  absl::StatusOr<std::vector<int32_t>> Order(const ItemGraph& items,
                                             const std::vector<int32_t>& ids,
                                             std::vector<Edge> edges) const override;

 private:
  struct Dep {
    int32_t item = -1;
    int32_t count = 0;
  };
  using Deps = std::vector<std::vector<Dep>>;  // by item
  struct Event {
    int32_t item = -1;
    int32_t prev = -1, next = -1;
  };
  // An event that was taken out, and whose edges were edited. It knows what it stood between: the
  // last one taken out comes back first.
  struct Unlinked {
    int32_t event = -1, item = -1;
  };
  struct MovedEdges;

  EdgeRelations(const Model& model, const Defects& defects);
  void AddTimelines();
  void AddEdge(int32_t before, int32_t after);
  void RemoveEdge(int32_t before, int32_t after);
  int32_t ItemOf(int32_t event) const;
  Unlinked Unlink(int32_t event, int32_t item);
  void Relink(const Unlinked& unlinked);
  void Join(int32_t into, int32_t item);
  void Separate(int32_t item);
  const std::vector<int32_t>& SetOf(int32_t item) const;
  bool HasPath(int32_t source, int32_t target);
  bool HasPathEitherWay(int32_t a, int32_t b) { return HasPath(a, b) || HasPath(b, a); }
  bool IsAncestor(int32_t ancestor, int32_t item);
  const std::vector<bool>& AncestorsOf(int32_t item);

  const Model& model_;
  const Defects defects_;
  Deps deps_, uses_;
  std::vector<Event> events_;
  std::vector<int32_t> start_event_, wait_event_;    // by launch
  std::vector<int32_t> first_of_set_;                // by item
  std::vector<std::vector<int32_t>> sets_;           // by a set's first item
  std::vector<std::vector<int32_t>> buckets_;        // launches, in the order of their first merge
  std::vector<int32_t> bucket_of_;                   // of a launch
  std::vector<std::vector<int32_t>> hiding_before_;  // by item: edges that are never edited
  std::vector<std::vector<bool>> ancestors_;         // by item, once asked for
  std::vector<int32_t> seen_;
  int32_t stamp_ = 0;
};

}  // namespace bucketd::upstream
