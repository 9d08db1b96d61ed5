// The canonical encoding of whatever the builder takes: bytes are calls of it. Two ways of carrying
// a graph must keep its encoding, and another graph must have another one.
#include <array>
#include <utility>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace bucketd::fuzz {
namespace {

class Calls {
 public:
  Calls(const uint8_t* data, size_t size) : data_(data), size_(size), builder_("fuzz", Limits()) {}

  // Nothing where the builder refused a call.
  absl::StatusOr<Graph> Build() {
    for (int g = Byte() % 4; g > 0; --g) {
      const auto group =
          builder_.AddGroup({kNames[Byte() % kNames.size()], Byte() % 3, 1 + Byte() % 8});
      if (!group.ok()) return group.status();
    }
    while (size_ > 0) {
      const auto id = Add();
      if (!id.ok()) return id.status();
    }
    return std::move(builder_).Build();
  }

 private:
  static constexpr std::array<const char*, 8> kNames = {"",    "dp",   "x",  "layers.0.w",
                                                        "a b", "\"\\", "12", "\xc3\xa9"};
  static constexpr std::array<const char*, 6> kOps = {
      "aten.mm.default", "aten.add_.Tensor", "getitem", "aten.rand.default", "output", "odd op"};

  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  std::vector<NodeId> Nodes(int most) {
    std::vector<NodeId> nodes;
    for (int i = Byte() % most; i > 0; --i) {
      const int64_t back = Byte();
      nodes.push_back(static_cast<NodeId>(builder_.graph().size() - back));
    }
    return nodes;
  }
  std::vector<int64_t> Shape() {
    std::vector<int64_t> shape;
    for (int i = Byte() % 4; i > 0; --i) {
      const uint8_t b = Byte();
      shape.push_back(b == 255 ? int64_t{1} << 48 : b % 32);
    }
    return shape;
  }

  absl::StatusOr<NodeId> Add() {
    NodeSpec spec;
    spec.kind = static_cast<NodeKind>(Byte() % 9);
    spec.op = kOps[Byte() % kOps.size()];
    spec.name = kNames[Byte() % kNames.size()];
    spec.module = kNames[Byte() % kNames.size()];
    spec.direction = static_cast<Direction>(Byte() % 3);
    spec.flags = Byte() % 20;
    spec.flops = Byte();
    spec.memory_bytes = Byte();
    const bool is_placeholder = spec.kind == NodeKind::kPlaceholder;
    if (is_placeholder) spec.role = static_cast<Role>(Byte() % 7);
    if (is_placeholder) spec.parameter = kNames[Byte() % kNames.size()];
    if (spec.kind == NodeKind::kGetitem) spec.getitem_index = Byte();
    const std::vector<NodeId> inputs = Nodes(4), alias = Nodes(3), mutates = Nodes(3);
    spec.inputs = inputs;
    spec.alias_of = alias;
    spec.mutates = mutates;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<NodeSpec::Tensor> tensors;
    for (int i = Byte() % 3; i > 0; --i) shapes.push_back(Shape());
    for (const auto& shape : shapes) tensors.push_back({static_cast<DType>(Byte() % 19), shape});
    spec.outputs = tensors;
    if (spec.kind == NodeKind::kCollective) {
      spec.collective = {static_cast<CollectiveKind>(Byte() % 7), Byte() % 4,
                         static_cast<ReduceOp>(Byte() % 10), static_cast<Tag>(Byte() % 6),
                         kNames[Byte() % kNames.size()]};
    }
    std::vector<NodeSpec::Slot> slots;
    if (spec.kind == NodeKind::kOutput) {
      for (const NodeId n : inputs) {
        slots.push_back({n, static_cast<SlotKind>(Byte() % 6), kNames[Byte() % kNames.size()]});
      }
      if (Byte() % 2 == 0) slots.emplace_back();
    }
    spec.slots = slots;
    return builder_.Add(spec);
  }

  const uint8_t* data_;
  size_t size_;
  GraphBuilder builder_;
};

}  // namespace
}  // namespace bucketd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bucketd;
  const auto graph = fuzz::Calls(data, size).Build();
  if (!graph.ok()) return 0;
  fuzz::Check(CanonicalEncoding(*graph) == CanonicalEncoding(*graph), "encoding is a function");
  fuzz::CheckGraph(*graph);
  return 0;
}
