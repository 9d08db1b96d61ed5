// Which storages a node's result may stand on, through views, waits and in-place ops.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/ir/graph.h"

namespace bucketd {

// A storage is named by the node that made it. Nodes on the same storages share one set, so real
// graphs cost O(nodes + edges). Thread-safe once built.
class StorageSets {
 public:
  // RESOURCE_EXHAUSTED if the sets of nodes that alias several others grow beyond `max_entries`.
  static absl::StatusOr<StorageSets> Of(const Graph& graph, int64_t max_entries = 50'000'000);

  // Ascending, each once.
  absl::Span<const NodeId> of(NodeId n) const {
    const size_t set = static_cast<size_t>(set_of_[static_cast<size_t>(n)]);
    return absl::MakeConstSpan(entries_).subspan(
        static_cast<size_t>(begin_[set]), static_cast<size_t>(begin_[set + 1] - begin_[set]));
  }

 private:
  StorageSets() = default;
  int32_t AddSet(absl::Span<const NodeId> entries);

  std::vector<int32_t> set_of_;
  std::vector<int64_t> begin_ = {0};
  std::vector<NodeId> entries_;
};

}  // namespace bucketd
