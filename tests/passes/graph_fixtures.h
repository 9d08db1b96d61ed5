// Small graphs in a few words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"

namespace bucketd::testing {

using Shape = std::vector<int64_t>;

// Adds nodes that must be accepted. Every call returns the new node's id.
class GraphWriter {
 public:
  explicit GraphWriter(int32_t ranks = 4) : builder_("test") {
    EXPECT_TRUE(builder_.AddGroup({"dp", 0, ranks}).ok());
  }

  NodeId Placeholder(Shape shape, std::string parameter = "", DType dtype = DType::kF32) {
    NodeSpec spec = Spec(NodeKind::kPlaceholder, "placeholder", {}, shape, dtype);
    spec.role = parameter.empty() ? Role::kInput : Role::kParameter;
    spec.parameter = parameter;
    return Add(spec);
  }
  // A mesh object: no tensor.
  NodeId Opaque() {
    NodeSpec spec;
    spec.kind = NodeKind::kPlaceholder;
    spec.op = "placeholder";
    return Add(spec);
  }
  NodeId Call(const std::string& op, std::vector<NodeId> inputs, Shape shape,
              DType dtype = DType::kBF16) {
    return Add(Spec(NodeKind::kCall, op, std::move(inputs), shape, dtype));
  }
  NodeId Sum(NodeId a, NodeId b, Shape shape, DType dtype = DType::kBF16) {
    NodeSpec spec = Spec(NodeKind::kCall, "aten.add.Tensor", {a, b}, shape, dtype);
    spec.flags = kPointwiseFlag;
    return Add(spec);
  }
  NodeId View(const std::string& op, NodeId input, Shape shape, DType dtype = DType::kBF16) {
    NodeSpec spec = Spec(NodeKind::kCall, op, {input}, shape, dtype);
    spec.flags = kViewFlag;
    spec.alias_of = spec.inputs;
    spec.memory_bytes = 0;
    return Add(spec);
  }
  NodeId Collective(CollectiveKind kind, NodeId input, Shape shape, DType dtype = DType::kBF16) {
    NodeSpec spec =
        Spec(NodeKind::kCollective, "_c10d_functional.collective.default", {input}, shape, dtype);
    spec.memory_bytes = 0;
    spec.collective.kind = kind;
    const bool reduces =
        kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllReduce;
    spec.collective.reduce_op = reduces ? ReduceOp::kSum : ReduceOp::kNone;
    return Add(spec);
  }
  NodeId Wait(NodeId collective, Shape shape, DType dtype = DType::kBF16) {
    NodeSpec spec =
        Spec(NodeKind::kWait, "_c10d_functional.wait_tensor.default", {collective}, shape, dtype);
    spec.alias_of = spec.inputs;
    spec.memory_bytes = 0;
    return Add(spec);
  }
  NodeId Getitem(NodeId input, int32_t index, Shape shape, DType dtype = DType::kBF16) {
    NodeSpec spec = Spec(NodeKind::kGetitem, "getitem", {input}, shape, dtype);
    spec.getitem_index = index;
    spec.alias_of = spec.inputs;
    spec.memory_bytes = 0;
    return Add(spec);
  }
  Graph Finish(const std::vector<NodeId>& slots) {
    NodeSpec spec;
    spec.kind = NodeKind::kOutput;
    spec.op = "output";
    std::vector<NodeId> inputs;
    std::vector<NodeSpec::Slot> all;
    for (NodeId n : slots) {
      if (std::find(inputs.begin(), inputs.end(), n) == inputs.end() && n != kNoNode) {
        inputs.push_back(n);
      }
      all.push_back({n, n == kNoNode ? SlotKind::kNone : SlotKind::kOutput, ""});
    }
    spec.inputs = inputs;
    spec.slots = all;
    Add(spec);
    auto graph = std::move(builder_).Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }

 private:
  // Bytes of calls: inputs and outputs, as proto/GRAPH.md counts them.
  NodeSpec Spec(NodeKind kind, const std::string& op, std::vector<NodeId> inputs,
                const Shape& shape, DType dtype) {
    op_ = op;
    inputs_ = std::move(inputs);
    shape_ = shape;
    tensor_ = {dtype, shape_};
    NodeSpec spec;
    spec.kind = kind;
    spec.op = op_;
    spec.inputs = inputs_;
    spec.outputs = absl::MakeConstSpan(&tensor_, 1);
    int64_t bytes = Bytes(shape, dtype);
    bytes_.push_back(bytes);
    for (NodeId n : inputs_) bytes += bytes_[static_cast<size_t>(n)];
    if (kind == NodeKind::kCall) spec.memory_bytes = bytes;
    return spec;
  }
  static int64_t Bytes(const Shape& shape, DType dtype) {
    int64_t bytes = ItemSize(dtype);
    for (int64_t dim : shape) bytes *= dim;
    return bytes;
  }
  NodeId Add(const NodeSpec& spec) {
    auto id = builder_.Add(spec);
    EXPECT_TRUE(id.ok()) << id.status();
    if (id.ok() && bytes_.size() < static_cast<size_t>(*id) + 1) bytes_.push_back(0);
    return id.ok() ? *id : kNoNode;
  }

  GraphBuilder builder_;
  std::string op_;
  std::vector<NodeId> inputs_;
  Shape shape_;
  NodeSpec::Tensor tensor_;
  std::vector<int64_t> bytes_;
};

}  // namespace bucketd::testing
