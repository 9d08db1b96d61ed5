// The one way to make a Graph: nodes are appended in program order, each checked as it comes. Bad
// input of any kind gives an INVALID_ARGUMENT that names the node and what was expected; the
// builder never crashes on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/types.h"
#include "passes/ir/graph.h"

namespace bucketd {

struct GraphLimits {
  int64_t max_nodes = 2'000'000;
  int64_t max_edges = 40'000'000;
  int64_t max_string_bytes = int64_t{256} << 20;
  int64_t max_tensor_rank = 64;
  int64_t max_tensor_bytes = int64_t{1} << 50;
};

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

  // Groups come before the nodes that use them. Returns the group's index.
  absl::StatusOr<GroupId> AddGroup(Group group);
  // Returns the node's id. Checks: inputs exist (earlier ids) and are distinct; a wait waits for a
  // collective that nobody else waits for; shapes of a collective fit its kind and group
  // (all-gather: dim 0 times size, ...); mutated nodes are inputs; sizes are not negative, not
  // symbolic, do not overflow; enum values are known; strings are UTF-8 without control characters.
  absl::StatusOr<NodeId> Add(const NodeSpec& node);
  // Checks: there are nodes, exactly one output and it is last; slots name nodes; every string
  // table fits. Builds users.
  absl::StatusOr<Graph> Build() &&;

 private:
  StringId Intern(absl::string_view s);

  Graph graph_;
  GraphLimits limits_;
  absl::flat_hash_map<std::string, StringId> interned_;
  std::vector<int64_t> shape_scratch_;
  int64_t string_bytes_ = 0;
};

}  // namespace bucketd
