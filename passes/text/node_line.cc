#include "passes/text/node_line.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"
#include "passes/ir/text.h"

namespace bucketd::text_internal {
namespace {

uint8_t FlagOf(absl::string_view word) {
  for (const auto& [flag, name] : kNodeFlags) {
    if (name == word) return flag;
  }
  return 0;
}

constexpr char kAttributes[] =
    "an attribute (view, compute, pointwise, ordered, symbolic, forward, backward, undirected, "
    "mutates(...), "
    "alias(...), module=, flops=, bytes=, cost=, op=, index=, group=, reduce=, tag=, param=, "
    "alpha=, busbw=, hidden_by(...), exposed=, est=), \":\" or the end of the line";

}  // namespace

void NodeLineReader::Clear() {
  line_.spec = NodeSpec();
  line_.by_position = false;
  line_.costs.link = LinkText();
  line_.costs.exposed_us = line_.costs.est_us = kNotStated;
  line_.costs.hidden_by.clear();
  keyword_ = nullptr;
  op_ = nullptr;
  seen_ = 0;
  set_flags_ = cleared_flags_ = 0;
  inputs_.clear();
  alias_of_.clear();
  mutates_.clear();
  dims_.clear();
  shapes_.clear();
  tensors_.clear();
  slots_.clear();
}

absl::StatusOr<GroupName> NodeLineReader::ReadGroupName() {
  GroupName name;
  ASSIGN_OR_RETURN(name.mesh_dim, scan_.Text("the name of a mesh dimension"));
  if (scan_.Accept('#')) {
    ASSIGN_OR_RETURN(const int64_t lane, scan_.Integer("the number of a lane", INT32_MAX));
    name.lane = static_cast<int32_t>(lane);
  }
  return name;
}

absl::Status NodeLineReader::Read(const Graph& graph, const Names& names, Direction direction) {
  graph_ = &graph;
  names_ = &names;
  Clear();
  line_.spec.direction = direction;
  const bool is_named = scan_.Peek() == '%';
  const size_t offset = scan_.offset();
  if (is_named) {
    RETURN_IF_ERROR(ReadDefinition());
    RETURN_IF_ERROR(ReadHead());
  } else {
    if (!scan_.AcceptWord("return")) return scan_.Expected("%name =, return or \"}\"");
    line_.spec.name = "output";
    keyword_ = FindKeyword("return");
    RETURN_IF_ERROR(ReadKeyword());
  }
  RETURN_IF_ERROR(ReadAttributes());
  return Finish(offset);
}

// %name =, %12 = or %12(name) =. A return may go without.
absl::Status NodeLineReader::ReadDefinition() {
  ASSIGN_OR_RETURN(const NodeLabel label, scan_.Label());
  line_.spec.name = label.name;
  line_.by_position = label.position >= 0;
  if (line_.by_position && label.position != graph_->size()) {
    return scan_.ErrorAt(label.offset, absl::StrCat("this is node %", graph_->size(),
                                                    ", but it calls itself %", label.position));
  }
  if (line_.by_position && scan_.Accept('(')) {
    ASSIGN_OR_RETURN(line_.spec.name, scan_.Text("the node's name"));
    RETURN_IF_ERROR(scan_.Expect(')'));
  }
  return scan_.Expect('=');
}

absl::Status NodeLineReader::ReadHead() {
  const bool is_quoted = scan_.Peek() == '"';
  absl::string_view word;
  if (is_quoted) {
    ASSIGN_OR_RETURN(word, scan_.Text("an op"));
  } else {
    word = scan_.Word();
    if (word.empty()) return scan_.Expected("an op");
    keyword_ = FindKeyword(word);
  }
  NodeSpec& spec = line_.spec;
  if (keyword_ == nullptr) {
    op_ = &FindOp(word, is_quoted);
    spec.kind = NodeKind::kCall;
    return ReadOperands();
  }
  return ReadKeyword();
}

absl::Status NodeLineReader::ReadKeyword() {
  NodeSpec& spec = line_.spec;
  op_ = &FindOp(keyword_->op, true);
  spec.kind = keyword_->kind;
  spec.role = keyword_->role;
  spec.collective.kind = keyword_->collective;
  if (spec.kind == NodeKind::kOutput) return ReadSlots();
  if (spec.kind != NodeKind::kPlaceholder) return ReadOperands();
  if (!scan_.Accept('(')) return absl::OkStatus();
  ASSIGN_OR_RETURN(spec.parameter, scan_.Text("a parameter's name"));
  return scan_.Expect(')');
}

const NodeLineReader::Op& NodeLineReader::FindOp(absl::string_view written, bool is_quoted) {
  const bool is_short = !is_quoted && written.find('.') == absl::string_view::npos;
  auto& ops = is_short ? short_ops_ : ops_;
  const auto it = ops.find(written);
  if (it != ops.end()) return *it->second;
  auto op = std::make_unique<Op>();
  op->name = is_short ? absl::StrCat("aten.", written, ".default") : std::string(written);
  op->facts = FactsOf(op->name);
  return *ops.emplace(written, std::move(op)).first->second;
}

absl::Status NodeLineReader::ReadOperands() {
  return scan_.Peek() == '(' ? ReadNodes(inputs_) : absl::OkStatus();
}

absl::Status NodeLineReader::ReadNodes(std::vector<NodeId>& nodes) {
  return scan_.Labels('(', ')', [&](const NodeLabel& label) {
    const absl::StatusOr<NodeId> n = Resolve(scan_, label, *names_, graph_->size());
    if (n.ok()) nodes.push_back(*n);
    return n.status();
  });
}

absl::Status NodeLineReader::ReadSlots() {
  // Without slots, attributes may follow at once.
  SlotKind kind = SlotKind::kNone;
  const absl::string_view word = scan_.PeekWord();
  const bool begins = word == "empty" || word == "grad" || FromName(word, kind);
  if (scan_.Peek() != '%' && !begins) return absl::OkStatus();
  std::vector<NodeId>& inputs = inputs_;
  while (!scan_.AtLineEnd() && scan_.Peek() != ':') {
    ASSIGN_OR_RETURN(const NodeSpec::Slot slot, ReadSlot());
    slots_.push_back(slot);
    if (slot.node != kNoNode) inputs.push_back(slot.node);
    if (!scan_.Accept(',')) break;
    scan_.SkipLines();
  }
  // Each node once, by first appearance.
  std::vector<NodeId> order(inputs);
  std::stable_sort(order.begin(), order.end());
  if (std::adjacent_find(order.begin(), order.end()) == order.end()) return absl::OkStatus();
  absl::flat_hash_set<NodeId> seen;
  inputs.erase(std::remove_if(inputs.begin(), inputs.end(),
                              [&](NodeId n) { return !seen.insert(n).second; }),
               inputs.end());
  return absl::OkStatus();
}

// %y, saved %x, grad(w) %g, grad %x, or empty. Without parentheses, grad is an input's.
absl::StatusOr<NodeSpec::Slot> NodeLineReader::ReadSlot() {
  NodeSpec::Slot slot;
  const size_t offset = scan_.Here();
  const absl::string_view word = scan_.Word();
  if (word == "empty") return slot;
  slot.kind = SlotKind::kOutput;
  const bool is_grad = word == "grad";
  if (!word.empty() && !is_grad && !FromName(word, slot.kind)) {
    return scan_.ErrorAt(offset,
                         "expected %node, or grad, saved, output, none, parameter_gradient or "
                         "input_gradient before it, or empty");
  }
  if (is_grad) slot.kind = SlotKind::kInputGradient;
  if (!word.empty() && scan_.Accept('(')) {
    if (is_grad) slot.kind = SlotKind::kParameterGradient;
    ASSIGN_OR_RETURN(slot.parameter, scan_.Text("a parameter's name"));
    RETURN_IF_ERROR(scan_.Expect(')'));
  }
  ASSIGN_OR_RETURN(const NodeLabel label, scan_.Label());
  ASSIGN_OR_RETURN(slot.node, Resolve(scan_, label, *names_, graph_->size()));
  return slot;
}

absl::Status NodeLineReader::ReadAttributes() {
  while (!scan_.AtLineEnd()) {
    if (scan_.Accept(':')) {
      RETURN_IF_ERROR(ReadTypes());
      return scan_.ExpectLineEnd();
    }
    const size_t offset = scan_.offset();
    const bool clears = scan_.Accept('!');
    const absl::string_view word = scan_.Word();
    const uint8_t flag = FlagOf(word);
    if (flag != 0) {
      (clears ? cleared_flags_ : set_flags_) |= flag;
    } else if (clears) {
      return scan_.ErrorAt(offset,
                           "expected view, compute, pointwise, ordered or symbolic after !");
    } else {
      RETURN_IF_ERROR(ReadAttribute(word, offset));
    }
  }
  return absl::OkStatus();
}

absl::Status NodeLineReader::Once(uint32_t bit, absl::string_view word, size_t offset) {
  if ((seen_ & bit) != 0) return scan_.ErrorAt(offset, absl::StrCat(word, " stands here twice"));
  seen_ |= bit;
  return absl::OkStatus();
}

absl::Status NodeLineReader::ReadAttribute(absl::string_view word, size_t offset) {
  struct Known {
    absl::string_view word;
    Attribute attribute;
    bool has_value;
    absl::Status (NodeLineReader::*read)(Attribute);
  };
  static constexpr Known kKnown[] = {
      {"module", kModule, true, &NodeLineReader::ReadText},
      {"cost", kCost, true, &NodeLineReader::ReadCost},
      {"flops", kFlops, true, &NodeLineReader::ReadNumber},
      {"bytes", kBytes, true, &NodeLineReader::ReadNumber},
      {"index", kIndex, true, &NodeLineReader::ReadNumber},
      {"op", kOp, true, &NodeLineReader::ReadText},
      {"param", kParam, true, &NodeLineReader::ReadText},
      {"group", kGroup, true, &NodeLineReader::ReadGroup},
      {"reduce", kReduce, true, &NodeLineReader::ReadName},
      {"tag", kTag, true, &NodeLineReader::ReadName},
      {"alpha", kAlpha, true, &NodeLineReader::ReadCost},
      {"busbw", kBusbw, true, &NodeLineReader::ReadCost},
      {"exposed", kExposed, true, &NodeLineReader::ReadCost},
      {"est", kEst, true, &NodeLineReader::ReadCost},
      {"forward", kForward, false, &NodeLineReader::ReadDirection},
      {"backward", kBackward, false, &NodeLineReader::ReadDirection},
      {"undirected", kUndirected, false, &NodeLineReader::ReadDirection},
      {"mutates", kMutates, false, &NodeLineReader::ReadList},
      {"alias", kAlias, false, &NodeLineReader::ReadList},
      {"hidden_by", kHiddenBy, false, &NodeLineReader::ReadList},
  };
  for (const Known& known : kKnown) {
    if (known.word != word) continue;
    RETURN_IF_ERROR(Once(known.attribute, word, offset));
    constexpr uint32_t kOfCollectives =
        kGroup | kReduce | kTag | kParam | kAlpha | kBusbw | kHiddenBy | kExposed | kEst;
    if ((known.attribute & kOfCollectives) != 0 && line_.spec.kind != NodeKind::kCollective) {
      return scan_.ErrorAt(offset, absl::StrCat(word, " belongs to a collective's line"));
    }
    if (known.has_value) RETURN_IF_ERROR(scan_.Expect('='));
    return (this->*known.read)(known.attribute);
  }
  return scan_.ErrorAt(offset,
                       absl::StrCat("expected ", kAttributes, ", is \"", Printable(word), "\""));
}

absl::Status NodeLineReader::ReadText(Attribute attribute) {
  NodeSpec& spec = line_.spec;
  const size_t offset = scan_.offset();
  ASSIGN_OR_RETURN(const absl::string_view text, scan_.Text("a name"));
  if (attribute == kModule) spec.module = text;
  if (attribute == kParam) spec.collective.parameter = text;
  if (attribute != kOp) return absl::OkStatus();
  if (spec.kind == NodeKind::kCall) return scan_.ErrorAt(offset, "a call's op begins its line");
  op_ = &FindOp(text, true);
  return absl::OkStatus();
}

absl::Status NodeLineReader::ReadNumber(Attribute attribute) {
  const bool is_index = attribute == kIndex;
  ASSIGN_OR_RETURN(const int64_t number,
                   scan_.Integer("a whole number", is_index ? INT32_MAX : INT64_MAX));
  if (attribute == kFlops) line_.spec.flops = number;
  if (attribute == kBytes) line_.spec.memory_bytes = number;
  if (is_index) line_.spec.getitem_index = static_cast<int32_t>(number);
  return absl::OkStatus();
}

absl::Status NodeLineReader::ReadCost(Attribute attribute) {
  LineCosts& costs = line_.costs;
  if (attribute == kBusbw) {
    ASSIGN_OR_RETURN(costs.link.busbw_bytes_per_s, scan_.BytesPerSecond("busbw"));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const double us, scan_.Microseconds("a time"));
  if (attribute == kCost) costs.link.cost_us = us;
  if (attribute == kAlpha) costs.link.alpha_us = us;
  if (attribute == kExposed) costs.exposed_us = us;
  if (attribute == kEst) costs.est_us = us;
  return absl::OkStatus();
}

absl::Status NodeLineReader::ReadGroup(Attribute) {
  const size_t offset = scan_.Here();
  ASSIGN_OR_RETURN(const GroupName name, ReadGroupName());
  const auto it = groups_.find({name.mesh_dim, name.lane});
  if (it == groups_.end()) {
    return scan_.ErrorAt(offset, absl::StrCat("no group ", Printable(name.mesh_dim), "#", name.lane,
                                              ": expected one of the graph's mesh()"));
  }
  line_.spec.collective.group = it->second;
  return absl::OkStatus();
}

absl::Status NodeLineReader::ReadName(Attribute attribute) {
  const size_t offset = scan_.Here();
  NodeSpec::CollectiveSpec& c = line_.spec.collective;
  const absl::string_view name = scan_.Word();
  if (attribute == kReduce ? FromName(name, c.reduce_op)
                           : FromName(name, c.tag) && c.tag != Tag::kNone) {
    return absl::OkStatus();
  }
  return scan_.ErrorAt(offset, attribute == kReduce
                                   ? "expected sum, avg, min, max, product, band, bor, bxor or none"
                                   : "expected fsdp_all_gather, fsdp_reduce_scatter, "
                                     "ddp_all_reduce or hsdp_all_reduce");
}

absl::Status NodeLineReader::ReadDirection(Attribute attribute) {
  line_.spec.direction = attribute == kForward    ? Direction::kForward
                         : attribute == kBackward ? Direction::kBackward
                                                  : Direction::kNone;
  return absl::OkStatus();
}

absl::Status NodeLineReader::ReadList(Attribute attribute) {
  if (attribute == kMutates) return ReadNodes(mutates_);
  if (attribute == kAlias) return ReadNodes(alias_of_);
  return scan_.Labels('(', ')', [&](const NodeLabel& label) {
    line_.costs.hidden_by.push_back(label);
    return absl::OkStatus();
  });
}

// bf16[8,4], f32[]; () for none.
absl::Status NodeLineReader::ReadTypes() {
  seen_ |= kTypes;
  if (scan_.Accept('(')) return scan_.Expect(')');
  do {
    scan_.SkipLines();
    RETURN_IF_ERROR(ReadType());
  } while (scan_.Accept(','));
  return absl::OkStatus();
}

absl::Status NodeLineReader::ReadType() {
  const size_t offset = scan_.Here();
  NodeSpec::Tensor tensor;
  if (!FromName(scan_.Word(), tensor.dtype)) {
    return scan_.ErrorAt(offset, "expected a dtype (bf16, f32, i64, bool, ...), or () for none");
  }
  RETURN_IF_ERROR(scan_.Expect('['));
  const size_t first = dims_.size();
  while (!scan_.Accept(']')) {
    if (dims_.size() > first) RETURN_IF_ERROR(scan_.Expect(','));
    ASSIGN_OR_RETURN(const int64_t dim,
                     scan_.Integer("a size (a whole number; sizes may not be symbolic)"));
    dims_.push_back(dim);
  }
  shapes_.emplace_back(first, dims_.size() - first);
  tensors_.push_back(tensor);
  return absl::OkStatus();
}

// The builder may not be handed what lies in its own graph, which grows as it reads.
void NodeLineReader::OwnShapes() {
  std::vector<int64_t> dims;
  shapes_.clear();
  for (const NodeSpec::Tensor& tensor : tensors_) {
    shapes_.emplace_back(dims.size(), tensor.shape.size());
    dims.insert(dims.end(), tensor.shape.begin(), tensor.shape.end());
  }
  dims_.swap(dims);
  SetShapes();
}

void NodeLineReader::SetShapes() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].shape = absl::MakeConstSpan(dims_).subspan(shapes_[i].first, shapes_[i].second);
  }
}

