// What may stand in a captured-graph file and no graph may have: every kind is refused, and its
// place named.
#include <zlib.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/io/fx_json.h"
#include "passes/io/gzip.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;

// A parameter's gather, a product, its scatter.
constexpr char kFile[] = R"({"schema": 1, "name": "g", "kind": "fw", "world_size": 4,
 "groups": {"0": {"ranks": [0, 1, 2, 3], "mesh_dim": "dp"}}, "mesh_shape": [4], "mesh_dim_names": ["dp"], "gpus_per_node": 8,
 "nodes": [
 {"id": 0, "name": "p", "op": "placeholder", "inputs": [], "desc_kind": "param", "fqn": "w", "outputs": [{"shape": [2, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 1, "name": "ag", "op": "_c10d_functional.all_gather_into_tensor.default", "inputs": [0], "outputs": [{"shape": [8, 4], "dtype": "float32", "stride": [4, 1]}],
  "coll": {"kind": "ag", "group": "0", "group_size": 4, "reduce_op": null, "alpha_us": 1.0, "busbw": 1e9}},
 {"id": 2, "name": "w", "op": "_c10d_functional.wait_tensor.default", "inputs": [1], "wait_of": 1, "outputs": [{"shape": [8, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 3, "name": "mm", "op": "aten.mm.default", "inputs": [2], "est_us": 1.0, "args": [{"n": 2}], "outputs": [{"shape": [8, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 4, "name": "rs", "op": "_c10d_functional.reduce_scatter_tensor.default", "inputs": [3], "outputs": [{"shape": [2, 4], "dtype": "float32", "stride": [4, 1]}],
  "coll": {"kind": "rs", "group": "0", "group_size": 4, "reduce_op": "sum", "alpha_us": 1.0, "busbw": 1e9}},
 {"id": 5, "name": "wrs", "op": "_c10d_functional.wait_tensor.default", "inputs": [4], "wait_of": 4, "outputs": [{"shape": [2, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 6, "name": "output", "op": "output", "inputs": [5], "outputs": [], "out_desc": [{"node": 5, "kind": "grad", "fqn": "w"}]}]})";

struct Bad {
  const char* what;
  std::string from, to;
  const char* says;
};

std::string Many(absl::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) absl::StrAppend(&out, text);
  return out;
}

std::vector<Bad> AllBad() {
  return {
      {"Cycle", R"("inputs": [2], "est_us")", R"("inputs": [5], "est_us")",
       "node %3 (mm) aten.mm.default: input %5: expected an earlier node, 0..2"},
      {"NodeThatReadsItself", R"("inputs": [2], "est_us")", R"("inputs": [3], "est_us")",
       "input %3 is the node itself"},
      {"DanglingId", R"("inputs": [2], "est_us")", R"("inputs": [700], "est_us")", "input %700"},
      {"InputTwice", R"("inputs": [2], "est_us")", R"("inputs": [2, 2], "est_us")",
       "input %2 stands twice"},
      {"InputsNested", R"("inputs": [2], "est_us")", R"("inputs": [[2]], "est_us")",
       "node %3, field \"inputs\""},
      {"InputsMissing", R"("inputs": [2], "est_us")", R"("inputs": {}, "est_us")",
       "node %3, field \"inputs\""},
      {"GatherOfAnotherSize", R"("shape": [8, 4], "dtype": "float32", "stride": [4, 1]}],
  "coll")",
       R"("shape": [9, 4], "dtype": "float32", "stride": [4, 1]}],
  "coll")",
       "all_gather over 4 ranks makes f32[9, 4] of f32[2, 4]"},
      {"ScatterOfAnotherSize", R"("shape": [2, 4], "dtype": "float32", "stride": [4, 1]}],
  "coll")",
       R"("shape": [3, 4], "dtype": "float32", "stride": [4, 1]}],
  "coll")",
       "reduce_scatter over 4 ranks makes f32[3, 4] of f32[8, 4]"},
      {"ScatterWithoutReduceOp", R"("reduce_op": "sum")", R"("reduce_op": null)",
       "reduce op none on a reduce_scatter"},
      {"UnknownGroup", R"("group": "0", "group_size": 4, "reduce_op": "sum")",
       R"("group": "7", "group_size": 4, "reduce_op": "sum")",
       "node %4 (rs): the file has no group \"7\""},
      {"GroupOfNobody", R"("ranks": [0, 1, 2, 3])", R"("ranks": [])", "node %1 (ag): "},
      {"TwoWaits", R"("inputs": [4], "wait_of": 4)", R"("inputs": [1], "wait_of": 1)",
       "node %5 (wrs) _c10d_functional.wait_tensor.default: waits for %1 (ag), but %2 (w) does"},
      {"WaitForTwo", R"("inputs": [4], "wait_of": 4)", R"("inputs": [4, 3], "wait_of": 4)",
       "node %5 (wrs): wait_of is 4, but this is a call with 2 inputs"},
      {"CollectiveThatWaits", R"("inputs": [3], "outputs")",
       R"("inputs": [3], "wait_of": 3, "outputs")",
       "node %4 (rs): wait_of is 3, but this is a collective with 1 inputs"},
      {"SlotsNested", R"("out_desc": [{"node": 5, "kind": "grad", "fqn": "w"}])",
       R"("out_desc": [[{"node": 5, "kind": "grad", "fqn": "w"}]])", "node %6, field \"out_desc\""},
      {"SlotsNoList", R"("out_desc": [{"node": 5, "kind": "grad", "fqn": "w"}])",
       R"("out_desc": 5)", "node %6, field \"out_desc\""},
      {"SlotOfNoNode", R"("node": 5, "kind")", R"("node": 50, "kind")", "slot 0: %50 is no node"},
      {"SlotThatIsNoInput", R"("node": 5, "kind")", R"("node": 3, "kind")",
       "the inputs are not the slots' nodes"},
      {"SlotsMissing", R"("out_desc": [{"node": 5, "kind": "grad", "fqn": "w"}])",
       R"("out_desc": [])", "input %5 stands in no slot"},
      {"SymbolicSize", R"("shape": [8, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 4)",
       R"("shape": ["8*s0", 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 4)",
       "node %3 (mm): field \"outputs\": a symbolic size, 8*s0"},
      {"AbsurdSize", R"("shape": [2, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 1)",
       R"("shape": [1125899906842624, 1024], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 1)",
       "node %0 (p) placeholder: shape [1125899906842624, 1024] of f32 is larger than"},
      {"SizeThatIsNoNumber", R"("shape": [2, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 1)",
       R"("shape": [1e30, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 1)",
       "node %0, field \"outputs\""},
      {"SizeBeyondSixtyFourBits", R"("shape": [2, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 1)",
       R"("shape": [99999999999999999999999, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 1)",
       "node %0, field \"outputs\""},
      {"RankTooLarge", R"("shape": [2, 4], "dtype": "float32", "stride": [4, 1]}]},
 {"id": 1)",
       absl::StrCat(R"("shape": [)", Many("1,", 99), R"(1], "dtype": "float32"}]},
 {"id": 1)"),
       "node %0 (p) placeholder: a tensor of rank 100"},
      {"LongName", R"("name": "mm")", absl::StrCat(R"("name": ")", Many("x", 20000), "\""),
       "name has 20000 bytes; the limit is 16384"},
      {"EscapeSequenceInAName", R"("name": "mm")", R"("name": "m\u001b[31m")",
       "node %3 (m\\x1b[31m) aten.mm.default: name"},
      {"NewlineInAModule", R"("name": "mm")", R"("name": "mm", "module": "a\nb")",
       "module \"a\\nb\" is not UTF-8 without control characters"},
      {"NameThatIsNoUtf8", R"("name": "mm")", "\"name\": \"m\xff\"", "captured graph: "},
      {"NameThatIsNoText", R"("name": "mm")", R"("name": 7)", "node %3, field \"name\""},
      {"UnclosedArguments", R"("args": [{"n": 2}])",
       absl::StrCat(R"("args": )", Many("[{\"a\":", 5000)), "captured graph: "},
      {"AliasOfALaterNode", R"("est_us": 1.0)", R"("alias_of": [4])", "alias_of %4"},
      {"WritesWhatItDoesNotRead", R"("est_us": 1.0)", R"("mutates": [0])",
       "mutates %0, which is not one of its inputs"},
      {"FlopsBeyondCounting", R"("est_us": 1.0)", R"("flops": 9223372036854775807)",
       "flops of all nodes together is above"},
  };
}

class BadImport : public ::testing::TestWithParam<Bad> {};

TEST_P(BadImport, IsRefusedWithItsPlace) {
  const Bad& bad = GetParam();
  ASSERT_TRUE(ReadCapturedGraph(kFile).ok()) << ReadCapturedGraph(kFile).status();
  std::string text = kFile;
  const size_t at = text.find(bad.from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, bad.from.size(), bad.to);
  const auto captured = ReadCapturedGraph(text);
  EXPECT_EQ(captured.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(captured.status().message()).substr(0, 2000), HasSubstr(bad.says));
}

INSTANTIATE_TEST_SUITE_P(Table, BadImport, ::testing::ValuesIn(AllBad()),
                         [](const auto& bad) { return bad.param.what; });

// What is skipped may nest as it likes: no stack grows with it.
TEST(Import, SkipsDeepArguments) {
  std::string text = kFile;
  const std::string from = R"("args": [{"n": 2}])";
  text.replace(text.find(from), from.size(),
               absl::StrCat(R"("args": )", Many("[", 200'000), Many("]", 200'000)));
  EXPECT_TRUE(ReadCapturedGraph(text).ok()) << ReadCapturedGraph(text).status();
}

std::string Gzipped(const std::string& bytes) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, bytes.size()), '\0');
  std::string in = bytes;
  z.next_in = reinterpret_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

TEST(CompressionBomb, IsGivenUpAtTheLimit) {
  const std::string bomb = Gzipped(std::string(size_t{32} << 20, ' '));
  ASSERT_LT(bomb.size(), 40'000u);
  const auto captured = ReadCapturedGraph(bomb, {}, int64_t{1} << 20);
  EXPECT_EQ(captured.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(captured.status().message()), HasSubstr("unpacks to more than 1048576"));
}

TEST(CompressionBomb, OfManyMembersIsGivenUpToo) {
  const std::string member = Gzipped(std::string(size_t{1} << 16, ' '));
  std::string bomb;
  for (int i = 0; i < 100; ++i) bomb += member;
  EXPECT_THAT(std::string(ReadCapturedGraph(bomb, {}, int64_t{1} << 20).status().message()),
              HasSubstr("unpacks to more than 1048576"));
}

TEST(CompressionBomb, ThatLiesAboutItsSizeIsGivenUpToo) {
  std::string bomb = Gzipped(std::string(size_t{8} << 20, ' '));
  for (size_t i = 1; i <= 4; ++i) bomb[bomb.size() - i] = '\0';  // says: nothing in it
  EXPECT_FALSE(ReadCapturedGraph(bomb, {}, int64_t{1} << 20).ok());
  EXPECT_FALSE(GunzipBounded(bomb, int64_t{16} << 20).ok());
}

TEST(CompressionBomb, InsideAnotherOneIsNoGraph) {
  const std::string twice = Gzipped(Gzipped(kFile));
  EXPECT_EQ(ReadCapturedGraph(twice).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bucketd
