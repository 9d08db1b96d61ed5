// Captured-graph files: all of the shared ones come in, and nothing that is none.
#include "passes/io/fx_json.h"

#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/io/gzip.h"
#include "passes/ir/canonical.h"
#include "tests/passes/test_data.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ReadTestGraph;

TEST(CapturedGraph, TakesTimeByTheNumberOfMeshDimensions) {
  constexpr int kDims = 60'000;
  std::string sizes, names, groups,
      nodes = R"({"op": "placeholder", "outputs": [{"shape": [4], "dtype": "float32"}]})";
  for (int i = 0; i < kDims; ++i) {
    const absl::string_view comma = i == 0 ? "" : ", ";
    absl::StrAppend(&sizes, comma, 2);
    absl::StrAppend(&names, comma, "\"mesh", i, "\"");
    absl::StrAppend(&groups, comma, "\"", i, "\": {\"size\": 2, \"mesh_dim\": \"group", i, "\"}");
    absl::StrAppend(&nodes,
                    R"(, {"op": "c.all_reduce.default", "inputs": [0], "coll": {"kind": "ar", )",
                    R"("reduce_op": "sum", "group": ")", i,
                    R"("}, "outputs": [{"shape": [4], "dtype": "float32"}]})");
  }
  const std::clock_t begin = std::clock();
  const auto captured = ReadCapturedGraph(
      absl::StrCat(R"({"schema": 1, "kind": "fw", "world_size": 2, "mesh_shape": [)", sizes,
                   R"(], "mesh_dim_names": [)", names, R"(], "groups": {)", groups,
                   R"(}, "nodes": [)", nodes, R"(, {"op": "output"}]})"));
  ASSERT_TRUE(captured.ok()) << captured.status();
  EXPECT_EQ(captured->mesh.dims.size(), 2u * kDims);
  EXPECT_EQ(captured->mesh.dims.front().name, "mesh0");
  EXPECT_EQ(captured->mesh.dims.back().name, absl::StrCat("group", kDims - 1));
  const auto costs = Costs::FromDeviceModel(captured->graph, captured->mesh, CostProfile());
  EXPECT_TRUE(costs.ok()) << costs.status();
  // Half a second; minutes where each group looks through all dimensions.
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 8.0);
}

TEST(CapturedGraph, EveryFileComesInWhole) {
  const std::vector<std::string> files = testing::TestDataFiles("graphs", ".json.gz");
  ASSERT_EQ(files.size(), 24u);
  for (const std::string& file : files) {
    const auto captured = ReadCapturedGraphFile(file);
    ASSERT_TRUE(captured.ok()) << captured.status();
    const Graph& g = captured->graph;
    EXPECT_TRUE(captured->has_costs);
    EXPECT_EQ(captured->costs.node_us.size(), static_cast<size_t>(g.size()));
    EXPECT_EQ(captured->costs.links.size(), g.collectives().size());
    for (const Collective& c : g.collectives()) {
      ASSERT_NE(c.wait, kNoNode) << file;
      EXPECT_EQ(c.tag, Tag::kNone);
    }
    for (const Group& group : g.groups()) {
      size_t dims = 0;
      for (const MeshDim& dim : captured->mesh.dims) {
        if (dim.name == group.mesh_dim && dim.size == group.size) ++dims;
      }
      EXPECT_EQ(dims, 1u) << file << ": " << group.mesh_dim;
    }
  }
}

TEST(CapturedGraph, TakesDirectionFromTheKindOfGraph) {
  EXPECT_EQ(ReadTestGraph("llama3_debug_fsdp8.fw").graph.direction(20), Direction::kForward);
  EXPECT_EQ(ReadTestGraph("llama3_debug_fsdp8.bw").graph.direction(20), Direction::kBackward);
  EXPECT_EQ(ReadTestGraph("llama3_debug_fsdp8.joint").graph.direction(20), Direction::kNone);
}

