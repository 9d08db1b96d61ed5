#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/text/bir.h"
#include "passes/text/defaults.h"
#include "passes/text/link_text.h"
#include "passes/text/plan_text.h"

namespace bucketd {
namespace text_internal {
namespace {

class GraphPrinter {
 public:
  GraphPrinter(const Graph& graph, const BirParts& parts)
      : graph_(graph),
        parts_(parts),
        names_(graph),
        facts_(graph.strings().size()),
        knows_facts_(graph.strings().size(), false) {
    int64_t count[3] = {};  // by direction; the most frequent one is the graph's
    for (NodeId n = 0; n < graph.size(); ++n) ++count[static_cast<size_t>(graph.direction(n))];
    direction_ = static_cast<Direction>(std::max_element(count, count + 3) - count);
    FindGroupLinks();
  }

  std::string Run() && {
    Header();
    for (NodeId n = 0; n < graph_.size(); ++n) Node(n);
    out_.Text("}");
    out_.EndLine();
    if (parts_.plan != nullptr) WritePlan(graph_, names_, *parts_.plan, out_);
    return std::move(out_).Take();
  }

 private:
  template <typename... Parts>
  void Put(const Parts&... parts) {
    out_.Text(absl::StrCat(parts...));
  }

  void FindGroupLinks() {
    group_links_.resize(graph_.groups().size());
    if (parts_.costs == nullptr) return;
    std::vector<bool> found(graph_.groups().size(), false);
    for (size_t i = 0; i < graph_.collectives().size(); ++i) {
      const Collective& c = graph_.collectives()[i];
      const auto g = static_cast<size_t>(c.group);
      if (found[g]) continue;
      group_links_[g] = GroupLink(parts_.costs->links[i], c, graph_.group(c).size);
      found[g] = group_links_[g].states_any();
    }
  }

  void Header() {
    Put("graph");
    if (!graph_.name().empty()) Put(" @", QuotedText(graph_.name()));
    if (direction_ != Direction::kNone) Put(" ", Name(direction_));
    if (parts_.costs != nullptr && graph_.collectives().empty() &&
        std::all_of(parts_.costs->node_us.begin(), parts_.costs->node_us.end(),
                    [](double us) { return us == 0.0; })) {
      Put(" costs");  // or nothing would say that they are stated
    }
    if (!graph_.groups().empty()) {
      Put(" mesh(");
      DimsByName dims;
      if (parts_.mesh != nullptr) {
        for (const MeshDim& dim : parts_.mesh->dims) dims.emplace(dim.name, &dim);
      }
      for (size_t g = 0; g < graph_.groups().size(); ++g) {
        out_.Item(g == 0 ? "" : ",", GroupText(g, dims), kListIndent);
      }
      Put(")");
    }
    Put(" {");
    out_.EndLine();
  }

  static std::string GroupName(const Group& group) {
    return absl::StrCat(QuotedText(group.mesh_dim),
                        group.lane == 0 ? "" : absl::StrCat("#", group.lane));
  }

  using DimsByName = absl::flat_hash_map<absl::string_view, const MeshDim*>;

  // The first group of a dimension says what there is to say of it, and takes it out.
  std::string GroupText(size_t g, DimsByName& dims) const {
    const Group& group = graph_.groups()[g];
    std::string text = absl::StrCat(GroupName(group), "=", group.size);
    const LinkText& link = group_links_[g];
    if (link.alpha_us >= 0) absl::StrAppend(&text, " alpha=", TimeText(link.alpha_us));
    if (link.busbw_bytes_per_s >= 0) {
      absl::StrAppend(&text, " busbw=", RateText(link.busbw_bytes_per_s));
    }
    const auto at = dims.find(group.mesh_dim);
    if (at == dims.end()) return text;
    const MeshDim& dim = *at->second;
    if (dim.ranks_per_node != 0) absl::StrAppend(&text, " per_node=", dim.ranks_per_node);
    if (!dim.link_class.empty()) absl::StrAppend(&text, " link=", QuotedText(dim.link_class));
    dims.erase(at);
    return text;
  }

  const OpFacts& FactsOfOp(NodeId n) {
    const auto op = static_cast<size_t>(graph_.op_id(n));
    if (!knows_facts_[op]) {
      facts_[op] = FactsOf(graph_.op(n));
      knows_facts_[op] = true;
    }
    return facts_[op];
  }

