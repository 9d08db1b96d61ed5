#include "passes/plan/storage.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bucketd {

int32_t StorageSets::AddSet(absl::Span<const NodeId> entries) {
  entries_.insert(entries_.end(), entries.begin(), entries.end());
  begin_.push_back(static_cast<int64_t>(entries_.size()));
  return static_cast<int32_t>(begin_.size()) - 2;
}

absl::StatusOr<StorageSets> StorageSets::Of(const Graph& graph, int64_t max_entries) {
  StorageSets sets;
  sets.set_of_.reserve(static_cast<size_t>(graph.size()));
  std::vector<NodeId> merged;
  int64_t visited = 0;
  for (NodeId n = 0; n < graph.size(); ++n) {
    const absl::Span<const NodeId> aliases = graph.alias_of(n);
    // A collective that writes into a given tensor makes its result storage of its own as well.
    const bool makes_storage = aliases.empty() || graph.kind(n) == NodeKind::kCollective;
    if (aliases.size() == 1 && !makes_storage) {
      sets.set_of_.push_back(sets.set_of_[static_cast<size_t>(aliases.front())]);
      continue;
    }
    merged.clear();
    for (const NodeId alias : aliases) {
      const absl::Span<const NodeId> of_alias = sets.of(alias);
      visited += static_cast<int64_t>(of_alias.size());
      if (visited > max_entries) {
        return absl::ResourceExhaustedError(absl::StrCat(
            graph.Describe(n), ": its outputs alias nodes that together stand on more than ",
            max_entries, " storages; in-place ops among so many cannot be verified"));
      }
      merged.insert(merged.end(), of_alias.begin(), of_alias.end());
    }
    if (makes_storage) merged.push_back(n);
    std::sort(merged.begin(), merged.end());
    merged.erase(std::unique(merged.begin(), merged.end()), merged.end());
    sets.set_of_.push_back(sets.AddSet(merged));
  }
  return sets;
}

}  // namespace bucketd