TEST(CapturedGraph, KnowsTheMeshOfGroupsThatCrossNodes) {
  const CapturedGraph hsdp = ReadTestGraph("llama3_debug_hsdp2x4_rsar.bw");
  ASSERT_EQ(hsdp.mesh.dims.size(), 2u);
  EXPECT_EQ(hsdp.mesh.dims[0], (MeshDim{"dp_replicate", 2, 1, ""}));
  EXPECT_EQ(hsdp.mesh.dims[1], (MeshDim{"dp_shard", 4, 0, ""}));
  const CapturedGraph large = ReadTestGraph("llama3_70b_fsdp64.bw");
  EXPECT_THAT(large.mesh.dims, ElementsAre(MeshDim{"dp_shard", 64, 8, ""}));
  const CapturedGraph moe = ReadTestGraph("moe_debug_fsdp4_ep4.bw");
  EXPECT_THAT(moe.mesh.dims, ElementsAre(MeshDim{"efsdp", 4, 2, ""}, MeshDim{"ep", 4, 0, ""},
                                         MeshDim{"dp_shard", 16, 8, ""}));
}

TEST(CapturedGraph, KeepsOddPlaces) {
  const Graph large = ReadTestGraph("llama3_70b_fsdp64.fw").graph;
  int wide_getitems = 0;
  for (NodeId n = 0; n < large.size(); ++n) {
    if (large.op(n) == "run_and_save_rng_state") {
      EXPECT_TRUE(large.is_ordered(n));
      EXPECT_TRUE(large.outputs(n).empty());
    }
    if (large.kind(n) != NodeKind::kGetitem || large.outputs(n).size() != 5) continue;
    ++wide_getitems;
    EXPECT_EQ(large.getitem_index(n), 1);
    EXPECT_EQ(large.outputs(n)[2].dtype, DType::kU64);
    EXPECT_EQ(large.outputs(n)[3].rank, 0);
    EXPECT_EQ(large.outputs(n)[4].bytes, 0);
  }
  EXPECT_GT(wide_getitems, 0);
  const Graph bw = ReadTestGraph("llama3_debug_fsdp8.bw").graph;
  int gradients = 0;
  for (const OutputSlot& slot : bw.output_slots()) {
    const bool is_mesh = slot.node != kNoNode && bw.outputs(slot.node).empty();
    if (is_mesh) {
      EXPECT_EQ(slot.kind, SlotKind::kNone);
    }
    gradients += slot.kind == SlotKind::kParameterGradient ? 1 : 0;
  }
  int scatters = 0;
  for (const Collective& c : bw.collectives()) {
    scatters += c.kind == CollectiveKind::kReduceScatter ? 1 : 0;
  }
  EXPECT_EQ(gradients, scatters);
}

// Two groups over one mesh dimension, a third over none; an expanded tensor.
constexpr char kSmall[] = R"({
  "schema": 1, "name": "small", "kind": "joint", "world_size": 4, "gpus_per_node": 2,
  "mesh_shape": [2, 2], "mesh_dim_names": ["dp", "tp"],
  "groups": {"a": {"ranks": [0, 2], "mesh_dim": "dp"}, "b": {"ranks": [0, 2], "mesh_dim": "dp"},
             "c": {"ranks": [0, 1, 2, 3], "mesh_dim": null}, "d": {"ranks": [0, 1, 2], "mesh_dim": ""}},
  "nodes": [
    {"id": 0, "name": "p", "op": "placeholder", "inputs": [], "est_us": 0, "desc_kind": "param",
     "fqn": "w", "outputs": [{"shape": [2, 3], "dtype": "bfloat16", "stride": [3, 1]}]},
    {"id": 1, "name": "e", "op": "aten.expand.default", "inputs": [0], "is_view": true, "alias_of": [0],
     "outputs": [{"stride": [0, 3, 1], "shape": [8, 2, 3], "dtype": "bfloat16"}], "est_us": 0.0},
    {"id": 2, "name": "m", "op": "aten.mul.Tensor", "inputs": [1, 0], "args": [{"n": 1}, {"n": 0}],
     "outputs": [{"shape": [8, 2, 3], "dtype": "torch.bfloat16", "stride": null}], "est_us": 4.5,
     "flops": 7, "is_compute": true, "module": "layers.0"},
    {"id": 3, "name": "ar", "op": "_c10d_functional.all_reduce.default", "inputs": [2],
     "outputs": [{"shape": [8, 2, 3], "dtype": "bfloat16"}], "est_us": 9,
     "coll": {"kind": "ar", "group": "b", "group_size": 2, "reduce_op": "sum", "alpha_us": 1.5, "busbw": 2e9,
              "param": "w"}},
    {"id": 4, "name": "w", "op": "_c10d_functional.wait_tensor.default", "inputs": [3], "wait_of": 3,
     "outputs": [{"shape": [8, 2, 3], "dtype": "bfloat16"}], "alias_of": [3], "est_us": 0},
    {"id": 5, "name": "ar1", "op": "_c10d_functional.all_reduce.default", "inputs": [4],
     "outputs": [{"shape": [8, 2, 3], "dtype": "bfloat16"}],
     "coll": {"kind": "ar", "group": "a", "reduce_op": "avg"}},
    {"id": 6, "name": "ar2", "op": "_c10d_functional.all_reduce.default", "inputs": [4],
     "outputs": [{"shape": [8, 2, 3], "dtype": "bfloat16"}],
     "coll": {"kind": "ar", "group": "c", "reduce_op": "max"}},
    {"id": 7, "name": "ar3", "op": "_c10d_functional.all_reduce.default", "inputs": [4],
     "outputs": [{"shape": [8, 2, 3], "dtype": "bfloat16"}],
     "coll": {"kind": "ar", "group": "d", "reduce_op": "min"}},
    {"id": 8, "name": "output", "op": "output", "inputs": [4, 2], "outputs": [],
     "out_desc": [{"node": 4, "kind": "grad", "fqn": "w"}, {"node": null, "kind": null, "fqn": null},
                  {"node": 2, "kind": "grad", "fqn": null}, {"node": 4, "kind": "saved"}]}
  ]})";

