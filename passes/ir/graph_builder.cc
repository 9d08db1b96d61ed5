#include "passes/ir/graph_builder.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"
#include "passes/ir/text.h"

namespace bucketd {
namespace {

constexpr int32_t kMaxInt32 = std::numeric_limits<int32_t>::max();

bool Known(NodeKind k) { return k >= NodeKind::kPlaceholder && k <= NodeKind::kOutput; }
bool Known(DType t) { return t >= DType::kBool && t <= DType::kC128; }
bool Known(CollectiveKind k) { return IsKnown(k); }
bool Known(ReduceOp op) { return op <= ReduceOp::kBxor; }
bool Known(Role role) { return role <= Role::kSaved; }
bool Known(SlotKind kind) { return kind <= SlotKind::kSaved; }
bool Known(Direction d) { return d <= Direction::kBackward; }
bool Known(Tag tag) { return tag <= Tag::kHsdpAllReduce; }

}  // namespace

GraphBuilder::GraphBuilder(std::string name, GraphLimits limits) : limits_(limits) {
  limits_.max_nodes = std::min<int64_t>(limits_.max_nodes, kMaxInt32 - 1);
  limits_.max_edges = std::min<int64_t>(limits_.max_edges, kMaxInt32 - 1);
  limits_.max_tensors = std::min<int64_t>(limits_.max_tensors, kMaxInt32 - 1);
  graph_.name_ = std::move(name);
  graph_.strings_.emplace_back();
  interned_.emplace("", 0);
}

void GraphBuilder::Reserve(int64_t nodes, int64_t edges) {
  const auto n = static_cast<size_t>(std::clamp<int64_t>(nodes, 0, limits_.max_nodes));
  const auto e = static_cast<size_t>(std::clamp<int64_t>(edges, 0, limits_.max_edges));
  Graph& g = graph_;
  g.kind_.reserve(n);
  for (auto* v : {&g.op_, &g.module_, &g.parameter_}) v->reserve(n);
  for (auto* v : {&g.inputs_, &g.alias_of_, &g.mutates_}) v->begin.reserve(n + 1);
  g.output_begin_.reserve(n + 1);
  g.inputs_.all.reserve(e);
  g.outputs_.reserve(n);
  g.flags_.reserve(n);
  g.flops_.reserve(n);
  g.memory_bytes_.reserve(n);
  g.direction_.reserve(n);
  g.role_.reserve(n);
  g.getitem_index_.reserve(n);
  g.collective_of_.reserve(n);
  marks_.reserve(n);
}

absl::Status GraphBuilder::Error(const NodeSpec& node, absl::string_view text) const {
  const std::string name = node.name.empty() ? "" : absl::StrCat(" (", Printable(node.name), ")");
  const std::string op = node.op.empty() ? "" : absl::StrCat(" ", Printable(node.op));
  return absl::InvalidArgumentError(
      absl::StrCat("node %", graph_.kind_.size(), name, op, ": ", text));
}

absl::Status GraphBuilder::CheckString(absl::string_view s, absl::string_view what) const {
  if (static_cast<int64_t>(s.size()) > limits_.max_string_length) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", s.size(), " bytes; the limit is ", limits_.max_string_length));
  }
  const size_t bad = FindUnprintable(s);
  if (bad != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " \"", Printable(s), "\" is not UTF-8 without control characters (byte ", bad, ")"));
  }
  return absl::OkStatus();
}

