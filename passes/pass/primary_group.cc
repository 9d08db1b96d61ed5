#include "passes/pass/primary_group.h"

#include "passes/base/index.h"

namespace bucketd {

GroupId GroupTally::MostFrequent() const {
  GroupId best = -1;
  for (const GroupId group : order_) {
    if (best < 0 || count_[Index(group)] > count_[Index(best)]) best = group;
  }
  return best;
}

GroupId PrimaryGroup(const Graph& graph, const Tags& tags) {
  GroupTally gathers(graph), others(graph);
  const auto collectives = static_cast<CollectiveId>(graph.collectives().size());
  for (CollectiveId c = 0; c < collectives; ++c) {
    const Tag tag = tags[c].tag;
    if (tag == Tag::kNone) continue;
    (tag == Tag::kFsdpAllGather ? gathers : others).Meet(graph.collective(c).group);
  }
  return gathers.order().empty() ? others.MostFrequent() : gathers.MostFrequent();
}

}  // namespace bucketd