TEST(CapturedGraph, GivesGroupsRolesInOrderOfFirstUse) {
  const auto captured = ReadCapturedGraph(kSmall);
  ASSERT_TRUE(captured.ok()) << captured.status();
  const Graph& g = captured->graph;
  ASSERT_EQ(g.groups().size(), 4u);
  EXPECT_EQ(g.groups()[0], (Group{"dp", 0, 2}));
  EXPECT_EQ(g.groups()[1], (Group{"dp", 1, 2}));
  EXPECT_EQ(g.groups()[2], (Group{"world", 0, 4}));
  EXPECT_EQ(g.groups()[3], (Group{"group0", 0, 3}));
  EXPECT_THAT(captured->mesh.dims,
              ElementsAre(MeshDim{"dp", 2, 1, ""}, MeshDim{"tp", 2, 0, ""},
                          MeshDim{"world", 4, 2, ""}, MeshDim{"group0", 3, 2, ""}));
}

TEST(CapturedGraph, ANodeMayHoldMoreGpusThanAnyMesh) {
  const auto captured = ReadCapturedGraph(R"({
    "schema": 1, "kind": "fw", "gpus_per_node": 9223372036854775807,
    "mesh_shape": [2, 4], "mesh_dim_names": ["dp", "tp"], "nodes": [{"op": "output"}]})");
  ASSERT_TRUE(captured.ok()) << captured.status();
  EXPECT_THAT(captured->mesh.dims, ElementsAre(MeshDim{"dp", 2, 0, ""}, MeshDim{"tp", 4, 0, ""}));
}

TEST(CapturedGraph, FieldsOfANodeMayStandInAnyOrder) {
  const auto index_of = [](absl::string_view getitem) {
    const auto captured = ReadCapturedGraph(absl::StrCat(
        R"({"schema": 1, "kind": "fw", "nodes": [
            {"op": "placeholder", "outputs": [{"shape": [4], "dtype": "float32"}]},
            {"args": [{"n": 0}, "a word"], "inputs": [0], "op": "aten.topk.default",
             "outputs": [{"shape": [2], "dtype": "float32"}, {"shape": [2], "dtype": "int64"}]},
            {)",
        getitem, R"(, "outputs": [{"shape": [2], "dtype": "int64"}]}, {"op": "output"}]})"));
    EXPECT_TRUE(captured.ok()) << captured.status();
    return captured.ok() ? captured->graph.getitem_index(2) : -1;
  };
  EXPECT_EQ(index_of(R"("op": "getitem", "inputs": [1], "args": [{"n": 1}, 1])"), 1);
  EXPECT_EQ(index_of(R"("args": [{"n": 1}, 1], "inputs": [1], "op": "getitem")"), 1);
}

