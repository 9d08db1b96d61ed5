// What a line of the text form leaves out: names, and what follows from the op and the inputs. One
// definition for reading and writing. Internal to passes/text.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/types.h"
#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"
#include "passes/ir/ops.h"

namespace bucketd::text_internal {

// What begins a node's line: "input", "param", "all_gather", "wait", ... Words that are none of
// these are ops of calls.
struct Keyword {
  absl::string_view word;
  NodeKind kind = NodeKind::kUnspecified;
  Role role = Role::kNone;
  CollectiveKind collective = CollectiveKind::kUnspecified;
  absl::string_view op;  // unless the line says otherwise
};
// nullptr if it is none.
const Keyword* FindKeyword(absl::string_view word);
const Keyword& KeywordOf(NodeKind kind, Role role, CollectiveKind collective);

// "mm" stands for "aten.mm.default". Empty if nothing short stands for the op.
absl::string_view ShortOp(absl::string_view op);

// What an op's name tells.
struct OpFacts {
  uint8_t flags = 0;  // of a call
  bool is_ordered = false;
  Traffic traffic = Traffic::kAll;
};
OpFacts FactsOf(absl::string_view op);

inline uint8_t DefaultFlags(NodeKind kind, const OpFacts& facts) {
  if (kind == NodeKind::kCall) return facts.flags;
  return kind == NodeKind::kCollective && facts.is_ordered ? kOrderedFlag : 0;
}

// In-place ops return what they write; views, waits and getitems share their input's storage.
absl::Span<const NodeId> DefaultAlias(NodeKind kind, uint8_t flags, absl::Span<const NodeId> inputs,
                                      absl::Span<const NodeId> mutates);

// The first input's tensors, through the collective or the getitem if it is one. `dims` gets the
// shape where it is a new one. False: such a node says itself what it makes.
bool DefaultOutputs(const Graph& graph, const NodeSpec& spec, int32_t group_size,
                    std::vector<int64_t>& dims, std::vector<NodeSpec::Tensor>& outputs);

// proto/GRAPH.md §3, from shapes alone; capped where it would overflow.
int64_t CountedBytes(const Graph& graph, NodeKind kind, uint8_t flags, Traffic traffic,
                     absl::Span<const NodeId> inputs, absl::Span<const NodeSpec::Tensor> outputs);

}  // namespace bucketd::text_internal
