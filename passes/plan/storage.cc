#include "passes/plan/storage.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bucketd {

Storages::Storages(const Graph& graph)
    : graph_(&graph), set_of_(Index(graph.size()), kNone), first_own_(set_of_) {
  bytes_.reserve(Index(graph.size()));
  parts_.begin.reserve(Index(graph.size()) + 1);
}

Storages::SetId Storages::Make(int64_t bytes) {
  bytes_.push_back(bytes);
  parts_.Close();
  return size() - 1;
}

Storages::SetId Storages::Union(absl::Span<const SetId> sets) {
  if (sets.empty()) return kNone;
  if (sets.size() == 1) return sets.front();
  parts_.Append(sets);
  return Make(0);
}

int64_t Storages::own_bytes(NodeId n) const {
  int64_t bytes = 0;
  for (int32_t i = 0; i < own_count(n); ++i) bytes += bytes_[Index(first_own(n) + i)];
  return bytes;
}

void Storages::Add(NodeId n) {
  if (graph_->kind(n) == NodeKind::kGetitem) {
    Put(n, SetOfGetitem(n));
    return;
  }
  scratch_.clear();
  for (const NodeId x : graph_->alias_of(n)) {
    if (of(x) != kNone) scratch_.push_back(of(x));
  }
  if (MakesStorage(*graph_, n)) {
    const bool beside = graph_->role(n) == Role::kParameter || graph_->role(n) == Role::kBuffer;
    for (const TensorType& tensor : graph_->outputs(n)) {
      scratch_.push_back(Make(beside ? 0 : tensor.bytes));
      if (first_own(n) == kNone) first_own_[Index(n)] = scratch_.back();
    }
  }
  Put(n, Union(scratch_));
}

// A piece of what the source made, or all that it stands on. A source that made nothing, such as
// a view, hands on to what the getitem aliases.
Storages::SetId Storages::SetOfGetitem(NodeId n) const {
  NodeId source = graph_->inputs(n).front();
  if (own_count(source) == 0 && !graph_->alias_of(n).empty()) source = graph_->alias_of(n).front();
  const int32_t index = graph_->getitem_index(n);
  return index < own_count(source) ? first_own(source) + index : of(source);
}

absl::StatusOr<StorageSets> StorageSets::Of(const Graph& graph, int64_t max_entries) {
  StorageSets sets;
  sets.set_of_.reserve(static_cast<size_t>(graph.size()));
  std::vector<NodeId> merged;
  int64_t visited = 0;
  for (NodeId n = 0; n < graph.size(); ++n) {
    const absl::Span<const NodeId> aliases = graph.alias_of(n);
    const bool makes_storage = aliases.empty() || MakesStorage(graph, n);
    if (aliases.size() == 1 && !makes_storage) {
      sets.set_of_.push_back(sets.set(aliases.front()));
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
    sets.sets_.Append(merged);
    sets.sets_.Close();
    sets.set_of_.push_back(sets.size() - 1);
  }
  return sets;
}

}  // namespace bucketd