TEST(CapturedGraph, SaysWhatTheFileSays) {
  const auto captured = ReadCapturedGraph(kSmall);
  ASSERT_TRUE(captured.ok()) << captured.status();
  const Graph& g = captured->graph;
  EXPECT_EQ(g.name(), "small.joint");
  EXPECT_EQ(g.role(0), Role::kParameter);
  EXPECT_EQ(g.parameter(0), "w");
  EXPECT_TRUE(g.is_view(1));
  EXPECT_EQ(g.flags(2), kComputeFlag | kPointwiseFlag);
  EXPECT_EQ(g.flops(2), 7);
  EXPECT_EQ(g.module(2), "layers.0");
  // The output, the expanded tensor without its repetition, the parameter.
  EXPECT_EQ(g.memory_bytes(2), 96 + 12 + 12);
  EXPECT_EQ(g.memory_bytes(1), 0);
  EXPECT_EQ(g.memory_bytes(3), 0);
  EXPECT_EQ(captured->costs.node_us[2], 4.5);
  EXPECT_EQ(captured->costs.links[0].alpha_us, 1.5);
  EXPECT_EQ(captured->costs.links[0].busbw_bytes_per_s, 2e9);
  EXPECT_EQ(g.collective(0).wait, 4);
  EXPECT_EQ(g.collective(1).wait, kNoNode);
  EXPECT_EQ(g.collective(0).bytes, 96);
  ASSERT_EQ(g.output_slots().size(), 4u);
  EXPECT_EQ(g.output_slots()[0].kind, SlotKind::kParameterGradient);
  EXPECT_EQ(g.string(g.output_slots()[0].parameter), "w");
  EXPECT_EQ(g.output_slots()[1].node, kNoNode);
  EXPECT_EQ(g.output_slots()[2].kind, SlotKind::kInputGradient);
  EXPECT_EQ(g.output_slots()[3].kind, SlotKind::kSaved);
}

struct BadText {
  std::string what;
  std::map<std::string, std::string> replace;  // in kSmall
  std::string message;
};

class BadCapturedGraph : public ::testing::TestWithParam<BadText> {};

TEST_P(BadCapturedGraph, IsRefusedWithItsPlace) {
  const std::string text = absl::StrReplaceAll(kSmall, GetParam().replace);
  ASSERT_NE(text, kSmall);
  const auto captured = ReadCapturedGraph(text);
  ASSERT_FALSE(captured.ok());
  EXPECT_EQ(captured.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(captured.status().message()), HasSubstr(GetParam().message));
}

