// An immutable dataflow graph of one training step, in flat arrays: a million nodes fit in a few
// hundred megabytes and every walk is a scan. Ids are positions in program order, which is
// topological. Thread-safe once built.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/csr.h"
#include "passes/base/index.h"
#include "passes/base/types.h"

namespace bucketd {

struct TensorType {
  DType dtype = DType::kUnspecified;
  int32_t rank = 0;
  int64_t first_dim = 0;  // into the graph's dims
  int64_t elements = 0;
  int64_t bytes = 0;
};

// A process group by its role. lane tells groups over the same ranks apart.
struct Group {
  std::string mesh_dim;
  int32_t lane = 0;
  int32_t size = 0;
  friend bool operator==(const Group&, const Group&) = default;
};

struct Collective {
  NodeId start = kNoNode;
  NodeId wait = kNoNode;  // kNoNode: nobody waits for it; such a collective is never bucketed
  CollectiveKind kind = CollectiveKind::kUnspecified;
  GroupId group = 0;
  ReduceOp reduce_op = ReduceOp::kNone;
  DType dtype = DType::kUnspecified;  // of the output
  Tag tag = Tag::kNone;
  bool symbolic = false;   // its input or its result has a symbolic size: it is never bucketed
  StringId parameter = 0;  // FQN of the tagged parameter
  int64_t bytes = 0;       // full message: output of an all-gather, input of a reduce-scatter or
                           // all-reduce, larger side of an all-to-all
};

struct OutputSlot {
  NodeId node = kNoNode;  // kNoNode: empty
  SlotKind kind = SlotKind::kNone;
  StringId parameter = 0;
};

// Bits of Graph::flags. A symbolic node has an output with a size that changes from step to step;
// the shape holds a hint, by which costs may be estimated, and on which no plan's legality rests.
enum NodeFlag : uint8_t {
  kViewFlag = 1,
  kComputeFlag = 2,
  kPointwiseFlag = 4,
  kOrderedFlag = 8,
  kSymbolicFlag = 16
};
// In words, as the text form has them.
inline constexpr std::pair<NodeFlag, absl::string_view> kNodeFlags[] = {
    {kViewFlag, "view"},
    {kComputeFlag, "compute"},
    {kPointwiseFlag, "pointwise"},
    {kOrderedFlag, "ordered"},
    {kSymbolicFlag, "symbolic"}};

class Graph {
 public:
  int32_t size() const { return static_cast<int32_t>(kind_.size()); }
  absl::string_view name() const { return name_; }

  NodeKind kind(NodeId n) const { return kind_[Index(n)]; }
  absl::string_view op(NodeId n) const { return strings_[Index(op_[Index(n)])]; }
  StringId op_id(NodeId n) const { return op_[Index(n)]; }
  // For people; "" where the graph came without names, then ids must do.
  absl::string_view node_name(NodeId n) const;
  // "%12 (mm_3)" or "%12": how messages speak of a node.
  std::string Describe(NodeId n) const;

  absl::Span<const NodeId> inputs(NodeId n) const { return inputs_.of(n); }
  // Nodes that read n, each once, ascending.
  absl::Span<const NodeId> users(NodeId n) const { return users_.of(n); }
  absl::Span<const TensorType> outputs(NodeId n) const {
    const size_t from = Index(output_begin_[Index(n)]);
    return absl::MakeConstSpan(outputs_).subspan(from, Index(output_begin_[Index(n) + 1]) - from);
  }
  absl::Span<const NodeId> alias_of(NodeId n) const { return alias_of_.of(n); }
  absl::Span<const NodeId> mutates(NodeId n) const { return mutates_.of(n); }
  absl::Span<const int64_t> shape(const TensorType& t) const {
    return absl::MakeConstSpan(dims_).subspan(static_cast<size_t>(t.first_dim),
                                              static_cast<size_t>(t.rank));
  }

  uint8_t flags(NodeId n) const { return flags_[Index(n)]; }
  bool is_view(NodeId n) const { return (flags(n) & kViewFlag) != 0; }
  bool is_compute(NodeId n) const { return (flags(n) & kComputeFlag) != 0; }
  bool is_ordered(NodeId n) const { return (flags(n) & kOrderedFlag) != 0; }
  bool is_symbolic(NodeId n) const { return (flags(n) & kSymbolicFlag) != 0; }
  int64_t flops(NodeId n) const { return flops_[Index(n)]; }
  int64_t memory_bytes(NodeId n) const { return memory_bytes_[Index(n)]; }
  Direction direction(NodeId n) const { return direction_[Index(n)]; }
  absl::string_view module(NodeId n) const { return strings_[Index(module_[Index(n)])]; }
  StringId module_id(NodeId n) const { return module_[Index(n)]; }

  // Placeholders. Parameters and buffers do not count as memory of the step.
  Role role(NodeId n) const { return role_[Index(n)]; }
  absl::string_view parameter(NodeId n) const { return strings_[Index(parameter_[Index(n)])]; }
  StringId parameter_id(NodeId n) const { return parameter_[Index(n)]; }
  // Getitems.
  int32_t getitem_index(NodeId n) const { return getitem_index_[Index(n)]; }

  // Collectives in node order; collective_of(n) for a start or a wait, else -1.
  absl::Span<const Collective> collectives() const { return collectives_; }
  const Collective& collective(CollectiveId c) const { return collectives_[Index(c)]; }
  CollectiveId collective_of(NodeId n) const { return collective_of_[Index(n)]; }
  absl::Span<const Group> groups() const { return groups_; }
  const Group& group(const Collective& c) const { return groups_[Index(c.group)]; }

  NodeId output_node() const { return size() - 1; }
  absl::Span<const OutputSlot> output_slots() const { return slots_; }
  absl::string_view string(StringId s) const { return strings_[Index(s)]; }
  absl::Span<const std::string> strings() const { return strings_; }
  bool has_mutation() const { return !mutates_.all.empty(); }
  // Heap bytes held, for admission and the benchmark.
  int64_t memory_footprint() const;

 private:
  friend class GraphBuilder;
  Graph() = default;

  std::string name_;
  std::vector<NodeKind> kind_;
  std::vector<StringId> op_, module_, parameter_;
  Csr inputs_, users_, alias_of_, mutates_;
  std::vector<int32_t> output_begin_ = {0};
  std::vector<TensorType> outputs_;
  std::vector<int64_t> dims_;
  std::vector<uint8_t> flags_;
  std::vector<int64_t> flops_, memory_bytes_;
  std::vector<Direction> direction_;
  std::vector<Role> role_;
  std::vector<int32_t> getitem_index_;
  std::vector<CollectiveId> collective_of_;
  std::vector<Collective> collectives_;
  std::vector<Group> groups_;
  std::vector<OutputSlot> slots_;
  std::vector<std::string> strings_;
  // Names one after the other; node_name_begin_ is empty (no names) or one longer than the nodes.
  std::string node_names_;
  std::vector<int64_t> node_name_begin_;
};

// Of all that a node makes.
int64_t OutputBytes(const Graph& graph, NodeId n);

}  // namespace bucketd
