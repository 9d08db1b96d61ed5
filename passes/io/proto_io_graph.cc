#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "passes/io/wire.h"
#include "proto/graph.pb.h"

namespace bucketd {
namespace {

constexpr uint32_t kGraphFormatVersion = 1;
constexpr int32_t kMaxInt32 = std::numeric_limits<int32_t>::max();

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("graph: ", parts...));
}

// Turns node messages into nodes of a builder. Nothing in them is trusted.
class NodeReader {
 public:
  NodeReader(const std::vector<absl::string_view>& strings,
             const std::vector<absl::string_view>& names, GraphBuilder& builder)
      : strings_(strings), names_(names), builder_(builder) {}

  absl::Status Add(const v1::Node& message) {
    spec_ = NodeSpec();
    if (!names_.empty()) spec_.name = names_[static_cast<size_t>(next_)];
    RETURN_IF_ERROR(SetPlain(message));
    RETURN_IF_ERROR(SetOutputs(message));
    if (message.has_collective()) RETURN_IF_ERROR(SetCollective(message.collective()));
    RETURN_IF_ERROR(SetSlots(message));
    RETURN_IF_ERROR(builder_.Add(spec_).status());
    ++next_;
    return absl::OkStatus();
  }

  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    const std::string name =
        spec_.name.empty() ? ""
                           : absl::StrCat(" (", absl::CHexEscape(spec_.name.substr(0, 80)), ")");
    return absl::InvalidArgumentError(absl::StrCat("node %", next_, name, ": ", parts...));
  }

 private:
  // Open enums of proto3 hold any int32; 0 is known to all or refused by the builder.
  template <typename Enum, typename Value>
  absl::Status SetEnum(absl::string_view what, Value value, Enum& out) const {
    const auto number = static_cast<int64_t>(value);
    if (number < 0 || number > 255) return Error("unknown ", what, " ", number);
    out = static_cast<Enum>(number);
    return absl::OkStatus();
  }

  absl::Status SetString(absl::string_view what, uint32_t index, absl::string_view& out) const {
    if (index >= strings_.size()) {
      return Error(what, " is string ", index, ", but there are ", strings_.size());
    }
    out = strings_[index];
    return absl::OkStatus();
  }

  template <typename Field>
  static absl::Span<const NodeId> Ids(const Field& field, std::vector<NodeId>& ids) {
    ids.clear();
    for (uint32_t id : field) ids.push_back(ToInt32(id));
    return ids;
  }

  absl::Status SetPlain(const v1::Node& m) {
    RETURN_IF_ERROR(SetEnum("node kind", m.kind(), spec_.kind));
    RETURN_IF_ERROR(SetEnum("direction", m.direction(), spec_.direction));
    RETURN_IF_ERROR(SetEnum("role", m.role(), spec_.role));
    RETURN_IF_ERROR(SetEnum("flags", m.flags(), spec_.flags));
    RETURN_IF_ERROR(SetString("op", m.op(), spec_.op));
    RETURN_IF_ERROR(SetString("module", m.module(), spec_.module));
    RETURN_IF_ERROR(SetString("parameter", m.parameter(), spec_.parameter));
    spec_.inputs = Ids(m.inputs(), inputs_);
    spec_.alias_of = Ids(m.alias_of(), alias_of_);
    spec_.mutates = Ids(m.mutates(), mutates_);
    spec_.flops = m.flops();
    spec_.memory_bytes = m.memory_bytes();
    spec_.getitem_index = ToInt32(m.getitem_index());
    return absl::OkStatus();
  }

  absl::Status SetOutputs(const v1::Node& m) {
    tensors_.clear();
    for (const v1::Tensor& tensor : m.outputs()) {
      NodeSpec::Tensor out;
      RETURN_IF_ERROR(SetEnum("dtype", tensor.dtype(), out.dtype));
      out.shape =
          absl::MakeConstSpan(tensor.shape().data(), static_cast<size_t>(tensor.shape_size()));
      tensors_.push_back(out);
    }
    spec_.outputs = tensors_;
    return absl::OkStatus();
  }

  absl::Status SetCollective(const v1::Collective& m) {
    NodeSpec::CollectiveSpec& c = spec_.collective;
    RETURN_IF_ERROR(SetEnum("collective kind", m.kind(), c.kind));
    RETURN_IF_ERROR(SetEnum("reduce op", m.reduce_op(), c.reduce_op));
    RETURN_IF_ERROR(SetEnum("tag", m.tag(), c.tag));
    RETURN_IF_ERROR(SetString("parameter", m.parameter(), c.parameter));
    c.group = ToInt32(m.group());
    return absl::OkStatus();
  }

  absl::Status SetSlots(const v1::Node& m) {
    slots_.clear();
    for (const v1::OutputSlot& slot : m.slots()) {
      NodeSpec::Slot out;
      out.node = slot.node() == 0 ? kNoNode : ToInt32(slot.node() - 1);
      RETURN_IF_ERROR(SetEnum("slot kind", slot.kind(), out.kind));
      RETURN_IF_ERROR(SetString("parameter", slot.parameter(), out.parameter));
      slots_.push_back(out);
    }
    spec_.slots = slots_;
    return absl::OkStatus();
  }

  const std::vector<absl::string_view>& strings_;
  const std::vector<absl::string_view>& names_;
  GraphBuilder& builder_;
  NodeSpec spec_;
  std::vector<NodeId> inputs_, alias_of_, mutates_;
  std::vector<NodeSpec::Tensor> tensors_;
  std::vector<NodeSpec::Slot> slots_;
  int64_t next_ = 0;
};

