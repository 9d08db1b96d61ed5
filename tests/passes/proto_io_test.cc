// Graphs over the wire: what goes out comes back, and nothing that is no graph comes in.
#include "passes/io/proto_io.h"

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "proto/graph.pb.h"
#include "tests/passes/graph_fixtures.h"
#include "tests/passes/test_data.h"

namespace bucketd {
namespace {

using testing::GraphWriter;
using ::testing::HasSubstr;
using testing::Shape;

std::string Serialized(const Graph& graph) {
  v1::Graph message;
  GraphToProto(graph, message);
  return message.SerializeAsString();
}

// All that a graph says must be the same, not only what is in the digest.
void ExpectSame(const Graph& a, const Graph& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a.name(), b.name());
  EXPECT_EQ(CanonicalEncoding(a), CanonicalEncoding(b));
  ASSERT_EQ(a.collectives().size(), b.collectives().size());
  for (NodeId n = 0; n < a.size(); ++n) {
    ASSERT_EQ(a.node_name(n), b.node_name(n));
    ASSERT_EQ(a.users(n), b.users(n));
  }
  for (size_t i = 0; i < a.collectives().size(); ++i) {
    EXPECT_EQ(a.collectives()[i].wait, b.collectives()[i].wait);
    EXPECT_EQ(a.collectives()[i].bytes, b.collectives()[i].bytes);
  }
}

TEST(GraphOnTheWire, ComesBackForEveryCapturedGraphRawAndNormalised) {
  const std::vector<std::string> files = testing::TestDataFiles("graphs", ".json.gz");
  ASSERT_EQ(files.size(), 24u);
  for (const std::string& file : files) {
    const auto captured = ReadCapturedGraphFile(file);
    ASSERT_TRUE(captured.ok()) << captured.status();
    const auto normalized = Normalize(captured->graph);
    ASSERT_TRUE(normalized.ok()) << normalized.status();
    for (const Graph* graph : {&captured->graph, &normalized->graph}) {
      const auto back = GraphFromBytes(Serialized(*graph));
      ASSERT_TRUE(back.ok()) << back.status();
      ExpectSame(*graph, *back);
    }
  }
}

// Any graph that the builder takes: random ops, shapes, views, collectives with and without waits.
Graph RandomGraph(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  const int ranks = 1 + below(8);
  GraphWriter w(ranks);
  std::vector<std::pair<NodeId, Shape>> values;
  for (int i = 0; i < 1 + below(5); ++i) {
    const Shape shape = {ranks * below(5), 1 + below(4)};
    values.emplace_back(
        w.Placeholder(shape, below(2) == 0 ? "" : absl::StrCat("p", i), DType::kBF16), shape);
  }
  const int nodes = below(120);
  for (int i = 0; i < nodes; ++i) {
    const auto [input, shape] = values[static_cast<size_t>(below(static_cast<int>(values.size())))];
    const auto [other, unused] =
        values[static_cast<size_t>(below(static_cast<int>(values.size())))];
    switch (below(5)) {
      case 0:
        values.emplace_back(w.View("aten.t.default", input, shape), shape);
        break;
      case 1: {
        const bool gathers = below(2) == 0 || shape[0] % ranks != 0;
        const Shape out = {gathers ? shape[0] * ranks : shape[0] / ranks, shape[1]};
        if (out[0] > 4096) break;
        const NodeId c = w.Collective(
            gathers ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter, input, out);
        values.emplace_back(below(8) == 0 ? c : w.Wait(c, out), out);
        break;
      }
      default: {
        std::vector<NodeId> inputs = {input};
        if (other != input) inputs.push_back(other);
        values.emplace_back(w.Call(absl::StrCat("aten.op", below(9), ".default"), inputs, shape),
                            shape);
      }
    }
  }
  std::vector<NodeId> slots;
  for (int i = 0; i < below(6); ++i) {
    slots.push_back(
        below(5) == 0 ? kNoNode
                      : values[static_cast<size_t>(below(static_cast<int>(values.size())))].first);
  }
  return w.Finish(slots);
}

TEST(GraphOnTheWire, KeepsTheDigestOfTwoHundredRandomGraphs) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Graph graph = RandomGraph(seed);
    const auto back = GraphFromBytes(Serialized(graph));
    ASSERT_TRUE(back.ok()) << seed << ": " << back.status();
    ExpectSame(graph, *back);
  }
}

