#include "passes/ir/normalize.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"
#include "passes/ir/graph_builder.h"
#include "passes/ir/ops.h"

namespace bucketd {
namespace {

constexpr absl::string_view kPad = "aten.constant_pad_nd.default";
constexpr absl::string_view kSlice = "aten.slice.Tensor";

bool IsCastOp(absl::string_view op) {
  return op == "aten._to_copy.default" || op == "prims.convert_element_type.default" ||
         op == "aten.to.dtype";
}

// A graph that was accepted once is not refused for its size now.
GraphLimits NoLimits() {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return {kMost, kMost, kMost, kMost, kMost, kMost, kMost, kMost, kMost};
}

// What the steps decide, all from the raw graph: changes do not see each other.
class Changes {
 public:
  explicit Changes(const Graph& raw)
      : raw_(raw),
        shape_of_(static_cast<size_t>(raw.size()), kNoNode),
        hangs_below_(static_cast<size_t>(raw.size()), kNoNode) {
    for (const Collective& c : raw.collectives()) {
      if (raw.inputs(c.start).size() != 1) continue;
      if (Gathers(c.kind)) Gather(c);
      if (Scatters(c.kind)) Scatter(c);
    }
    absl::c_sort(inserts_);
  }

  bool IsDropped(NodeId n) const {
    return raw_.kind(n) == NodeKind::kPlaceholder && raw_.outputs(n).empty();
  }
  // The node whose shape n's output gets; kNoNode: it keeps its own.
  NodeId ShapeOf(NodeId n) const { return shape_of_[static_cast<size_t>(n)]; }
  // All-gathers with a pad to insert before them, waits with a slice to insert after them.
  bool InsertsAt(NodeId n) const { return absl::c_binary_search(inserts_, n); }
  size_t inserted() const { return inserts_.size(); }

 private:
  absl::Span<const int64_t> Shape(NodeId n) const { return raw_.shape(raw_.outputs(n)[0]); }
  bool HasOne(NodeId n) const { return raw_.outputs(n).size() == 1; }

  bool IsCast(NodeId n) const {
    if (raw_.kind(n) != NodeKind::kCall || !IsCastOp(raw_.op(n))) return false;
    if (raw_.inputs(n).size() != 1 || !HasOne(n)) return false;
    const NodeId source = raw_.inputs(n)[0];
    return HasOne(source) && !raw_.is_symbolic(source) && !raw_.is_symbolic(n) &&
           Shape(source) == Shape(n);
  }

  bool IsPad(NodeId n) const {
    return raw_.kind(n) == NodeKind::kCall && raw_.op(n) == kPad && raw_.inputs(n).size() == 1;
  }
  bool IsSlice(NodeId n) const { return raw_.op(n) == kSlice && HasOne(n) && !raw_.is_symbolic(n); }

  // Whether a slice drops an end of the gathered tensor.
  bool IsCut(NodeId wait) const {
    if (!HasOne(wait)) return false;
    const absl::Span<const int64_t> whole = Shape(wait);
    for (NodeId user : raw_.users(wait)) {
      if (!IsSlice(user)) continue;
      const absl::Span<const int64_t> part = Shape(user);
      if (part.size() != whole.size() || part == whole) continue;
      if (std::equal(part.begin(), part.end(), whole.begin(), std::less_equal<int64_t>())) {
        return true;
      }
    }
    return false;
  }

  // Step 3.
  void Gather(const Collective& c) {
    const NodeId input = raw_.inputs(c.start)[0];
    if (c.symbolic) return;
    const bool is_padded = IsPad(input);
    if (!is_padded && (c.wait == kNoNode || !IsCut(c.wait))) return;
    std::vector<NodeId> chain;
    NodeId at = input;
    if (is_padded) {
      chain.push_back(at);
      at = raw_.inputs(at)[0];
    }
    while (IsCast(at)) {
      chain.push_back(at);
      at = raw_.inputs(at)[0];
    }
    if (raw_.kind(at) != NodeKind::kPlaceholder || !HasOne(at) || raw_.is_symbolic(at)) return;
    chain.push_back(at);
    for (NodeId n : chain) shape_of_[static_cast<size_t>(n)] = input;
    if (!is_padded) inserts_.push_back(c.start);
  }