  void Node(NodeId n) {
    const NodeKind kind = graph_.kind(n);
    const std::string definition = names_.Definition(n);
    Put("  ");
    if (kind != NodeKind::kOutput || definition != "%output") Put(definition, " = ");
    if (kind == NodeKind::kCall) {
      Call(n);
    } else {
      Keyworded(n);
    }
    Flags(n);
    Lists(n);
    if (!graph_.module(n).empty()) Put(" module=", QuotedText(graph_.module(n)));
    if (graph_.direction(n) != direction_) {
      const bool none = graph_.direction(n) == Direction::kNone;
      Put(" ", none ? "undirected" : Name(graph_.direction(n)));
    }
    if (graph_.flops(n) != 0) Put(" flops=", graph_.flops(n));
    Costs(n);
    OutputsAndBytes(n);
    out_.EndLine();
  }

  void Call(NodeId n) {
    const absl::string_view op = graph_.op(n);
    const absl::string_view brief = ShortOp(op);
    const bool plain = IsWord(op) && op.find('.') != absl::string_view::npos;
    if (!brief.empty() || plain) {
      Put(brief.empty() ? op : brief);
    } else {
      Put(InQuotes(op));
    }
    List("(", graph_.inputs(n));
  }

  void Keyworded(NodeId n) {
    const CollectiveId id = graph_.collective_of(n);
    const bool starts = graph_.kind(n) == NodeKind::kCollective;
    const Keyword& keyword =
        KeywordOf(graph_.kind(n), graph_.role(n),
                  starts ? graph_.collective(id).kind : CollectiveKind::kUnspecified);
    Put(keyword.word);
    if (graph_.kind(n) == NodeKind::kOutput) {
      Slots();
    } else if (graph_.kind(n) == NodeKind::kPlaceholder) {
      if (!graph_.parameter(n).empty()) Put("(", QuotedText(graph_.parameter(n)), ")");
    } else if (!graph_.inputs(n).empty()) {
      List("(", graph_.inputs(n));
    }
    if (graph_.op(n) != keyword.op) Put(" op=", QuotedText(graph_.op(n)));
    if (graph_.getitem_index(n) != 0) Put(" index=", graph_.getitem_index(n));
    if (starts) CollectivePart(graph_.collective(id));
  }

  void CollectivePart(const Collective& c) {
    if (c.group != 0) Put(" group=", GroupName(graph_.group(c)));
    const ReduceOp usual = Reduces(c.kind) ? ReduceOp::kSum : ReduceOp::kNone;
    if (c.reduce_op != usual) Put(" reduce=", Name(c.reduce_op));
    if (c.tag != Tag::kNone) Put(" tag=", Name(c.tag));
    if (c.parameter != 0) Put(" param=", QuotedText(graph_.string(c.parameter)));
  }

  void Slots() {
    const absl::Span<const OutputSlot> slots = graph_.output_slots();
    // A line may end behind a comma, not behind the word.
    if (!slots.empty()) Put(" ", SlotText(slots[0]));
    for (size_t i = 1; i < slots.size(); ++i) out_.Item(",", SlotText(slots[i]), kListIndent);
  }

  std::string SlotText(const OutputSlot& slot) const {
    if (slot.node == kNoNode) return "empty";
    const absl::string_view parameter = graph_.string(slot.parameter);
    const std::string in_parentheses =
        parameter.empty() ? "" : absl::StrCat("(", QuotedText(parameter), ")");
    std::string kind(Name(slot.kind));
    if (slot.kind == SlotKind::kOutput && parameter.empty()) return names_.Of(slot.node);
    const bool brief = parameter.empty() ? slot.kind == SlotKind::kInputGradient
                                         : slot.kind == SlotKind::kParameterGradient;
    if (brief) kind = "grad";
    return absl::StrCat(kind, in_parentheses, " ", names_.Of(slot.node));
  }

  void List(absl::string_view before, absl::Span<const NodeId> nodes) {
    out_.Text(before);
    for (size_t i = 0; i < nodes.size(); ++i) {
      out_.Item(i == 0 ? "" : ",", names_.Of(nodes[i]), kListIndent);
    }
    out_.Text(")");
  }

  void Flags(NodeId n) {
    const uint8_t usual = DefaultFlags(graph_.kind(n), FactsOfOp(n));
    for (const auto& [flag, word] : kNodeFlags) {
      const bool is_set = (graph_.flags(n) & flag) != 0;
      if (is_set != ((usual & flag) != 0)) Put(is_set ? " " : " !", word);
    }
  }

