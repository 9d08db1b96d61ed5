// The one way to make a Graph: nodes are appended in program order, each checked as it comes. Bad
// input of any kind gives an INVALID_ARGUMENT that names the node and what was expected; the
// builder never crashes on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/csr.h"
#include "passes/base/types.h"
#include "passes/ir/graph.h"

namespace bucketd {

struct GraphLimits {
  int64_t max_nodes = 2'000'000;
  int64_t max_edges = 40'000'000;
  int64_t max_tensors = 40'000'000;               // outputs of all nodes together
  int64_t max_string_bytes = int64_t{256} << 20;  // of all strings together, node names included
  int64_t max_string_length = 16384;
  int64_t max_tensor_rank = 64;
  int64_t max_tensor_bytes = int64_t{1} << 50;
  int64_t max_group_size = int64_t{1} << 24;
  int64_t max_groups = 65536;
};

// Sums over a graph of this limit's figures (tensor bytes, flops, memory bytes) cannot overflow an
// int64: the builder rejects a graph whose total is above it.
inline constexpr int64_t kMaxGraphTotal = int64_t{1} << 61;

// A node as a reader hands it over; spans need to live only during the call of Add.
struct NodeSpec {
  struct Tensor {
    DType dtype = DType::kUnspecified;
    absl::Span<const int64_t> shape;
  };
  struct CollectiveSpec {
    CollectiveKind kind = CollectiveKind::kUnspecified;
    GroupId group = 0;
    ReduceOp reduce_op = ReduceOp::kNone;
    Tag tag = Tag::kNone;
    absl::string_view parameter;
  };
  struct Slot {
    NodeId node = kNoNode;
    SlotKind kind = SlotKind::kNone;
    absl::string_view parameter;
  };
  NodeKind kind = NodeKind::kUnspecified;
  absl::string_view op, name, module, parameter;
  absl::Span<const NodeId> inputs, alias_of, mutates;
  absl::Span<const Tensor> outputs;
  uint8_t flags = 0;
  int64_t flops = 0, memory_bytes = 0;
  Direction direction = Direction::kNone;
  Role role = Role::kNone;
  int32_t getitem_index = 0;
  CollectiveSpec collective;     // kCollective
  absl::Span<const Slot> slots;  // kOutput
};

class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name, GraphLimits limits = {});

  // A hint; nothing depends on it.
  void Reserve(int64_t nodes, int64_t edges);
  // Groups come before the nodes that use them. Returns the group's index.
  absl::StatusOr<GroupId> AddGroup(Group group);
  // Returns the node's id. Checks: inputs exist (earlier ids) and are distinct; a wait waits for a
  // collective that nobody else waits for; shapes of a collective fit its kind and group
  // (all-gather: dim 0 times size, or numbers into a vector, ...), but for hints, of which rank and
  // dtype alone count; mutated nodes are inputs; a symbolic node has an output; sizes are not
  // negative, do not overflow; enum values are known; strings are UTF-8 without control characters;
  // what belongs to another kind of node is unset; an empty slot has no kind and no parameter.
  absl::StatusOr<NodeId> Add(const NodeSpec& node);
  // What was accepted so far; users() is not there yet.
  const Graph& graph() const { return graph_; }
  // Checks: there are nodes, exactly one output and it is last; slots name nodes; every string
  // table fits. Builds users.
  absl::StatusOr<Graph> Build() &&;

 private:
  absl::Status Error(const NodeSpec& node, absl::string_view text) const;
  absl::Status CheckString(absl::string_view s, absl::string_view what) const;
  absl::Status CountString(absl::string_view s, absl::string_view what);
  absl::StatusOr<StringId> Intern(absl::string_view s, absl::string_view what);
  absl::Status CheckEnums(const NodeSpec& node) const;
  absl::Status CheckKind(const NodeSpec& node) const;
  absl::Status CheckFigures(const NodeSpec& node);
  absl::Status AddEdges(const NodeSpec& node, absl::Span<const NodeId> ids, absl::string_view what,
                        Csr& edges_of);
  absl::Status AddMutations(const NodeSpec& node);
  absl::Status AddOutputs(const NodeSpec& node);
  absl::Status AddCollective(const NodeSpec& node);
  bool HasSymbolicSize(const NodeSpec& collective) const;
  absl::Status CheckCollectiveShapes(const NodeSpec& node) const;
  absl::Status AddWait(const NodeSpec& node);
  absl::Status AddSlots(const NodeSpec& node);
  absl::Status AddStrings(const NodeSpec& node);

  Graph graph_;
  GraphLimits limits_;
  absl::flat_hash_map<std::string, StringId> interned_;
  absl::flat_hash_set<std::string> group_keys_;
  absl::flat_hash_map<std::string, int32_t> dim_sizes_;
  std::vector<int64_t> marks_;  // by node: stamp of the list that named it last
  int64_t stamp_ = 0;
  int64_t string_bytes_ = 0, total_bytes_ = 0, total_flops_ = 0, total_memory_bytes_ = 0;
  bool failed_ = false;  // a builder that refused a node stays refused
};

}  // namespace bucketd