  // Step 4.
  void Scatter(const Collective& c) {
    const NodeId cat = raw_.inputs(c.start)[0];
    if (c.symbolic || c.wait == kNoNode || raw_.op(cat) != "aten.cat.default") return;
    if (absl::c_none_of(raw_.inputs(cat), [&](NodeId n) { return raw_.op(n) == kPad; })) return;
    std::vector<NodeId> below;
    for (NodeId user : raw_.users(c.wait)) {
      if (!IsSlice(user)) continue;
      shape_of_[static_cast<size_t>(user)] = c.start;
      below.push_back(user);
    }
    if (below.empty()) {
      inserts_.push_back(c.wait);
      below.push_back(c.wait);
    }
    Hang(std::move(below), c.start);
  }

  // `below` and what is computed of it element by element.
  void Hang(std::vector<NodeId> below, NodeId scatter) {
    for (NodeId n : below) hangs_below_[static_cast<size_t>(n)] = scatter;
    while (!below.empty()) {
      const NodeId n = below.back();
      below.pop_back();
      for (NodeId user : raw_.users(n)) {
        if (hangs_below_[static_cast<size_t>(user)] != kNoNode) continue;
        if (!IsCast(user) && !Combines(user, scatter)) continue;
        shape_of_[static_cast<size_t>(user)] = scatter;
        hangs_below_[static_cast<size_t>(user)] = scatter;
        below.push_back(user);
      }
    }
  }

  // An elementwise call of nothing but such values, as of two gradients of one parameter. It is met
  // once by each of them, so by the last one.
  bool Combines(NodeId n, NodeId scatter) const {
    if (raw_.kind(n) != NodeKind::kCall || (raw_.flags(n) & kPointwiseFlag) == 0 ||
        raw_.is_symbolic(n)) {
      return false;
    }
    if (!HasOne(n)) return false;
    return absl::c_all_of(raw_.inputs(n), [&](NodeId input) {
      const NodeId from = hangs_below_[static_cast<size_t>(input)];
      return from != kNoNode && Shape(from) == Shape(scatter) && HasOne(input) &&
             Shape(input) == Shape(n);
    });
  }

  const Graph& raw_;
  std::vector<NodeId> shape_of_;
  std::vector<NodeId> hangs_below_;  // the uneven reduce-scatter above a node
  std::vector<NodeId> inserts_;
};

// Writes the graph anew with the changes in it.
class Rebuild {
 public:
  Rebuild(const Graph& raw, const Changes& changes)
      : raw_(raw),
        changes_(changes),
        builder_(std::string(raw.name()), NoLimits()),
        new_id_(static_cast<size_t>(raw.size()), kNoNode) {
    const auto size = static_cast<size_t>(raw.size()) + changes.inserted();
    builder_.Reserve(static_cast<int64_t>(size), static_cast<int64_t>(2 * size));
    raw_id_.reserve(size);
    bytes_.reserve(size);
    is_stale_.reserve(size);
  }

  absl::StatusOr<NormalizedGraph> Run() && {
    for (const Group& group : raw_.groups()) RETURN_IF_ERROR(builder_.AddGroup(group).status());
    for (NodeId n = 0; n < raw_.size(); ++n) {
      if (changes_.IsDropped(n)) continue;
      RETURN_IF_ERROR(Copy(n));
    }
    ASSIGN_OR_RETURN(Graph graph, std::move(builder_).Build());
    return NormalizedGraph{std::move(graph), std::move(raw_id_)};
  }

 private:
  NodeId Place(NodeId raw) const { return new_id_[static_cast<size_t>(raw)]; }
  NodeId Last() const { return static_cast<NodeId>(raw_id_.size()) - 1; }

  absl::Span<const NodeId> Map(absl::Span<const NodeId> ids, std::vector<NodeId>& mapped) const {
    mapped.clear();
    for (NodeId id : ids) {
      if (Place(id) != kNoNode) mapped.push_back(Place(id));
    }
    return mapped;
  }

  absl::Status Copy(NodeId n) {
    NodeSpec spec;
    spec.kind = raw_.kind(n);
    spec.op = raw_.op(n);
    spec.name = raw_.node_name(n);
    spec.module = raw_.module(n);
    spec.parameter = raw_.parameter(n);
    spec.inputs = Map(raw_.inputs(n), inputs_);
    spec.alias_of = Map(raw_.alias_of(n), alias_of_);
    spec.mutates = Map(raw_.mutates(n), mutates_);
    spec.flags = raw_.flags(n);
    spec.flops = raw_.flops(n);
    spec.memory_bytes = raw_.memory_bytes(n);
    spec.direction = raw_.direction(n);
    spec.role = raw_.role(n);
    spec.getitem_index = raw_.getitem_index(n);
    if (spec.kind == NodeKind::kCollective) {
      const Collective& c = raw_.collective(raw_.collective_of(n));
      spec.collective = {c.kind, c.group, c.reduce_op, c.tag, raw_.string(c.parameter)};
      if (changes_.InsertsAt(n)) {
        RETURN_IF_ERROR(Insert(kPad, n, inputs_[0], raw_.inputs(n)[0]));
        inputs_[0] = Last();
      }
    }
    if (spec.kind == NodeKind::kOutput) spec.slots = Slots();
    const bool is_changed = SetOutputs(n, spec);
    RETURN_IF_ERROR(Emit(spec, n, is_changed));
    if (spec.kind == NodeKind::kWait && changes_.InsertsAt(n)) {
      RETURN_IF_ERROR(Insert(kSlice, n, Last(), n));
    }
    // Whoever reads a wait with a slice reads the slice.
    new_id_[static_cast<size_t>(n)] = Last();
    return absl::OkStatus();
  }