// The top level of a serialised Graph: views into its bytes.
struct Parts {
  uint64_t format_version = 0;
  absl::string_view name;
  std::vector<absl::string_view> strings, groups, nodes, names;
};

absl::StatusOr<Parts> Split(absl::string_view serialized, const GraphLimits& limits) {
  Parts parts;
  WireReader reader(serialized);
  WireReader::Field field;
  // Every list is bounded by what a graph may have, so that tiny entries cannot pile up.
  const auto most = static_cast<size_t>(limits.max_nodes);
  const auto put = [&](std::vector<absl::string_view>& list, absl::string_view what, size_t limit) {
    if (!field.is_bytes) return Bad(what, ": expected a length-delimited field");
    if (list.size() >= limit) return Bad("more than ", limit, " ", what);
    list.push_back(field.bytes);
    return absl::OkStatus();
  };
  while (reader.Next(field)) {
    switch (field.number) {
      case v1::Graph::kFormatVersionFieldNumber:
        parts.format_version = field.value;
        break;
      case v1::Graph::kStringsFieldNumber:
        RETURN_IF_ERROR(put(parts.strings, "strings", 4 * most));
        break;
      case v1::Graph::kGroupsFieldNumber:
        RETURN_IF_ERROR(put(parts.groups, "groups", static_cast<size_t>(limits.max_groups)));
        break;
      case v1::Graph::kNodesFieldNumber:
        RETURN_IF_ERROR(put(parts.nodes, "nodes", most));
        break;
      case v1::Graph::kNodeNamesFieldNumber:
        RETURN_IF_ERROR(put(parts.names, "node names", most));
        break;
      case v1::Graph::kNameFieldNumber:
        parts.name = field.bytes;
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) return Bad("not a serialised bucketd.v1.Graph");
  return parts;
}

// Sub-messages cost many times their bytes once parsed; a node may not have more of them than a
// graph may have.
bool HasSaneParts(absl::string_view node, const GraphLimits& limits) {
  constexpr size_t kSmall = size_t{1} << 16;
  if (node.size() <= kSmall) return true;
  WireReader reader(node);
  WireReader::Field field;
  int64_t parts = 0;
  while (reader.Next(field)) parts += field.is_bytes ? 1 : 0;
  return parts <= 2 * limits.max_nodes;
}

// By hand: protobuf would write a line to stderr for a string that is no UTF-8.
absl::StatusOr<Group> GroupFromBytes(absl::string_view bytes) {
  Group group;
  WireReader reader(bytes);
  WireReader::Field field;
  const auto number = [&] {
    return static_cast<int32_t>(std::min<uint64_t>(field.value, kMaxInt32));
  };
  while (reader.Next(field)) {
    if (field.number == v1::Group::kMeshDimFieldNumber) group.mesh_dim = std::string(field.bytes);
    if (field.number == v1::Group::kLaneFieldNumber) group.lane = number();
    if (field.number == v1::Group::kSizeFieldNumber) group.size = number();
  }
  if (!reader.ok()) return Bad("a group is no serialised bucketd.v1.Group");
  return group;
}

void NodeToProto(const Graph& graph, NodeId n, v1::Node& message) {
  message.set_kind(static_cast<v1::NodeKind>(graph.kind(n)));
  message.set_op(static_cast<uint32_t>(graph.op_id(n)));
  message.mutable_inputs()->Add(graph.inputs(n).begin(), graph.inputs(n).end());
  message.mutable_alias_of()->Add(graph.alias_of(n).begin(), graph.alias_of(n).end());
  message.mutable_mutates()->Add(graph.mutates(n).begin(), graph.mutates(n).end());
  for (const TensorType& tensor : graph.outputs(n)) {
    v1::Tensor& out = *message.add_outputs();
    out.set_dtype(static_cast<v1::DType>(tensor.dtype));
    const absl::Span<const int64_t> shape = graph.shape(tensor);
    out.mutable_shape()->Add(shape.begin(), shape.end());
  }
  message.set_flags(graph.flags(n));
  message.set_flops(graph.flops(n));
  message.set_memory_bytes(graph.memory_bytes(n));
  message.set_direction(static_cast<v1::Direction>(graph.direction(n)));
  message.set_module(static_cast<uint32_t>(graph.module_id(n)));
  message.set_role(static_cast<v1::Role>(graph.role(n)));
  message.set_parameter(static_cast<uint32_t>(graph.parameter_id(n)));
  message.set_getitem_index(static_cast<uint32_t>(graph.getitem_index(n)));
}

void CollectiveToProto(const Collective& c, v1::Collective& message) {
  message.set_kind(static_cast<v1::CollectiveKind>(c.kind));
  message.set_group(static_cast<uint32_t>(c.group));
  message.set_reduce_op(static_cast<v1::ReduceOp>(c.reduce_op));
  message.set_tag(static_cast<v1::Tag>(c.tag));
  message.set_parameter(static_cast<uint32_t>(c.parameter));
}

}  // namespace

