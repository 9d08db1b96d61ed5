#include "passes/pass/tags.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"

namespace bucketd {
namespace {

constexpr NodeId kManyPlaceholders = -2;
constexpr int32_t kNoSlot = std::numeric_limits<int32_t>::max();

CollectiveId Count(const Graph& graph) {
  return static_cast<CollectiveId>(graph.collectives().size());
}

bool OnlyUserIsWait(const Graph& graph, const Collective& c) {
  return c.wait != kNoNode && graph.users(c.start).size() == 1;
}

// The one placeholder with tensors that each node is computed from, kNoNode, or kManyPlaceholders.
std::vector<NodeId> PlaceholderAncestors(const Graph& graph) {
  std::vector<NodeId> ancestor(Index(graph.size()), kNoNode);
  for (NodeId n = 0; n < graph.size(); ++n) {
    NodeId& mine = ancestor[Index(n)];
    if (graph.kind(n) == NodeKind::kPlaceholder) {
      if (!graph.outputs(n).empty()) mine = n;
      continue;
    }
    for (const NodeId x : graph.inputs(n)) {
      const NodeId theirs = ancestor[Index(x)];
      if (theirs == kNoNode || theirs == mine) continue;
      mine = mine == kNoNode ? theirs : kManyPlaceholders;
    }
  }
  return ancestor;
}

bool KnowsRoles(const Graph& graph) {
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (graph.kind(n) == NodeKind::kPlaceholder && graph.role(n) != Role::kNone) return true;
  }
  return false;
}

// What follows a node until the outputs.
struct Tail {
  std::vector<bool> unary;    // all that follows reads one node only, or is the output
  std::vector<int32_t> slot;  // lowest slot of a parameter's gradient that is reached
};

Tail FindTails(const Graph& graph) {
  Tail tail;
  tail.unary.assign(Index(graph.size()), true);
  tail.slot.assign(Index(graph.size()), kNoSlot);
  const absl::Span<const OutputSlot> slots = graph.output_slots();
  for (size_t i = slots.size(); i-- > 0;) {
    if (slots[i].node == kNoNode || slots[i].kind != SlotKind::kParameterGradient) continue;
    tail.slot[Index(slots[i].node)] = static_cast<int32_t>(i);
  }
  for (NodeId n = graph.size() - 1; n >= 0; --n) {
    for (const NodeId user : graph.users(n)) {
      if (graph.kind(user) == NodeKind::kOutput) continue;
      if (graph.inputs(user).size() != 1 || !tail.unary[Index(user)]) tail.unary[Index(n)] = false;
      tail.slot[Index(n)] = std::min(tail.slot[Index(n)], tail.slot[Index(user)]);
    }
  }
  return tail;
}

void TagAllGathers(const Graph& graph, Tags& tags) {
  const std::vector<NodeId> ancestor = PlaceholderAncestors(graph);
  const bool roles = KnowsRoles(graph);
  for (CollectiveId c = 0; c < Count(graph); ++c) {
    const Collective& collective = graph.collective(c);
    if (!Gathers(collective.kind) || !OnlyUserIsWait(graph, collective)) continue;
    const NodeId placeholder = ancestor[Index(collective.start)];
    if (placeholder < 0) continue;
    if (roles && graph.role(placeholder) != Role::kParameter) continue;
    tags.of[Index(c)] = {Tag::kFsdpAllGather, graph.parameter(placeholder)};
  }
}

// Whether the slot is reached, and by single-input nodes only.
bool EndsInGradient(const Graph& graph, const Tail& tail, const Collective& collective) {
  return OnlyUserIsWait(graph, collective) && !graph.users(collective.wait).empty() &&
         tail.unary[Index(collective.wait)] && tail.slot[Index(collective.wait)] != kNoSlot;
}

void TagGradients(const Graph& graph, Tags& tags) {
  const Tail tail = FindTails(graph);
  for (CollectiveId c = 0; c < Count(graph); ++c) {
    const Collective& collective = graph.collective(c);
    const bool scatter = Scatters(collective.kind);
    if (!Reduces(collective.kind)) continue;
    if (!EndsInGradient(graph, tail, collective)) continue;
    const OutputSlot& slot = graph.output_slots()[Index(tail.slot[Index(collective.wait)])];
    tags.of[Index(c)] = {scatter ? Tag::kFsdpReduceScatter : Tag::kDdpAllReduce,
                         graph.string(slot.parameter)};
  }
}

bool IsTaggedScatter(const Graph& graph, const Tags& tags, NodeId n) {
  return graph.kind(n) == NodeKind::kCollective &&
         tags[graph.collective_of(n)].tag == Tag::kFsdpReduceScatter;
}

// All-reduces before or after a tagged reduce-scatter on its chain belong to it.
void SeparateHsdp(const Graph& graph, Tags& tags) {
  std::vector<bool> after(Index(graph.size())), before(Index(graph.size()));
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (graph.inputs(n).size() != 1) continue;
    const NodeId x = graph.inputs(n)[0];
    after[Index(n)] = after[Index(x)] || IsTaggedScatter(graph, tags, x);
  }
  for (NodeId n = graph.size() - 1; n >= 0; --n) {
    for (const NodeId user : graph.users(n)) {
      if (graph.inputs(user).size() == 1 &&
          (before[Index(user)] || IsTaggedScatter(graph, tags, user))) {
        before[Index(n)] = true;
      }
    }
  }
  for (CollectiveId c = 0; c < Count(graph); ++c) {
    const NodeId start = graph.collective(c).start;
    CollectiveTag& tag = tags.of[Index(c)];
    if (tag.tag == Tag::kDdpAllReduce && (after[Index(start)] || before[Index(start)])) {
      tag.tag = Tag::kHsdpAllReduce;
    }
  }
}