const BadText kBadTexts[] = {
    {"NoNodes", {{"\"nodes\"", "\"notes\""}}, "expected an object with a list \"nodes\""},
    {"NodesNoList", {{"\"nodes\": [", "\"nodes\": 5, \"x\": ["}}, "field \"\""},
    {"UnknownKind", {{"\"joint\"", "\"loss\""}}, "kind \"loss\": expected fw, bw or joint"},
    {"MeshNamesMissing",
     {{"[\"dp\", \"tp\"]", "[\"dp\"]"}},
     "mesh_shape has 2 sizes, mesh_dim_names 1 names"},
    {"MeshSizeZero", {{"[2, 2]", "[0, 2]"}}, "mesh_shape: a size is not in 1.."},
    {"MeshContradictsGroup",
     {{"[2, 2]", "[8, 2]"}},
     "has 2 ranks, but mesh dimension \"dp\" has 8"},
    {"IdOutOfPlace",
     {{"\"id\": 2", "\"id\": 3"}},
     "node %2 (m): its id is 3, but ids are positions"},
    {"InputAText", {{"\"inputs\": [1, 0]", "\"inputs\": [1, \"0\"]"}}, "node %2, field \"inputs\""},
    {"InputAhead",
     {{"\"inputs\": [1, 0]", "\"inputs\": [1, 5]"}},
     "node %2 (m) aten.mul.Tensor: input %5"},
    {"InputHuge",
     {{"\"inputs\": [1, 0]", "\"inputs\": [1, 99999999999]"}},
     "node %2 (m) aten.mul.Tensor: input %2147483647"},
    {"InputNegative",
     {{"\"inputs\": [1, 0]", "\"inputs\": [1, -3]"}},
     "input %-1: expected an earlier node"},
    {"UnknownDType",
     {{"torch.bfloat16", "torch.bf17"}},
     "node %2 (m): unknown dtype \"bf17\"; known are bfloat16, bool"},
    {"SymbolicSize",
     {{"\"stride\": [0, 3, 1], \"shape\": [8, 2, 3]", "\"shape\": [\"s0\", 2, 3]"}},
     "node %1 (e): field \"outputs\": a symbolic size, s0, in a shape"},
    {"ShapeAFraction",
     {{"\"stride\": [0, 3, 1], \"shape\": [8, 2, 3]", "\"shape\": [8.5, 2, 3]"}},
     "node %1, field \"outputs\""},
    {"OtherSchema", {{"\"schema\": 1", "\"schema\": 2"}}, "schema 2: expected 1"},
    {"RankTwice", {{"[0, 1, 2, 3]", "[0, 1, 2, 0]"}}, "has rank 0 twice"},
    {"RankBelowZero", {{"[0, 1, 2, 3]", "[0, 1, 2, -3]"}}, "has rank -3; expected none below 0"},
    {"UnknownGroup",
     {{"\"group\": \"b\"", "\"group\": \"z\""}},
     "node %3 (ar): the file has no group \"z\""},
    {"GroupSizeWrong",
     {{"\"group_size\": 2", "\"group_size\": 3"}},
     "group_size is 3, but group \"b\" has 2 ranks"},
    {"UnknownCollective",
     {{"\"kind\": \"ar\", \"group\": \"b\"", "\"kind\": \"xx\", \"group\": \"b\""}},
     "unknown collective kind \"xx\"; known are a2a, ag, ar, bc, rs"},
    {"UnknownReduceOp", {{"\"avg\"", "\"mean\""}}, "node %5 (ar1): unknown reduce op \"mean\""},
    {"UnknownTag", {{"\"busbw\": 2e9", "\"tag\": \"x\""}}, "node %3 (ar): unknown tag \"x\""},
    {"WaitForAnother",
     {{"\"wait_of\": 3", "\"wait_of\": 2"}},
     "node %4 (w): wait_of is 2, but its input is 3"},
    {"SlotNegative",
     {{"{\"node\": 2, \"kind\": \"grad\"", "{\"node\": -2, \"kind\": \"grad\""}},
     "slot 2: %2147483647 is no node"},
    {"UnknownSlotKind", {{"\"saved\"", "\"kept\""}}, "unknown slot kind \"kept\""},
    {"UnknownPlaceholder",
     {{"\"param\",", "\"weight\","}},
     "node %0 (p): unknown desc_kind \"weight\""},
    {"UnknownDirection",
     {{"\"flops\": 7", "\"direction\": \"up\""}},
     "node %2 (m): unknown direction \"up\""},
    {"NegativeFlops", {{"\"flops\": 7", "\"flops\": -7"}}, "flops is negative: -7"},
    {"EstimateAText", {{"\"est_us\": 4.5", "\"est_us\": \"4.5\""}}, "node %2, field \"est_us\""},
    {"ControlCharacter",
     {{"layers.0", "layers\\u001b0"}},
     "node %2 (m) aten.mul.Tensor: module \"layers\\x1b"},
    {"Unclosed",
     {{"]})", "]"}, {"\"kind\": \"saved\"}]}", "\"kind\": \"saved\"}"}},
     "captured graph: "},
};

INSTANTIATE_TEST_SUITE_P(Table, BadCapturedGraph, ::testing::ValuesIn(kBadTexts),
                         [](const auto& test) { return test.param.what; });