  bool SetOutputs(NodeId n, NodeSpec& spec) {
    tensors_.clear();
    for (const TensorType& tensor : raw_.outputs(n)) {
      tensors_.push_back({tensor.dtype, raw_.shape(tensor)});
    }
    spec.outputs = tensors_;
    const NodeId from = changes_.ShapeOf(n);
    if (from == kNoNode) return false;
    const absl::Span<const int64_t> shape = raw_.shape(raw_.outputs(from)[0]);
    const bool is_changed = tensors_[0].shape != shape;
    tensors_[0].shape = shape;
    return is_changed;
  }

  absl::Span<const NodeSpec::Slot> Slots() {
    slots_.clear();
    for (const OutputSlot& slot : raw_.output_slots()) {
      const NodeId node = slot.node == kNoNode ? kNoNode : Place(slot.node);
      slots_.emplace_back();
      if (node != kNoNode) slots_.back() = {node, slot.kind, raw_.string(slot.parameter)};
    }
    return slots_;
  }

  // A call on `source` that makes what `like` makes, as a part of what `n` is a part of.
  absl::Status Insert(absl::string_view op, NodeId n, NodeId source, NodeId like) {
    const TensorType& tensor = raw_.outputs(like)[0];
    const NodeSpec::Tensor output{tensor.dtype, raw_.shape(tensor)};
    NodeSpec call;
    call.kind = NodeKind::kCall;
    call.op = op;
    call.inputs = absl::MakeConstSpan(&source, 1);
    call.outputs = absl::MakeConstSpan(&output, 1);
    if (op == kSlice) {
      call.alias_of = call.inputs;
      call.flags = kViewFlag;
    }
    call.module = raw_.module(n);
    call.direction = raw_.direction(n);
    return Emit(call, kNoNode, true);
  }

  absl::Status Emit(NodeSpec& spec, NodeId raw_id, bool is_changed) {
    int64_t bytes = 0;
    for (const NodeSpec::Tensor& tensor : spec.outputs) {
      int64_t size = ItemSize(tensor.dtype);
      for (int64_t dim : tensor.shape) size *= dim;
      bytes = CappedSum(bytes, size);
    }
    const bool reads_stale = absl::c_any_of(
        spec.inputs, [&](NodeId input) { return is_stale_[static_cast<size_t>(input)]; });
    if (is_changed || reads_stale) spec.memory_bytes = CountMemoryBytes(spec, bytes);
    is_stale_.push_back(is_changed);
    bytes_.push_back(bytes);
    raw_id_.push_back(raw_id);
    return builder_.Add(spec).status();
  }

  // From shapes alone: what was expanded is never padded.
  int64_t CountMemoryBytes(const NodeSpec& spec, int64_t written) const {
    if (spec.kind != NodeKind::kCall || (spec.flags & kViewFlag) != 0) return 0;
    return MemoryBytes(TrafficOf(spec.op), written, spec.inputs.size(), [&](size_t input) {
      return bytes_[static_cast<size_t>(spec.inputs[input])];
    });
  }

  const Graph& raw_;
  const Changes& changes_;
  GraphBuilder builder_;
  std::vector<NodeId> new_id_;  // raw -> canonical; what stands for it to those who read it
  std::vector<NodeId> raw_id_;
  std::vector<int64_t> bytes_;  // by canonical id
  std::vector<bool> is_stale_;  // by canonical id: inserted, or of another shape than before
  std::vector<NodeId> inputs_, alias_of_, mutates_;
  std::vector<NodeSpec::Tensor> tensors_;
  std::vector<NodeSpec::Slot> slots_;
};

}  // namespace

absl::StatusOr<NormalizedGraph> Normalize(const Graph& raw) {
  return Rebuild(raw, Changes(raw)).Run();
}

}  // namespace bucketd