// x -> all-gather -> wait -> mul -> output, over 4 ranks.
v1::Graph SmallGraph() {
  GraphWriter w(4);
  const NodeId x = w.Placeholder({2, 3}, "weight", DType::kBF16);
  const NodeId gather = w.Collective(CollectiveKind::kAllGather, x, {8, 3});
  const NodeId wait = w.Wait(gather, {8, 3});
  const NodeId mul = w.Call("aten.mul.Tensor", {wait, x}, {8, 3});
  const Graph graph = w.Finish({mul});
  v1::Graph message;
  GraphToProto(graph, message);
  return message;
}

struct Hostile {
  std::string what;
  std::function<void(v1::Graph&)> change;
  std::string message;  // part of it
};

class HostileGraph : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileGraph, IsRefusedWithTheNodeAndTheReason) {
  v1::Graph message = SmallGraph();
  ASSERT_TRUE(GraphFromBytes(message.SerializeAsString()).ok());
  GetParam().change(message);
  const absl::Status status = GraphFromBytes(message.SerializeAsString()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

constexpr int64_t kHuge = int64_t{1} << 62;

v1::Node& NodeOf(v1::Graph& g, int n) { return *g.mutable_nodes(n); }
v1::Tensor& OutOf(v1::Graph& g, int n) { return *g.mutable_nodes(n)->mutable_outputs(0); }

const Hostile kHostile[] = {
    {"NoVersion", [](v1::Graph& g) { g.set_format_version(0); }, "format_version 0"},
    {"LaterVersion", [](v1::Graph& g) { g.set_format_version(2); }, "format_version 2"},
    {"NoNodes", [](v1::Graph& g) { g.clear_nodes(); }, "it has no nodes"},
    {"NoStrings", [](v1::Graph& g) { g.clear_strings(); }, "first one of the strings"},
    {"FirstStringNotEmpty", [](v1::Graph& g) { g.set_strings(0, "x"); },
     "first one of the strings"},
    {"OpIndexPastTheStrings", [](v1::Graph& g) { NodeOf(g, 3).set_op(999); },
     "node %3: op is string 999"},
    {"ModuleIndexPastTheStrings", [](v1::Graph& g) { NodeOf(g, 3).set_module(4000000000u); },
     "node %3: module is string 4000000000"},
    {"NoOp", [](v1::Graph& g) { NodeOf(g, 3).set_op(0); }, "node %3: expected the name of an op"},
    {"UnknownInput", [](v1::Graph& g) { NodeOf(g, 3).set_inputs(0, 77); },
     "node %3 aten.mul.Tensor: input %77"},
    {"HugeInput", [](v1::Graph& g) { NodeOf(g, 3).set_inputs(0, 4294967295u); },
     "node %3 aten.mul.Tensor: input %2147483647"},
    {"SelfEdge", [](v1::Graph& g) { NodeOf(g, 3).set_inputs(0, 3); }, "%3 is the node itself"},
    {"ForwardEdge", [](v1::Graph& g) { NodeOf(g, 3).set_inputs(0, 4); },
     "expected an earlier node, 0..2"},
    {"InputTwice", [](v1::Graph& g) { NodeOf(g, 3).add_inputs(0); }, "input %0 stands twice"},
    {"AliasOfALaterNode", [](v1::Graph& g) { NodeOf(g, 3).add_alias_of(4); },
     "node %3 aten.mul.Tensor: alias_of %4"},
    {"MutatesNoInput", [](v1::Graph& g) { NodeOf(g, 3).add_mutates(1); },
     "mutates %1, which is not one of its inputs"},
    {"MutatesTwice",
     [](v1::Graph& g) {
       NodeOf(g, 3).add_mutates(0);
       NodeOf(g, 3).add_mutates(0);
     },
     "mutates %0 twice"},
    {"UnknownKind", [](v1::Graph& g) { NodeOf(g, 3).set_kind(static_cast<v1::NodeKind>(8)); },
     "node %3 aten.mul.Tensor: unknown node kind 8"},
    {"NegativeKind", [](v1::Graph& g) { NodeOf(g, 3).set_kind(static_cast<v1::NodeKind>(-1)); },
     "node %3: unknown node kind -1"},
    {"UnspecifiedKind", [](v1::Graph& g) { NodeOf(g, 3).clear_kind(); }, "unknown node kind 0"},
    {"UnknownDType", [](v1::Graph& g) { OutOf(g, 3).set_dtype(static_cast<v1::DType>(18)); },
     "node %3 aten.mul.Tensor: unknown dtype 18"},
    {"UnknownDTypeOutOfAByte",
     [](v1::Graph& g) { OutOf(g, 3).set_dtype(static_cast<v1::DType>(265)); },
     "node %3: unknown dtype 265"},
    {"UnknownDirection",
     [](v1::Graph& g) { NodeOf(g, 3).set_direction(static_cast<v1::Direction>(3)); },
     "unknown direction 3"},
    {"UnknownRole", [](v1::Graph& g) { NodeOf(g, 0).set_role(static_cast<v1::Role>(6)); },
     "node %0 placeholder: unknown role 6"},
    {"UnknownFlags", [](v1::Graph& g) { NodeOf(g, 3).set_flags(32); }, "unknown flags 32"},
    {"SymbolicWithoutAnOutput",
     [](v1::Graph& g) {
       NodeOf(g, 3).set_flags(16);
       NodeOf(g, 3).clear_outputs();
     },
     "a symbolic size is one of an output, but there is none"},
    {"RoleOfACall", [](v1::Graph& g) { NodeOf(g, 3).set_role(v1::ROLE_INPUT); },
     "only a placeholder has a role"},
    {"IndexOfACall", [](v1::Graph& g) { NodeOf(g, 3).set_getitem_index(1); },
     "only a getitem has an index"},
    {"SlotsOfACall", [](v1::Graph& g) { NodeOf(g, 3).add_slots(); }, "only the output has slots"},
    {"TagOfACall",
     [](v1::Graph& g) { NodeOf(g, 3).mutable_collective()->set_tag(v1::TAG_DDP_ALL_REDUCE); },
     "only a collective has a group"},
    {"NegativeFlops", [](v1::Graph& g) { NodeOf(g, 3).set_flops(-1); }, "flops is negative: -1"},
    {"NegativeBytes", [](v1::Graph& g) { NodeOf(g, 3).set_memory_bytes(-5); },
     "memory_bytes is negative: -5"},
    {"FlopsThatOverflowInSum",
     [](v1::Graph& g) {
       NodeOf(g, 2).set_flops(kHuge / 2);
       NodeOf(g, 3).set_flops(kHuge / 2 + 1);
     },
     "node %3 aten.mul.Tensor: flops of all nodes together"},
    {"NegativeSize", [](v1::Graph& g) { OutOf(g, 3).set_shape(0, -8); },
     "node %3 aten.mul.Tensor: negative size in shape [-8, 3]"},
    {"SizesThatOverflow",
     [](v1::Graph& g) {
       OutOf(g, 3).set_shape(0, kHuge);
       OutOf(g, 3).set_shape(1, kHuge);
     },
     "is larger than"},
    {"SizesThatOverflowBesideAZero",
     [](v1::Graph& g) {
       OutOf(g, 3).set_shape(0, kHuge);
       OutOf(g, 3).set_shape(1, kHuge);
       OutOf(g, 3).add_shape(0);
     },
     "is larger than"},
    {"TensorTooLarge", [](v1::Graph& g) { OutOf(g, 3).set_shape(0, int64_t{1} << 51); },
     "is larger than"},
    {"RankTooLarge",
     [](v1::Graph& g) {
       for (int i = 0; i < 80; ++i) OutOf(g, 3).add_shape(1);
     },
     "a tensor of rank 82"},
    {"PlaceholderWithInput", [](v1::Graph& g) { NodeOf(g, 2).set_kind(v1::NODE_KIND_PLACEHOLDER); },
     "a placeholder has no inputs, but this one 1"},
    {"WaitOfTwo", [](v1::Graph& g) { NodeOf(g, 2).add_inputs(0); },
     "a wait has one input, but this one 2"},
    {"WaitForNoCollective", [](v1::Graph& g) { NodeOf(g, 2).set_inputs(0, 0); },
     "node %2 _c10d_functional.wait_tensor.default: waits for %0, which is no collective"},
    {"TwoWaits",
     [](v1::Graph& g) {
       v1::Node wait = g.nodes(2);
       NodeOf(g, 3).Swap(&wait);
     },
     "waits for %1, but %2 does already"},
    {"ViewOfNothing", [](v1::Graph& g) { NodeOf(g, 0).set_flags(1); },
     "a view shares storage with its first input"},
    {"UnknownCollectiveKind",
     [](v1::Graph& g) {
       NodeOf(g, 1).mutable_collective()->set_kind(static_cast<v1::CollectiveKind>(6));
     },
     "node %1 _c10d_functional.collective.default: unknown collective kind 6"},
    {"CollectiveWithoutKind", [](v1::Graph& g) { NodeOf(g, 1).mutable_collective()->clear_kind(); },
     "unknown collective kind 0"},
    {"UnknownGroup", [](v1::Graph& g) { NodeOf(g, 1).mutable_collective()->set_group(1); },
     "group 1: the graph has 1"},
    {"UnknownReduceOp",
     [](v1::Graph& g) {
       NodeOf(g, 1).mutable_collective()->set_reduce_op(static_cast<v1::ReduceOp>(9));
     },
     "unknown reduce op 9"},
    {"ReducingGather",
     [](v1::Graph& g) { NodeOf(g, 1).mutable_collective()->set_reduce_op(v1::REDUCE_OP_SUM); },
     "reduce op sum on a all_gather"},
    {"UnknownTag",
     [](v1::Graph& g) { NodeOf(g, 1).mutable_collective()->set_tag(static_cast<v1::Tag>(5)); },
     "unknown tag 5"},
    {"ParameterWithoutTag",
     [](v1::Graph& g) { NodeOf(g, 1).mutable_collective()->set_parameter(1); },
     "a tagged parameter without a tag"},
    {"GatherOfAnotherSize", [](v1::Graph& g) { OutOf(g, 1).set_shape(0, 9); },
     "all_gather over 4 ranks makes bf16[9, 3] of bf16[2, 3]"},
    {"GatherOfAnotherDType", [](v1::Graph& g) { OutOf(g, 1).set_dtype(v1::DTYPE_F32); },
     "shapes or dtypes do not fit"},
    {"GatherOfAnotherRank", [](v1::Graph& g) { OutOf(g, 1).add_shape(1); },
     "shapes or dtypes do not fit"},
    {"GatherThatIsAScatter",
     [](v1::Graph& g) {
       NodeOf(g, 1).mutable_collective()->set_kind(v1::COLLECTIVE_KIND_REDUCE_SCATTER);
       NodeOf(g, 1).mutable_collective()->set_reduce_op(v1::REDUCE_OP_SUM);
     },
     "reduce_scatter over 4 ranks"},
    {"CollectiveOfNothing", [](v1::Graph& g) { NodeOf(g, 1).clear_inputs(); },
     "expected one output, and a first input with one"},
    {"CollectiveWithTwoOutputs",
     [](v1::Graph& g) { *NodeOf(g, 1).add_outputs() = g.nodes(1).outputs(0); },
     "they have 2 and 1"},
    {"HugeRanks", [](v1::Graph& g) { g.mutable_groups(0)->set_size(4294967295u); },
     "group 0 (dp): size 2147483647"},
    {"NoRanks", [](v1::Graph& g) { g.mutable_groups(0)->set_size(0); }, "group 0 (dp): size 0"},
    {"HugeLane", [](v1::Graph& g) { g.mutable_groups(0)->set_lane(70000); },
     "group 0 (dp): lane 70000"},
    {"GroupWithoutDimension", [](v1::Graph& g) { g.mutable_groups(0)->clear_mesh_dim(); },
     "expected the name of a mesh dimension"},
    {"GroupTwice", [](v1::Graph& g) { *g.add_groups() = g.groups(0); },
     "group 1 (dp): lane 0 of this mesh dimension stands here twice"},
    {"LanesOfTwoSizes",
     [](v1::Graph& g) {
       auto& x = *g.add_groups();
       x = g.groups(0);
       x.set_lane(1);
       x.set_size(2);
     },
     "another lane of this mesh dimension has 4"},
    {"NoOutput", [](v1::Graph& g) { g.mutable_nodes()->RemoveLast(); },
     "node %3: expected the output as the last node"},
    {"NodeAfterTheOutput", [](v1::Graph& g) { *g.add_nodes() = g.nodes(0); },
     "node %5 placeholder: stands after the output"},
    {"SlotOfALaterNode", [](v1::Graph& g) { NodeOf(g, 4).mutable_slots(0)->set_node(6); },
     "slot 0: %5 is no node"},
    {"SlotOfHugeNode", [](v1::Graph& g) { NodeOf(g, 4).mutable_slots(0)->set_node(4294967295u); },
     "slot 0: %2147483647 is no node"},
    {"SlotThatIsNoInput", [](v1::Graph& g) { NodeOf(g, 4).mutable_slots(0)->set_node(1); },
     "the inputs are not the slots' nodes"},
    {"InputInNoSlot", [](v1::Graph& g) { NodeOf(g, 4).add_inputs(0); },
     "input %0 stands in no slot"},
    {"EmptySlotWithKind",
     [](v1::Graph& g) { NodeOf(g, 4).add_slots()->set_kind(v1::SLOT_KIND_SAVED); },
     "slot 1: an empty slot has no kind"},
    {"UnknownSlotKind",
     [](v1::Graph& g) { NodeOf(g, 4).mutable_slots(0)->set_kind(static_cast<v1::SlotKind>(5)); },
     "unknown slot kind 5"},
    {"SlotParameterPastTheStrings",
     [](v1::Graph& g) { NodeOf(g, 4).mutable_slots(0)->set_parameter(99); },
     "node %4: parameter is string 99"},
    {"ControlCharacterInAnOp",
     [](v1::Graph& g) { g.set_strings(static_cast<int>(g.nodes(3).op()), "aten.\x1b[2Jmul"); },
     "node %3 aten.\\x1b[2Jmul: op"},
    {"ControlCharacterInAParameter",
     [](v1::Graph& g) { g.set_strings(static_cast<int>(g.nodes(0).parameter()), "a\nb"); },
     "parameter \"a\\nb\" is not UTF-8 without control characters (byte 1)"},
    {"C1ControlCharacter",
     [](v1::Graph& g) { g.set_strings(static_cast<int>(g.nodes(0).parameter()), "\xc2\x9b"); },
     "without control characters"},
    {"ControlCharacterInAMeshDimension",
     [](v1::Graph& g) { g.mutable_groups(0)->set_mesh_dim("d\x07p"); }, "group 0"},
    {"LongString",
     [](v1::Graph& g) {
       g.set_strings(static_cast<int>(g.nodes(3).op()), std::string(20000, 'x'));
     },
     "op has 20000 bytes; the limit is 16384"},
    {"NamesForSomeNodes", [](v1::Graph& g) { g.add_node_names("x"); }, "1 node names for 5 nodes"},
    {"ControlCharacterInAName",
     [](v1::Graph& g) {
       for (int i = 0; i < 5; ++i) g.add_node_names(i == 3 ? "a\tb" : "ok");
     },
     "node %3 (a\\tb) aten.mul.Tensor: name"},
};

INSTANTIATE_TEST_SUITE_P(Table, HostileGraph, ::testing::ValuesIn(kHostile),
                         [](const auto& test) { return test.param.what; });

// As programs gather a loss for their log.
TEST(GraphOnTheWire, MayGatherNumbersIntoAVector) {
  GraphWriter w(4);
  const NodeId loss = w.Placeholder({}, "", DType::kBF16);
  const NodeId gather = w.Collective(CollectiveKind::kAllGather, loss, {4});
  const Graph graph = w.Finish({w.Wait(gather, {4})});
  const auto back = GraphFromBytes(Serialized(graph));
  ASSERT_TRUE(back.ok()) << back.status();
  ExpectSame(graph, *back);
  v1::Graph message;
  GraphToProto(graph, message);
  NodeOf(message, 1).mutable_collective()->set_tag(v1::TAG_FSDP_ALL_GATHER);
  EXPECT_THAT(std::string(GraphFromBytes(message.SerializeAsString()).status().message()),
              HasSubstr("all_gather over 4 ranks makes bf16[4] of bf16[]"));
}

TEST(GraphOnTheWire, IsRefusedWhenCutOffAnywhere) {
  v1::Graph message = SmallGraph();
  message.clear_name();  // which would stand last, and may be missing
  const std::string bytes = message.SerializeAsString();
  ASSERT_TRUE(GraphFromBytes(bytes).ok());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(GraphFromBytes(absl::string_view(bytes).substr(0, length)).ok()) << length;
  }
}

TEST(GraphOnTheWire, SurvivesEverySingleBitFlip) {
  const std::string bytes = SmallGraph().SerializeAsString();
  size_t refused = 0;
  for (size_t i = 0; i < 8 * bytes.size(); ++i) {
    std::string flipped = bytes;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    const auto graph = GraphFromBytes(flipped);
    if (graph.ok()) {
      GraphDigest(*graph);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, bytes.size());
}

TEST(GraphOnTheWire, WithMorePartsThanAGraphMayHaveIsRefusedBeforeItIsBuilt) {
  GraphLimits limits;
  limits.max_nodes = 1000;
  limits.max_groups = 10;
  const std::string head = "\x08\x01\x12";  // format_version 1; strings: ""
  const auto many = [&](absl::string_view part, int n) {
    std::string bytes = head + std::string(1, '\0');
    for (int i = 0; i < n; ++i) bytes.append(part.data(), part.size());
    return std::string(GraphFromBytes(bytes, limits).status().message());
  };
  using absl::string_view;
  EXPECT_EQ(many(string_view("\x22\x00", 2), 1001), "graph: more than 1000 nodes");
  EXPECT_EQ(many(string_view("\x12\x00", 2), 4001), "graph: more than 4000 strings");
  EXPECT_EQ(many(string_view("\x1a\x00", 2), 11), "graph: more than 10 groups");
  EXPECT_EQ(many(string_view("\x82\x01\x00", 3), 1001), "graph: more than 1000 node names");
}

TEST(GraphOnTheWire, WithANodeOfManyTinyPartsIsRefused) {
  GraphLimits limits;
  limits.max_nodes = 1000;
  v1::Graph message = SmallGraph();
  for (int i = 0; i < 50000; ++i) message.mutable_nodes(3)->add_outputs();
  const auto status = GraphFromBytes(message.SerializeAsString(), limits).status();
  EXPECT_EQ(status.message(), "node %3: too many outputs or slots");
}

TEST(GraphOnTheWire, KeepsToTheLimitsOfNodesEdgesAndStrings) {
  const std::string bytes = SmallGraph().SerializeAsString();
  const auto with = [&](int64_t GraphLimits::*limit, int64_t value) {
    GraphLimits limits;
    limits.*limit = value;
    return GraphFromBytes(bytes, limits).ok();
  };
  EXPECT_TRUE(with(&GraphLimits::max_nodes, 5));
  EXPECT_FALSE(with(&GraphLimits::max_nodes, 4));
  EXPECT_TRUE(with(&GraphLimits::max_edges, 6));  // one alias
  EXPECT_FALSE(with(&GraphLimits::max_edges, 5));
  EXPECT_TRUE(with(&GraphLimits::max_tensors, 4));
  EXPECT_FALSE(with(&GraphLimits::max_tensors, 3));
  EXPECT_TRUE(with(&GraphLimits::max_string_bytes, 150));
  EXPECT_FALSE(with(&GraphLimits::max_string_bytes, 60));
}

}  // namespace
}  // namespace bucketd