TEST(CapturedGraph, IsRefusedWhenCutOffAnywhere) {
  const std::string text = kSmall;
  for (size_t length = 0; length + 1 < text.size(); length += 7) {
    const auto captured = ReadCapturedGraph(text.substr(0, length));
    EXPECT_EQ(captured.status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
}

TEST(CapturedGraph, StatesItsOwnFlagsAndBytesWhenSavedByTheClient) {
  const std::string text = absl::StrReplaceAll(
      kSmall, {{"\"schema\": 1",
                "\"schema\": 1, \"stated\": 1, \"device_type\": \"cpu\", "
                "\"mesh_dims\": [{\"name\": \"dp\", \"size\": 2, \"ranks_per_node\": 1}]"},
               {"\"mesh_dim\": \"dp\"}, \"b\"", "\"mesh_dim\": \"dp\", \"lane\": 0}, \"b\""},
               {"\"mesh_dim\": \"dp\"},\n", "\"mesh_dim\": \"dp\", \"lane\": 1},\n"},
               {"\"flops\": 7", "\"memory_bytes\": 11, \"direction\": \"bw\""},
               {"\"busbw\": 2e9", "\"tag\": \"ddp_ar\""}});
  const auto captured = ReadCapturedGraph(text);
  ASSERT_TRUE(captured.ok()) << captured.status();
  const Graph& g = captured->graph;
  EXPECT_EQ(g.flags(2), kComputeFlag);  // "pointwise" is not stated
  EXPECT_EQ(g.memory_bytes(2), 11);
  EXPECT_EQ(g.direction(2), Direction::kBackward);
  EXPECT_EQ(g.direction(1), Direction::kNone);
  EXPECT_EQ(g.collective(0).tag, Tag::kDdpAllReduce);
  EXPECT_EQ(g.string(g.collective(0).parameter), "w");
  EXPECT_EQ(g.groups()[0], (Group{"dp", 1, 2}));
  EXPECT_EQ(g.groups()[1], (Group{"dp", 0, 2}));
  EXPECT_EQ(captured->mesh.device_type, "cpu");
  EXPECT_THAT(captured->mesh.dims, ElementsAre(MeshDim{"dp", 2, 1, ""}));
}

TEST(CapturedGraph, WithoutTimesHasNoCosts) {
  std::string text = absl::StrReplaceAll(kSmall, {{"\"est_us\"", "\"unknown\""}});
  const auto captured = ReadCapturedGraph(text);
  ASSERT_TRUE(captured.ok()) << captured.status();
  EXPECT_FALSE(captured->has_costs);
  EXPECT_TRUE(captured->costs.node_us.empty());
  EXPECT_TRUE(captured->costs.links.empty());
}

TEST(CapturedGraph, ThatIsMissingIsNotFound) {
  const auto captured = ReadCapturedGraphFile("/nonexistent/graph.json.gz");
  EXPECT_EQ(captured.status().code(), absl::StatusCode::kNotFound);
}

TEST(Gzip, IsBoundedAndNoticesDamage) {
  const std::string packed =
      testing::ReadFile(testing::TestDataPath("graphs/llama3_debug_ddp8.fw.json.gz"));
  const auto whole = GunzipBounded(packed, kMaxJsonBytes);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto size = static_cast<int64_t>(whole->size());
  EXPECT_EQ(whole->back(), '}');
  EXPECT_TRUE(GunzipBounded(packed, size).ok());
  EXPECT_THAT(std::string(GunzipBounded(packed, size - 1).status().message()),
              HasSubstr("unpacks to more than"));
  EXPECT_EQ(GunzipBounded(packed + packed, 2 * size)->size(), 2 * whole->size());
  for (size_t length : {size_t{2}, size_t{10}, size_t{1000}, packed.size() - 1}) {
    EXPECT_FALSE(GunzipBounded(packed.substr(0, length), kMaxJsonBytes).ok()) << length;
  }
  std::string damaged = packed;
  damaged[packed.size() / 2] = static_cast<char>(damaged[packed.size() / 2] ^ 0x10);
  EXPECT_FALSE(GunzipBounded(damaged, kMaxJsonBytes).ok());
  EXPECT_FALSE(GunzipBounded(packed + "x", kMaxJsonBytes).ok());
  EXPECT_THAT(std::string(ReadCapturedGraph(packed, {}, 1000).status().message()),
              HasSubstr("unpacks to more than 1000"));
}

}  // namespace
}  // namespace bucketd
