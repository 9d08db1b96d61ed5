// The model of storage: who makes it, and which storages a node's result stands on, through views,
// pieces of tuples, waits and in-place ops. Whatever counts or orders memory asks here.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/base/csr.h"
#include "passes/ir/graph.h"

namespace bucketd {

// Whether n's outputs are storages of its own: whatever aliases nothing, and a collective that
// writes into a given tensor too, since its result is known only behind its wait. A getitem is a
// piece of what its input made, whatever it says to alias.
inline bool MakesStorage(const Graph& graph, NodeId n) {
  return graph.kind(n) != NodeKind::kGetitem &&
         (graph.alias_of(n).empty() || graph.kind(n) == NodeKind::kCollective);
}

// The node by which n is done with what it reads and writes: a collective's wait.
inline NodeId EndOfUse(const Graph& graph, NodeId n) {
  if (graph.kind(n) != NodeKind::kCollective) return n;
  const NodeId wait = graph.collective(graph.collective_of(n)).wait;
  return wait == kNoNode ? n : wait;
}

// Which storages nodes stand on, tensor by tensor, for those who count bytes. A set is one storage
// or a union of earlier sets that is never written out, so a long chain of aliases costs its edges,
// not their product. Ids are dense, parts before wholes.
class Storages {
 public:
  using SetId = int32_t;
  static constexpr SetId kNone = -1;  // stands on nothing

  explicit Storages(const Graph& graph);  // which outlives it

  // Adds what n makes and finds what it stands on. REQUIRES: n has not been added, all that it
  // aliases and reads has. Any topological order will do.
  void Add(NodeId n);
  // The same for a node whose result a bucket provides.
  void Put(NodeId n, SetId set) { set_of_[Index(n)] = set; }
  SetId Make(int64_t bytes);
  // Of nothing kNone, of one set that set.
  SetId Union(absl::Span<const SetId> sets);

  int32_t size() const { return parts_.size(); }
  SetId of(NodeId n) const { return set_of_[Index(n)]; }
  // What n made: ids from first_own(n), one an output; kNone and 0 if nothing.
  SetId first_own(NodeId n) const { return first_own_[Index(n)]; }
  int32_t own_count(NodeId n) const {
    return first_own(n) == kNone ? 0 : static_cast<int32_t>(graph_->outputs(n).size());
  }
  int64_t own_bytes(NodeId n) const;
  // 0 for unions, and for parameters and buffers, which live beside the step.
  int64_t bytes(SetId set) const { return bytes_[Index(set)]; }
  // Of a union; a storage has none.
  absl::Span<const SetId> parts(SetId set) const { return parts_.of(set); }

 private:
  SetId SetOfGetitem(NodeId n) const;

  const Graph* graph_;
  std::vector<SetId> set_of_, first_own_;
  std::vector<int64_t> bytes_;
  Csr parts_;
  std::vector<SetId> scratch_;
};

// The same node by node, for those who keep the order of writers and readers: a storage is named by
// the node that made it, a getitem stands on all of it. Nodes on the same storages share one set,
// so real graphs cost O(nodes + edges). Thread-safe once built.
class StorageSets {
 public:
  // RESOURCE_EXHAUSTED if the sets of nodes that alias several others grow beyond `max_entries`.
  static absl::StatusOr<StorageSets> Of(const Graph& graph, int64_t max_entries = 50'000'000);

  // Ascending, each once.
  absl::Span<const NodeId> of(NodeId n) const { return entries(set(n)); }

  // Sets by number, from 0 to size().
  int32_t size() const { return sets_.size(); }
  int32_t set(NodeId n) const { return set_of_[Index(n)]; }
  absl::Span<const NodeId> entries(int32_t number) const { return sets_.of(number); }

 private:
  StorageSets() = default;

  std::vector<int32_t> set_of_;
  Csr sets_;
};

}  // namespace bucketd