absl::Status NodeLineReader::Finish(size_t offset) {
  NodeSpec& spec = line_.spec;
  const NodeSpec::CollectiveSpec& c = spec.collective;
  spec.op = op_->name;
  spec.inputs = inputs_;
  spec.mutates = mutates_;
  spec.slots = slots_;
  spec.flags =
      static_cast<uint8_t>((DefaultFlags(spec.kind, op_->facts) | set_flags_) & ~cleared_flags_);
  if (Reduces(c.kind) && (seen_ & kReduce) == 0) spec.collective.reduce_op = ReduceOp::kSum;
  if ((seen_ & kAlias) != 0) {
    spec.alias_of = alias_of_;
  } else {
    spec.alias_of = DefaultAlias(spec.kind, spec.flags, inputs_, mutates_);
  }
  if (spec.kind == NodeKind::kCollective && graph_->groups().empty()) {
    return scan_.ErrorAt(offset, "a collective, but the graph has no mesh(name=ranks)");
  }
  if ((seen_ & kTypes) != 0) {
    SetShapes();
  } else {
    const bool is_collective = spec.kind == NodeKind::kCollective;
    const int32_t ranks = is_collective ? graph_->groups()[static_cast<size_t>(c.group)].size : 1;
    const bool may_be_none = spec.kind == NodeKind::kPlaceholder && spec.role == Role::kNone;
    if (!DefaultOutputs(*graph_, spec, ranks, dims_, tensors_) && !may_be_none) {
      return scan_.ErrorAt(offset,
                           "expected the types of what this node makes behind a \":\", as "
                           "in : bf16[8,4]; they do not follow from its inputs");
    }
    OwnShapes();
  }
  spec.outputs = tensors_;
  if ((seen_ & kBytes) == 0) {
    spec.memory_bytes =
        CountedBytes(*graph_, spec.kind, spec.flags, op_->facts.traffic, inputs_, tensors_);
  }
  return absl::OkStatus();
}

}  // namespace bucketd::text_internal
