#include "passes/pass/upstream/torch_traffic.h"

#include "absl/strings/match.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/ir/ops.h"
#include "passes/pass/ancestry.h"
#include "passes/pass/primary_group.h"

namespace bucketd::upstream {
namespace {

CollectiveId Count(const Graph& graph) {
  return static_cast<CollectiveId>(graph.collectives().size());
}

bool WritesIntoGiven(const Graph& graph, const Collective& collective) {
  return absl::EndsWith(BaseName(graph.op(collective.start)), "_out");
}

}  // namespace

Traffic FindTraffic(const Graph& graph, bool primary_only) {
  Traffic traffic;
  traffic.gather.resize(graph.collectives().size());
  traffic.scatter.resize(graph.collectives().size());
  const std::vector<NodeId> only = OnlyPlaceholders(graph);
  const std::vector<bool> unary = UnaryTails(graph);
  GroupTally tally(graph);
  for (const bool into_given : {false, true}) {
    for (CollectiveId c = 0; c < Count(graph); ++c) {
      const Collective& collective = graph.collective(c);
      if (!Gathers(collective.kind) || collective.symbolic || only[Index(collective.start)] < 0 ||
          WritesIntoGiven(graph, collective) != into_given) {
        continue;
      }
      traffic.gather[Index(c)] = true;
      tally.Meet(collective.group);
      if (traffic.group_size == 0) traffic.group_size = graph.group(collective).size;
    }
  }
  for (CollectiveId c = 0; c < Count(graph); ++c) {
    const Collective& collective = graph.collective(c);
    traffic.scatter[Index(c)] =
        Scatters(collective.kind) && !collective.symbolic && collective.wait != kNoNode &&
        !graph.users(collective.wait).empty() && unary[Index(collective.wait)];
  }
  traffic.groups = tally.order();
  if (primary_only && !traffic.groups.empty()) traffic.groups = {tally.MostFrequent()};
  return traffic;
}

}  // namespace bucketd::upstream