  void Lists(NodeId n) {
    if (!graph_.mutates(n).empty()) List(" mutates(", graph_.mutates(n));
    const absl::Span<const NodeId> usual =
        DefaultAlias(graph_.kind(n), graph_.flags(n), graph_.inputs(n), graph_.mutates(n));
    if (graph_.alias_of(n) != usual) List(" alias(", graph_.alias_of(n));
  }

  void Costs(NodeId n) {
    const bool starts = graph_.kind(n) == NodeKind::kCollective;
    if (parts_.costs != nullptr && !starts) {
      const double us = parts_.costs->node_us[static_cast<size_t>(n)];
      if (us != 0.0) Put(" cost=", TimeText(us));
    }
    if (!starts) return;
    const CollectiveId id = graph_.collective_of(n);
    if (parts_.costs != nullptr) Link(id);
    for (; next_overlap_ < parts_.overlap.size(); ++next_overlap_) {
      const BirOverlap& overlap = parts_.overlap[next_overlap_];
      if (overlap.collective > id) return;
      if (overlap.collective == id) Overlap(overlap);
    }
  }

  void Link(CollectiveId id) {
    const Collective& c = graph_.collective(id);
    const LinkText link =
        ShortestLink(parts_.costs->links[static_cast<size_t>(id)],
                     group_links_[static_cast<size_t>(c.group)], c, graph_.group(c).size);
    if (link.cost_us >= 0) Put(" cost=", TimeText(link.cost_us));
    if (link.alpha_us >= 0) Put(" alpha=", TimeText(link.alpha_us));
    if (link.busbw_bytes_per_s >= 0) Put(" busbw=", RateText(link.busbw_bytes_per_s));
  }

  void Overlap(const BirOverlap& overlap) {
    if (!overlap.hidden_by.empty()) List(" hidden_by(", overlap.hidden_by);
    const auto put = [&](absl::string_view word, int64_t ps) {
      if (ps >= 0) Put(" ", word, "=", TimeText(static_cast<double>(ps) / 1e6));
    };
    put("exposed", overlap.exposed_ps);
    put("est", overlap.est_ps);
  }

  void OutputsAndBytes(NodeId n) {
    tensors_.clear();
    for (const TensorType& tensor : graph_.outputs(n)) {
      tensors_.push_back({tensor.dtype, graph_.shape(tensor)});
    }
    const int64_t usual_bytes = CountedBytes(graph_, graph_.kind(n), graph_.flags(n),
                                             FactsOfOp(n).traffic, graph_.inputs(n), tensors_);
    if (graph_.memory_bytes(n) != usual_bytes) Put(" bytes=", graph_.memory_bytes(n));
    if (OutputsFollow(n)) return;
    if (tensors_.empty()) return Put(" : ()");
    for (size_t i = 0; i < tensors_.size(); ++i) {
      out_.Item(
          i == 0 ? " : " : ",",
          absl::StrCat(Name(tensors_[i].dtype), "[", absl::StrJoin(tensors_[i].shape, ","), "]"),
          kListIndent);
    }
  }

  bool OutputsFollow(NodeId n) {
    NodeSpec spec;
    spec.kind = graph_.kind(n);
    spec.inputs = graph_.inputs(n);
    spec.getitem_index = graph_.getitem_index(n);
    int32_t ranks = 1;
    if (spec.kind == NodeKind::kCollective) {
      const Collective& c = graph_.collective(graph_.collective_of(n));
      spec.collective.kind = c.kind;
      ranks = graph_.group(c).size;
    }
    if (!DefaultOutputs(graph_, spec, ranks, dims_, usual_tensors_)) {
      return tensors_.empty() && spec.kind == NodeKind::kPlaceholder &&
             graph_.role(n) == Role::kNone;
    }
    return std::equal(tensors_.begin(), tensors_.end(), usual_tensors_.begin(),
                      usual_tensors_.end(),
                      [](const NodeSpec::Tensor& a, const NodeSpec::Tensor& b) {
                        return a.dtype == b.dtype && a.shape == b.shape;
                      });
  }

  const Graph& graph_;
  const BirParts& parts_;
  NodeNames names_;
  Writer out_;
  Direction direction_ = Direction::kNone;
  std::vector<LinkText> group_links_;
  size_t next_overlap_ = 0;
  std::vector<OpFacts> facts_;  // by StringId
  std::vector<bool> knows_facts_;
  std::vector<NodeSpec::Tensor> tensors_, usual_tensors_;
  std::vector<int64_t> dims_;
};

}  // namespace
}  // namespace text_internal

std::string PrintBir(const Graph& graph, const BirParts& parts) {
  return text_internal::GraphPrinter(graph, parts).Run();
}

}  // namespace bucketd