absl::StatusOr<Graph> GraphFromBytes(absl::string_view serialized, const GraphLimits& limits) {
  ASSIGN_OR_RETURN(const Parts parts, Split(serialized, limits));
  const auto nodes = static_cast<int64_t>(parts.nodes.size());
  if (parts.format_version != kGraphFormatVersion) {
    return Bad("format_version ", parts.format_version, "; this planner reads ",
               kGraphFormatVersion);
  }
  if (parts.strings.empty() || !parts.strings[0].empty()) {
    return Bad("expected \"\" as the first one of the strings");
  }
  if (!parts.names.empty() && parts.names.size() != parts.nodes.size()) {
    return Bad(parts.names.size(), " node names for ", nodes, " nodes");
  }
  GraphBuilder builder(std::string(parts.name), limits);
  builder.Reserve(nodes, 2 * nodes);
  for (absl::string_view bytes : parts.groups) {
    ASSIGN_OR_RETURN(Group group, GroupFromBytes(bytes));
    RETURN_IF_ERROR(builder.AddGroup(std::move(group)).status());
  }
  NodeReader reader(parts.strings, parts.names, builder);
  v1::Node node;  // one for all: it keeps its memory
  for (absl::string_view bytes : parts.nodes) {
    if (!HasSaneParts(bytes, limits)) return reader.Error("too many outputs or slots");
    if (bytes.size() > size_t{kMaxInt32} ||
        !node.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return reader.Error("not a serialised bucketd.v1.Node");
    }
    RETURN_IF_ERROR(reader.Add(node));
  }
  return std::move(builder).Build();
}

void GraphToProto(const Graph& graph, v1::Graph& message) {
  message.Clear();
  message.set_format_version(kGraphFormatVersion);
  message.set_name(std::string(graph.name()));
  for (const std::string& s : graph.strings()) message.add_strings(s);
  for (const Group& group : graph.groups()) {
    v1::Group& out = *message.add_groups();
    out.set_mesh_dim(group.mesh_dim);
    out.set_lane(static_cast<uint32_t>(group.lane));
    out.set_size(static_cast<uint32_t>(group.size));
  }
  bool has_names = false;
  message.mutable_nodes()->Reserve(graph.size());
  for (NodeId n = 0; n < graph.size(); ++n) {
    v1::Node& node = *message.add_nodes();
    NodeToProto(graph, n, node);
    if (graph.kind(n) == NodeKind::kCollective) {
      CollectiveToProto(graph.collective(graph.collective_of(n)), *node.mutable_collective());
    }
    has_names = has_names || !graph.node_name(n).empty();
  }
  for (const OutputSlot& slot : graph.output_slots()) {
    v1::OutputSlot& out = *message.mutable_nodes(graph.output_node())->add_slots();
    out.set_node(static_cast<uint32_t>(slot.node + 1));
    out.set_kind(static_cast<v1::SlotKind>(slot.kind));
    out.set_parameter(static_cast<uint32_t>(slot.parameter));
  }
  for (NodeId n = 0; has_names && n < graph.size(); ++n) {
    message.add_node_names(std::string(graph.node_name(n)));
  }
}

}  // namespace bucketd