absl::Status GraphBuilder::CountString(absl::string_view s, absl::string_view what) {
  RETURN_IF_ERROR(CheckString(s, what));
  string_bytes_ += static_cast<int64_t>(s.size());
  if (string_bytes_ <= limits_.max_string_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the graph's strings are longer than ", limits_.max_string_bytes, " bytes"));
}

absl::StatusOr<StringId> GraphBuilder::Intern(absl::string_view s, absl::string_view what) {
  if (s.empty()) return 0;
  if (const auto it = interned_.find(s); it != interned_.end()) return it->second;
  RETURN_IF_ERROR(CountString(s, what));
  const auto id = static_cast<StringId>(graph_.strings_.size());
  graph_.strings_.emplace_back(s);
  interned_.emplace(s, id);
  return id;
}

absl::StatusOr<GroupId> GraphBuilder::AddGroup(Group group) {
  const size_t n = graph_.groups_.size();
  const auto bad = [&](absl::string_view text) {
    failed_ = true;
    return absl::InvalidArgumentError(
        absl::StrCat("group ", n, " (", Printable(group.mesh_dim), "): ", text));
  };
  if (static_cast<int64_t>(n) >= limits_.max_groups) {
    return bad(absl::StrCat("more than ", limits_.max_groups, " groups"));
  }
  if (group.mesh_dim.empty()) return bad("expected the name of a mesh dimension");
  if (auto status = CheckString(group.mesh_dim, "mesh dimension"); !status.ok()) {
    return bad(status.message());
  }
  if (group.size < 1 || group.size > limits_.max_group_size) {
    return bad(absl::StrCat("size ", group.size, " is not in 1..", limits_.max_group_size));
  }
  if (group.lane < 0 || group.lane >= limits_.max_groups) {
    return bad(absl::StrCat("lane ", group.lane, " is not in 0..", limits_.max_groups - 1));
  }
  const std::string key = absl::StrCat(group.mesh_dim, "\n", group.lane);  // no name has a newline
  if (!group_keys_.insert(key).second) {
    return bad(absl::StrCat("lane ", group.lane, " of this mesh dimension stands here twice"));
  }
  const auto [size, inserted] = dim_sizes_.emplace(group.mesh_dim, group.size);
  if (!inserted && size->second != group.size) {
    return bad(absl::StrCat("size ", group.size, ", but another lane of this mesh dimension has ",
                            size->second));
  }
  graph_.groups_.push_back(std::move(group));
  return static_cast<GroupId>(n);
}

absl::StatusOr<NodeId> GraphBuilder::Add(const NodeSpec& node) {
  if (failed_) return absl::FailedPreconditionError("an earlier node was refused");
  failed_ = true;  // until the end is reached
  Graph& g = graph_;
  const auto id = static_cast<int64_t>(g.kind_.size());
  if (id >= limits_.max_nodes) {
    return Error(node, absl::StrCat("the graph has more than ", limits_.max_nodes, " nodes"));
  }
  if (id > 0 && g.kind_.back() == NodeKind::kOutput) {
    return Error(node, "stands after the output node, which must be the last one");
  }
  RETURN_IF_ERROR(CheckEnums(node));
  RETURN_IF_ERROR(CheckKind(node));
  RETURN_IF_ERROR(CheckFigures(node));
  RETURN_IF_ERROR(AddEdges(node, node.inputs, "input", g.inputs_));
  RETURN_IF_ERROR(AddMutations(node));
  RETURN_IF_ERROR(AddEdges(node, node.alias_of, "alias_of", g.alias_of_));
  RETURN_IF_ERROR(AddOutputs(node));
  g.collective_of_.push_back(-1);
  if (node.kind == NodeKind::kCollective) RETURN_IF_ERROR(AddCollective(node));
  if (node.kind == NodeKind::kWait) RETURN_IF_ERROR(AddWait(node));
  if (node.kind == NodeKind::kOutput) RETURN_IF_ERROR(AddSlots(node));
  RETURN_IF_ERROR(AddStrings(node));
  g.kind_.push_back(node.kind);
  g.flags_.push_back(node.flags);
  g.flops_.push_back(node.flops);
  g.memory_bytes_.push_back(node.memory_bytes);
  g.direction_.push_back(node.direction);
  g.role_.push_back(node.role);
  g.getitem_index_.push_back(node.getitem_index);
  marks_.push_back(0);
  failed_ = false;
  return static_cast<NodeId>(id);
}

absl::Status GraphBuilder::CheckEnums(const NodeSpec& node) const {
  const auto unknown = [&](absl::string_view what, auto value) {
    return Error(node, absl::StrCat("unknown ", what, " ", static_cast<int>(value)));
  };
  if (!Known(node.kind)) return unknown("node kind", node.kind);
  if (!Known(node.role)) return unknown("role", node.role);
  if (!Known(node.direction)) return unknown("direction", node.direction);
  constexpr int kAllFlags =
      kViewFlag | kComputeFlag | kPointwiseFlag | kOrderedFlag | kSymbolicFlag;
  if ((node.flags & ~kAllFlags) != 0) return unknown("flags", node.flags);
  if (!Known(node.collective.reduce_op)) return unknown("reduce op", node.collective.reduce_op);
  if (!Known(node.collective.tag)) return unknown("tag", node.collective.tag);
  if (node.kind == NodeKind::kCollective && !Known(node.collective.kind)) {
    return unknown("collective kind", node.collective.kind);
  }
  for (const NodeSpec::Slot& slot : node.slots) {
    if (!Known(slot.kind)) return unknown("slot kind", slot.kind);
  }
  return absl::OkStatus();
}

// What belongs to another kind is refused, not ignored: it would not be in the digest.
absl::Status GraphBuilder::CheckKind(const NodeSpec& node) const {
  const NodeKind kind = node.kind;
  const NodeSpec::CollectiveSpec& c = node.collective;
  if (kind != NodeKind::kPlaceholder && (node.role != Role::kNone || !node.parameter.empty())) {
    return Error(node, "only a placeholder has a role and a parameter");
  }
  if (kind != NodeKind::kGetitem && node.getitem_index != 0) {
    return Error(node, "only a getitem has an index");
  }
  if (kind != NodeKind::kOutput && !node.slots.empty()) {
    return Error(node, "only the output has slots");
  }
  if (kind != NodeKind::kCollective &&
      (c.kind != CollectiveKind::kUnspecified || c.group != 0 || c.reduce_op != ReduceOp::kNone ||
       c.tag != Tag::kNone || !c.parameter.empty())) {
    return Error(node, "only a collective has a group, a reduce op and a tag");
  }
  const size_t inputs = node.inputs.size();
  if ((kind == NodeKind::kPlaceholder || kind == NodeKind::kGetAttr) && inputs != 0) {
    return Error(node, absl::StrCat("a ", Name(kind), " has no inputs, but this one ", inputs));
  }
  if ((kind == NodeKind::kGetitem || kind == NodeKind::kWait) && inputs != 1) {
    return Error(node, absl::StrCat("a ", Name(kind), " has one input, but this one ", inputs));
  }
  if (node.op.empty()) return Error(node, "expected the name of an op");
  if ((node.flags & kSymbolicFlag) != 0 && node.outputs.empty()) {
    return Error(node, "a symbolic size is one of an output, but there is none");
  }
  if ((node.flags & kViewFlag) != 0 && inputs == 0) {
    return Error(node, "a view shares storage with its first input, but there is none");
  }
  return absl::OkStatus();
}

absl::Status GraphBuilder::CheckFigures(const NodeSpec& node) {
  const auto check = [&](absl::string_view what, int64_t value, int64_t& total) {
    if (value < 0) return Error(node, absl::StrCat(what, " is negative: ", value));
    if (value > kMaxGraphTotal - total) {
      return Error(node, absl::StrCat(what, " of all nodes together is above ", kMaxGraphTotal));
    }
    total += value;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(check("flops", node.flops, total_flops_));
  RETURN_IF_ERROR(check("memory_bytes", node.memory_bytes, total_memory_bytes_));
  if (node.getitem_index < 0) {
    return Error(node, absl::StrCat("getitem index is negative: ", node.getitem_index));
  }
  return absl::OkStatus();
}

absl::Status GraphBuilder::AddEdges(const NodeSpec& node, absl::Span<const NodeId> ids,
                                    absl::string_view what, Csr& edges_of) {
  const auto id = static_cast<int64_t>(graph_.kind_.size());
  const size_t edges =
      graph_.inputs_.all.size() + graph_.alias_of_.all.size() + graph_.mutates_.all.size();
  if (static_cast<int64_t>(edges + ids.size()) > limits_.max_edges) {
    return Error(node, absl::StrCat("the graph has more than ", limits_.max_edges, " edges"));
  }
  ++stamp_;
  for (NodeId from : ids) {
    if (from < 0 || from >= id) {
      return Error(node, absl::StrCat(what, " %", from, from == id ? " is the node itself" : "",
                                      ": expected an earlier node, 0..", id - 1));
    }
    int64_t& mark = marks_[static_cast<size_t>(from)];
    if (mark == stamp_) return Error(node, absl::StrCat(what, " %", from, " stands twice"));
    mark = stamp_;
    edges_of.all.push_back(from);
  }
  edges_of.Close();
  return absl::OkStatus();
}

// Follows the inputs' AddEdges, whose marks it reads.
absl::Status GraphBuilder::AddMutations(const NodeSpec& node) {
  const int64_t inputs_stamp = stamp_++;
  for (NodeId target : node.mutates) {
    const bool is_node = target >= 0 && target < graph_.size();
    if (!is_node || marks_[static_cast<size_t>(target)] < inputs_stamp) {
      return Error(node, absl::StrCat("mutates %", target, ", which is not one of its inputs"));
    }
    int64_t& mark = marks_[static_cast<size_t>(target)];
    if (mark == stamp_) return Error(node, absl::StrCat("mutates %", target, " twice"));
    mark = stamp_;
    graph_.mutates_.all.push_back(target);
  }
  graph_.mutates_.Close();
  return absl::OkStatus();
}

absl::Status GraphBuilder::AddOutputs(const NodeSpec& node) {
  Graph& g = graph_;
  if (static_cast<int64_t>(g.outputs_.size() + node.outputs.size()) > limits_.max_tensors) {
    return Error(node, absl::StrCat("the graph has more than ", limits_.max_tensors, " tensors"));
  }
  for (const NodeSpec::Tensor& tensor : node.outputs) {
    const int64_t item = ItemSize(tensor.dtype);
    const auto shape = [&] { return absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]"); };
    if (!Known(tensor.dtype)) {
      return Error(node, absl::StrCat("unknown dtype ", static_cast<int>(tensor.dtype)));
    }
    if (static_cast<int64_t>(tensor.shape.size()) > limits_.max_tensor_rank) {
      return Error(node, absl::StrCat("a tensor of rank ", tensor.shape.size(), "; the limit is ",
                                      limits_.max_tensor_rank));
    }
    int64_t elements = 1;
    bool too_large = false;
    for (int64_t dim : tensor.shape) {
      if (dim < 0) return Error(node, absl::StrCat("negative size in shape ", shape()));
      // A later zero makes a product small again, but what overflowed on the way is no real shape.
      too_large =
          too_large || __builtin_mul_overflow(elements, std::max<int64_t>(dim, 1), &elements);
    }
    too_large = too_large || elements > limits_.max_tensor_bytes / item;
    if (too_large) {
      return Error(node, absl::StrCat("shape ", shape(), " of ", Name(tensor.dtype),
                                      " is larger than ", limits_.max_tensor_bytes, " bytes"));
    }
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) elements = 0;
    total_bytes_ += elements * item;
    if (total_bytes_ > kMaxGraphTotal) {
      return Error(node, absl::StrCat("all tensors together are larger than ", kMaxGraphTotal));
    }
    g.outputs_.push_back({tensor.dtype, static_cast<int32_t>(tensor.shape.size()),
                          static_cast<int64_t>(g.dims_.size()), elements, elements * item});
    g.dims_.insert(g.dims_.end(), tensor.shape.begin(), tensor.shape.end());
  }
  g.output_begin_.push_back(static_cast<int32_t>(g.outputs_.size()));
  return absl::OkStatus();
}

bool GraphBuilder::HasSymbolicSize(const NodeSpec& collective) const {
  return (collective.flags & kSymbolicFlag) != 0 || graph_.is_symbolic(collective.inputs[0]);
}

absl::Status GraphBuilder::CheckCollectiveShapes(const NodeSpec& node) const {
  const Graph& g = graph_;
  const NodeSpec::CollectiveSpec& c = node.collective;
  const int64_t size = g.groups_[static_cast<size_t>(c.group)].size;
  const auto data =
      node.inputs.empty() ? absl::Span<const TensorType>() : g.outputs(node.inputs[0]);
  if (data.size() != 1 || node.outputs.size() != 1) {
    return Error(node, absl::StrCat("expected one output, and a first input with one; they have ",
                                    node.outputs.size(), " and ", data.size()));
  }
  absl::Span<const int64_t> in = g.shape(data[0]);
  const absl::Span<const int64_t> out = node.outputs[0].shape;
  // Numbers, a loss say, are gathered into a vector. A shard of a parameter is never one.
  static constexpr int64_t kNumber[] = {1};
  if (in.empty() && Gathers(c.kind) && c.tag == Tag::kNone) in = kNumber;
  const bool whole = TraitsOf(c.kind).result == ResultSize::kSame;
  const auto rest = [](absl::Span<const int64_t> shape) { return shape.subspan(1); };
  bool fits = data[0].dtype == node.outputs[0].dtype && in.size() == out.size();
  if (fits && HasSymbolicSize(node)) return absl::OkStatus();
  if (fits && whole) fits = in == out;
  if (fits && !whole) fits = !in.empty() && rest(in) == rest(out);
  const auto is_whole = [&](int64_t whole_size, int64_t part) {
    return whole_size % size == 0 && whole_size / size == part;
  };
  if (fits && Gathers(c.kind)) fits = is_whole(out[0], in[0]);
  if (fits && Scatters(c.kind)) fits = is_whole(in[0], out[0]);
  if (fits) return absl::OkStatus();
  return Error(
      node, absl::StrCat(Name(c.kind), " over ", size, " ranks makes ", Name(node.outputs[0].dtype),
                         "[", absl::StrJoin(out, ", "), "] of ", Name(data[0].dtype), "[",
                         absl::StrJoin(g.shape(data[0]), ", "), "]: shapes or dtypes do not fit"));
}

absl::Status GraphBuilder::AddCollective(const NodeSpec& node) {
  Graph& g = graph_;
  const NodeSpec::CollectiveSpec& spec = node.collective;
  if (spec.group < 0 || static_cast<size_t>(spec.group) >= g.groups_.size()) {
    return Error(node, absl::StrCat("group ", spec.group, ": the graph has ", g.groups_.size()));
  }
  if (Reduces(spec.kind) != (spec.reduce_op != ReduceOp::kNone)) {
    return Error(node, absl::StrCat("reduce op ", Name(spec.reduce_op), " on a ", Name(spec.kind)));
  }
  if (spec.tag == Tag::kNone && !spec.parameter.empty()) {
    return Error(node, "a tagged parameter without a tag");
  }
  RETURN_IF_ERROR(CheckCollectiveShapes(node));
  const TensorType& in = g.outputs(node.inputs[0])[0];
  const TensorType& out = g.outputs_.back();
  Collective c;
  c.start = static_cast<NodeId>(g.kind_.size());
  c.kind = spec.kind;
  c.group = spec.group;
  c.reduce_op = spec.reduce_op;
  c.dtype = out.dtype;
  c.symbolic = HasSymbolicSize(node);
  c.tag = spec.tag;
  c.bytes = std::max(in.bytes, out.bytes);  // the full message of every kind
  if (auto parameter = Intern(spec.parameter, "parameter"); parameter.ok()) {
    c.parameter = *parameter;
  } else {
    return Error(node, parameter.status().message());
  }
  g.collective_of_.back() = static_cast<CollectiveId>(g.collectives_.size());
  g.collectives_.push_back(c);
  return absl::OkStatus();
}

absl::Status GraphBuilder::AddWait(const NodeSpec& node) {
  Graph& g = graph_;
  const NodeId start = node.inputs[0];
  if (g.kind(start) != NodeKind::kCollective) {
    return Error(node, absl::StrCat("waits for ", g.Describe(start), ", which is no collective"));
  }
  const CollectiveId c = g.collective_of(start);
  Collective& collective = g.collectives_[static_cast<size_t>(c)];
  if (collective.wait != kNoNode) {
    return Error(node, absl::StrCat("waits for ", g.Describe(start), ", but ",
                                    g.Describe(collective.wait), " does already"));
  }
  collective.wait = static_cast<NodeId>(g.kind_.size());
  g.collective_of_.back() = c;
  return absl::OkStatus();
}

absl::Status GraphBuilder::AddSlots(const NodeSpec& node) {
  if (static_cast<int64_t>(node.slots.size()) > limits_.max_nodes) {
    return Error(node, absl::StrCat(node.slots.size(), " slots; the limit is ", limits_.max_nodes));
  }
  ++stamp_;
  size_t distinct = 0;
  for (size_t i = 0; i < node.slots.size(); ++i) {
    const NodeSpec::Slot& slot = node.slots[i];
    const auto bad = [&](absl::string_view text) {
      return Error(node, absl::StrCat("slot ", i, ": ", text));
    };
    if (slot.node == kNoNode) {
      if (slot.kind != SlotKind::kNone || !slot.parameter.empty()) {
        return bad("an empty slot has no kind and no parameter");
      }
      graph_.slots_.emplace_back();
      continue;
    }
    if (slot.node < 0 || slot.node >= graph_.size()) {
      return bad(absl::StrCat("%", slot.node, " is no node"));
    }
    int64_t& mark = marks_[static_cast<size_t>(slot.node)];
    if (mark != stamp_) {
      if (distinct >= node.inputs.size() || node.inputs[distinct] != slot.node) {
        return bad("the inputs are not the slots' nodes, each once, in order of first appearance");
      }
      ++distinct;
    }
    mark = stamp_;
    const absl::StatusOr<StringId> parameter = Intern(slot.parameter, "parameter");
    if (!parameter.ok()) return bad(parameter.status().message());
    graph_.slots_.push_back({slot.node, slot.kind, *parameter});
  }
  if (distinct != node.inputs.size()) {
    return Error(node, absl::StrCat("input %", node.inputs[distinct], " stands in no slot"));
  }
  return absl::OkStatus();
}

absl::Status GraphBuilder::AddStrings(const NodeSpec& node) {
  Graph& g = graph_;
  const std::tuple<absl::string_view, const char*, std::vector<StringId>&> fields[] = {
      {node.op, "op", g.op_},
      {node.module, "module", g.module_},
      {node.parameter, "parameter", g.parameter_}};
  for (const auto& [text, what, ids] : fields) {
    const absl::StatusOr<StringId> id = Intern(text, what);
    if (!id.ok()) return Error(node, id.status().message());
    ids.push_back(*id);
  }
  if (node.name.empty() && g.node_name_begin_.empty()) return absl::OkStatus();
  if (auto status = CountString(node.name, "name"); !status.ok()) {
    return Error(node, status.message());
  }
  // Names may begin late; the nodes before have none.
  if (g.node_name_begin_.empty()) g.node_name_begin_.assign(g.kind_.size() + 1, 0);
  g.node_names_.append(node.name.data(), node.name.size());
  g.node_name_begin_.push_back(static_cast<int64_t>(g.node_names_.size()));
  return absl::OkStatus();
}

absl::StatusOr<Graph> GraphBuilder::Build() && {
  if (failed_) return absl::FailedPreconditionError("an earlier node or group was refused");
  if (graph_.kind_.empty()) return absl::InvalidArgumentError("graph: it has no nodes");
  RETURN_IF_ERROR(CheckString(graph_.name_, "the graph's name"));
  if (graph_.kind_.back() != NodeKind::kOutput) {
    return absl::InvalidArgumentError(absl::StrCat("node ", graph_.Describe(graph_.output_node()),
                                                   ": expected the output as the last node"));
  }
  // Walking users in order leaves every list ascending.
  graph_.users_ = MakeCsr(graph_.size(), [&](auto add) {
    for (NodeId user = 0; user < graph_.size(); ++user) {
      for (const NodeId from : graph_.inputs(user)) add(from, user);
    }
  });
  return std::move(graph_);
}

}  // namespace bucketd
