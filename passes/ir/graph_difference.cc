#include "passes/ir/graph_difference.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bucketd {
namespace {

using Fields = std::vector<std::pair<const char*, std::string>>;

std::string Ids(absl::Span<const NodeId> ids) {
  return absl::StrCat(
      "[",
      absl::StrJoin(ids, ", ", [](std::string* out, NodeId id) { absl::StrAppend(out, "%", id); }),
      "]");
}

std::string Tensors(const Graph& graph, NodeId n) {
  return absl::StrJoin(graph.outputs(n), ", ", [&](std::string* out, const TensorType& tensor) {
    absl::StrAppend(out, Name(tensor.dtype), "[", absl::StrJoin(graph.shape(tensor), ", "), "]");
  });
}

std::string Flags(const Graph& graph, NodeId n) {
  std::string text;
  for (const auto& [flag, name] : kNodeFlags) {
    if ((graph.flags(n) & flag) != 0) absl::StrAppend(&text, text.empty() ? "" : " ", name);
  }
  return text;
}

void AddCollective(const Graph& graph, const Collective& c, Fields& fields) {
  const Group& group = graph.group(c);
  fields.emplace_back("collective kind", std::string(Name(c.kind)));
  fields.emplace_back("mesh dimension", group.mesh_dim);
  fields.emplace_back("lane", absl::StrCat(group.lane));
  fields.emplace_back("group size", absl::StrCat(group.size));
  fields.emplace_back("reduce op", std::string(Name(c.reduce_op)));
  fields.emplace_back("tag", std::string(Name(c.tag)));
  fields.emplace_back("parameter", std::string(graph.string(c.parameter)));
}

std::string Slots(const Graph& graph) {
  return absl::StrJoin(graph.output_slots(), ", ", [&](std::string* out, const OutputSlot& slot) {
    absl::StrAppend(out, slot.node == kNoNode ? "none" : absl::StrCat("%", slot.node), " ",
                    Name(slot.kind), " ", graph.string(slot.parameter));
  });
}

Fields FieldsOf(const Graph& graph, NodeId n) {
  Fields fields = {{"kind", std::string(Name(graph.kind(n)))},
                   {"op", std::string(graph.op(n))},
                   {"inputs", Ids(graph.inputs(n))},
                   {"outputs", Tensors(graph, n)},
                   {"aliases", Ids(graph.alias_of(n))},
                   {"mutates", Ids(graph.mutates(n))},
                   {"flags", Flags(graph, n)},
                   {"flops", absl::StrCat(graph.flops(n))},
                   {"memory bytes", absl::StrCat(graph.memory_bytes(n))},
                   {"direction", std::string(Name(graph.direction(n)))},
                   {"module", std::string(graph.module(n))}};
  switch (graph.kind(n)) {
    case NodeKind::kPlaceholder:
      fields.emplace_back("role", std::string(Name(graph.role(n))));
      fields.emplace_back("parameter", std::string(graph.parameter(n)));
      break;
    case NodeKind::kGetitem:
      fields.emplace_back("index", absl::StrCat(graph.getitem_index(n)));
      break;
    case NodeKind::kCollective:
      AddCollective(graph, graph.collective(graph.collective_of(n)), fields);
      break;
    case NodeKind::kOutput:
      fields.emplace_back("output slots", Slots(graph));
      break;
    default:
      break;
  }
  return fields;
}

}  // namespace

GraphDifference FirstDifference(const Graph& a, const Graph& b) {
  const NodeId both = std::min(a.size(), b.size());
  for (NodeId n = 0; n < both; ++n) {
    const Fields in_a = FieldsOf(a, n), in_b = FieldsOf(b, n);
    // Nodes of one kind have the same fields; another kind is the first of them.
    for (size_t i = 0; i < std::min(in_a.size(), in_b.size()); ++i) {
      if (in_a[i] == in_b[i]) continue;
      return {n, in_a[i].first, in_a[i].second, in_b[i].second};
    }
  }
  if (a.size() == b.size()) return {};
  return {both, "nodes", absl::StrCat(a.size()), absl::StrCat(b.size())};
}

}  // namespace bucketd
