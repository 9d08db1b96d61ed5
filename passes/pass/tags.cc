#include "passes/pass/tags.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/pass/passes.h"

namespace bucketd {
namespace {

constexpr int32_t kNoSlot = std::numeric_limits<int32_t>::max();

CollectiveId Count(const Graph& graph) {
  return static_cast<CollectiveId>(graph.collectives().size());
}

bool OnlyUserIsWait(const Graph& graph, const Collective& c) {
  return c.wait != kNoNode && graph.users(c.start).size() == 1;
}

bool KnowsRoles(const Graph& graph) {
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (graph.kind(n) == NodeKind::kPlaceholder && graph.role(n) != Role::kNone) return true;
  }
  return false;
}

// One a node: the lowest slot of a parameter's gradient that follows it.
std::vector<int32_t> GradientSlots(const Graph& graph) {
  std::vector<int32_t> reached(Index(graph.size()), kNoSlot);
  const absl::Span<const OutputSlot> slots = graph.output_slots();
  for (size_t i = slots.size(); i-- > 0;) {
    if (slots[i].node == kNoNode || slots[i].kind != SlotKind::kParameterGradient) continue;
    reached[Index(slots[i].node)] = static_cast<int32_t>(i);
  }
  for (NodeId n = graph.size() - 1; n >= 0; --n) {
    for (const NodeId user : graph.users(n)) {
      if (graph.kind(user) == NodeKind::kOutput) continue;
      reached[Index(n)] = std::min(reached[Index(n)], reached[Index(user)]);
    }
  }
  return reached;
}

void TagAllGathers(const Graph& graph, Tags& tags) {
  const std::vector<NodeId> ancestor = OnlyPlaceholders(graph);
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

void TagGradients(const Graph& graph, Tags& tags) {
  const std::vector<bool> unary = UnaryTails(graph);
  const std::vector<int32_t> slot_of = GradientSlots(graph);
  for (CollectiveId c = 0; c < Count(graph); ++c) {
    const Collective& collective = graph.collective(c);
    if (!Reduces(collective.kind) || !OnlyUserIsWait(graph, collective)) continue;
    const int32_t slot = slot_of[Index(collective.wait)];
    if (graph.users(collective.wait).empty() || !unary[Index(collective.wait)] || slot == kNoSlot) {
      continue;
    }
    tags.of[Index(c)] = {Scatters(collective.kind) ? Tag::kFsdpReduceScatter : Tag::kDdpAllReduce,
                         graph.string(graph.output_slots()[Index(slot)].parameter)};
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

// Fills tags, directions and constraints. The plan stays as it is.
class TagCollectives : public Pass {
 public:
  absl::string_view name() const override { return "tag-collectives"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    context.tags = ResolveTags(context.graph, plan.diagnostics);
    context.directions = CollectiveDirections(context.graph);
    ASSIGN_OR_RETURN(context.constraints, FindConstraints(context.graph));
    size_t tagged = 0;
    for (const CollectiveTag& tag : context.tags.of) tagged += tag.tag == Tag::kNone ? 0 : 1;
    if (context.tags.derived && tagged > 0) {
      plan.diagnostics.push_back(
          {"tags-derived",
           absl::StrCat("the graph names no parameter collectives; ", tagged, " of ",
                        context.tags.of.size(), " collectives were found by structure"),
           {}});
    }
    return false;
  }
};

}  // namespace

std::vector<NodeId> OnlyPlaceholders(const Graph& graph) {
  constexpr NodeId kMany = -2;
  std::vector<NodeId> only(Index(graph.size()), kNoNode);
  for (NodeId n = 0; n < graph.size(); ++n) {
    NodeId& mine = only[Index(n)];
    if (graph.kind(n) == NodeKind::kPlaceholder) {
      if (!graph.outputs(n).empty()) mine = n;
      continue;
    }
    for (const NodeId x : graph.inputs(n)) {
      const NodeId theirs = only[Index(x)];
      if (theirs == kNoNode || theirs == mine) continue;
      mine = mine == kNoNode ? theirs : kMany;
    }
  }
  return only;
}

std::vector<bool> UnaryTails(const Graph& graph) {
  std::vector<bool> unary(Index(graph.size()), true);
  for (NodeId n = graph.size() - 1; n >= 0; --n) {
    for (const NodeId user : graph.users(n)) {
      if (graph.kind(user) == NodeKind::kOutput) continue;
      if (graph.inputs(user).size() != 1 || !unary[Index(user)]) unary[Index(n)] = false;
    }
  }
  return unary;
}

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

std::unique_ptr<Pass> MakeTagCollectivesPass() { return std::make_unique<TagCollectives>(); }

}  // namespace bucketd