CollectiveKind KindOf(Tag tag) {
  switch (tag) {
    case Tag::kFsdpAllGather:
      return CollectiveKind::kAllGather;
    case Tag::kFsdpReduceScatter:
      return CollectiveKind::kReduceScatter;
    case Tag::kDdpAllReduce:
    case Tag::kHsdpAllReduce:
      return CollectiveKind::kAllReduce;
    case Tag::kNone:
      break;
  }
  return CollectiveKind::kUnspecified;
}

}  // namespace

Tags DeriveTags(const Graph& graph) {
  Tags tags;
  tags.of.resize(graph.collectives().size());
  tags.derived = true;
  TagAllGathers(graph, tags);
  TagGradients(graph, tags);
  SeparateHsdp(graph, tags);
  return tags;
}

Tags ResolveTags(const Graph& graph, std::vector<Diagnostic>& diagnostics) {
  bool stated = false;
  for (const Collective& c : graph.collectives()) stated = stated || c.tag != Tag::kNone;
  if (!stated) return DeriveTags(graph);
  Tags tags;
  tags.of.resize(graph.collectives().size());
  Diagnostic refused;
  for (CollectiveId c = 0; c < Count(graph); ++c) {
    const Collective& collective = graph.collective(c);
    if (collective.tag == Tag::kNone) continue;
    if (KindOf(collective.tag) == collective.kind && OnlyUserIsWait(graph, collective)) {
      tags.of[Index(c)] = {collective.tag, graph.string(collective.parameter)};
    } else {
      refused.nodes.push_back(collective.start);
    }
  }
  if (!refused.nodes.empty()) {
    refused.code = "tag-refused";
    refused.text =
        absl::StrCat(refused.nodes.size(),
                     " collectives carry a tag of another kind of collective, or are used "
                     "by others than their wait; they are left alone, first ",
                     graph.Describe(refused.nodes[0]));
    diagnostics.push_back(std::move(refused));
  }
  return tags;
}

NodeId LastForwardNode(const Graph& graph) {
  NodeId last = kNoNode;
  bool gradients = false;
  for (const OutputSlot& slot : graph.output_slots()) {
    if (slot.node == kNoNode) continue;
    gradients = gradients || slot.kind == SlotKind::kParameterGradient;
    if (slot.kind == SlotKind::kOutput) last = std::max(last, slot.node);
  }
  return gradients ? last : graph.size();
}

Direction DirectionOf(const Graph& graph, NodeId n, NodeId last_forward) {
  const Direction stated = graph.direction(n);
  if (stated != Direction::kNone) return stated;
  return n <= last_forward ? Direction::kForward : Direction::kBackward;
}

std::vector<Direction> CollectiveDirections(const Graph& graph) {
  const NodeId last_forward = LastForwardNode(graph);
  std::vector<Direction> directions;
  directions.reserve(graph.collectives().size());
  for (const Collective& c : graph.collectives()) {
    directions.push_back(DirectionOf(graph, c.start, last_forward));
  }
  return directions;
}

}  // namespace bucketd
