// What is wrong with a text is told with its line and column.
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/text/bir.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kText[] = R"(graph @g mesh(dp=4, tp=2) {
  %x = input : bf16[16,4]
  %a = param(a) : bf16[4,4]
  %g = all_gather(%a) tag=fsdp_all_gather param=a
  %w = wait(%g)
  %s = reduce_scatter(%x) group=tp
  %ws = wait(%s)
  %y = mm(%x, %w) flops=7 : bf16[16,4]
  return %y, saved %ws
}
plan {
  order {
    %g %w %s %ws %y
  }
}
)";

struct Bad {
  const char* what;
  const char* from;  // in kText
  const char* to;
  const char* says;
};

class BadBir : public ::testing::TestWithParam<Bad> {};

TEST_P(BadBir, IsRefusedWithLineAndColumn) {
  const Bad& bad = GetParam();
  ASSERT_TRUE(ParseBir(kText).ok()) << ParseBir(kText).status();
  std::string text = kText;
  const size_t at = text.find(bad.from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, std::string(bad.from).size(), bad.to);
  const auto parsed = ParseBir(text);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), StartsWith(bad.says)) << text;
}

const Bad kBad[] = {
    {"NoGraph", "graph", "grph", "1:1: expected graph, is \"grph\""},
    {"UnknownHeaderWord", "@g", "@g sideways", "1:10: expected forward, backward, costs"},
    {"NoRanks", "dp=4", "dp=0", "1:15: group 0 (dp): size 0 is not in 1.."},
    {"ManyRanks", "dp=4", "dp=99999999999", "1:18: 99999999999 is too large"},
    {"GroupTwice", "tp=2", "dp=4", "1:21: group 1 (dp): lane 0 of this mesh dimension stands here"},
    {"LanesOfTwoSizes", "tp=2", "dp#1=2", "1:21: group 1 (dp): size 2, but another lane"},
    {"OddMeshAttribute", "tp=2", "tp=2 speed=3", "1:26: expected alpha=, busbw=, per_node="},
    {"NodeOnTheHeaderLine", "{\n", "{ ", "1:31: expected the end of the line, is \"%\""},
    {"NoName", "%x = input", "x = input", "2:3: expected %name =, return or \"}\", is \"x\""},
    {"NameTwice", "%a = param", "%x = param", "3:3: %x is node 0 already"},
    {"WrongPosition", "%a = param", "%7 = param", "3:3: this is node %1, but it calls itself %7"},
    {"NoEquals", "%x = input", "%x input", "2:6: expected \"=\", is \"input\""},
    {"NoOp", "mm(%x", "(%x", "8:8: expected an op, is \"(\""},
    {"NoType", " : bf16[16,4]\n  %a", "\n  %a", "2:3: expected the types of what this node makes"},
    {"UnknownDType", "bf16[16,4]\n  %a", "bf17[16,4]\n  %a", "2:16: expected a dtype (bf16, f32"},
    {"SymbolicSize", "bf16[16,4]\n  %a", "bf16[s0,4]\n  %a",
     "2:21: expected a size (a whole number; sizes may not be symbolic), is \"s0\""},
    {"NegativeSize", "bf16[16,4]\n  %a", "bf16[-16,4]\n  %a", "2:21: expected a size"},
    {"HugeSize", "bf16[16,4]\n  %a", "bf16[99999999999999999999]\n  %a", "2:21: 9999"},
    {"TensorTooLarge", "bf16[16,4]\n  %a", "bf16[1099511627776,4096]\n  %a",
     "2:3: node %0 (x) placeholder: shape [1099511627776, 4096] of bf16 is larger than"},
    {"DanglingName", "mm(%x, %w)", "mm(%x, %u)",
     "8:15: expected an earlier node, but none is called %u"},
    {"Cycle", "mm(%x, %w)", "mm(%x, %y)", "8:15: expected an earlier node, but none is called %y"},
    {"LaterPosition", "mm(%x, %w)", "mm(%x, %8)",
     "8:15: expected an earlier node, but there are 6 up to here and %8 is none of them"},
    {"InputTwice", "mm(%x, %w)", "mm(%x, %0)", "8:3: node %6 (y) aten.mm.default: input %0 stands"},
    {"Unclosed", "mm(%x, %w)", "mm(%x, %w", "8:18: expected \",\", is \"flops\""},
    {"UnknownAttribute", "flops=7", "flips=7", "8:19: expected an attribute (view, compute"},
    {"AttributeTwice", "flops=7", "flops=7 flops=7", "8:27: flops stands here twice"},
    {"FlopsNoNumber", "flops=7", "flops=x", "8:25: expected a whole number, is \"x\""},
    {"AttributeOfCollectives", "flops=7", "group=dp", "8:19: group belongs to a collective's line"},
    {"UnknownGroup", "group=tp", "group=pp", "6:33: no group pp#0: expected one of the graph's"},
    {"UnknownReduceOp", "group=tp", "reduce=mean", "6:34: expected sum, avg, min"},
    {"UnknownTag", "tag=fsdp_all_gather", "tag=fsdp", "4:27: expected fsdp_all_gather, fsdp_"},
    {"ParameterWithoutTag", " tag=fsdp_all_gather", "",
     "4:3: node %2 (g) _c10d_functional.all_gather_into_tensor.default: a tagged parameter"},
    {"ScatterThatDoesNotDivide", "group=tp", "group=dp : bf16[5,4]",
     "6:3: node %4 (s) _c10d_functional.reduce_scatter_tensor.default: reduce_scatter over 4"},
    {"TwoWaits", "wait(%s)", "wait(%g)",
     "7:3: node %5 (ws) _c10d_functional.wait_tensor.default: waits for %2 (g), but %3 (w) does"},
    {"WaitForNoCollective", "wait(%s)", "wait(%x)", "7:3: node %5 (ws)"},
    {"UnknownSlot", "saved %ws", "kept %ws", "9:14: expected %node, or grad, saved"},
    {"NodeAfterTheReturn", "return %y, saved %ws\n", "return %y\n  %late = relu(%y)\n",
     "10:3: node %8 (late) aten.relu.default: stands after the output"},
    {"NoReturn", "  return %y, saved %ws\n", "",
     "9:2: node %6 (y): expected the output as the last"},
    {"ControlCharacterInAName", "%x = input", "%\"x\x1b\" = input", "2:3: node %0 (x\\x1b)"},
    {"UnclosedQuote", "%x = input", "%\"x = input", "2:4: name: expected a closing \""},
    {"OddEscape", "%x = input", "%\"\\x\" = input", "2:6: after \\ expected \" or \\"},
    {"CostWithoutUnit", "flops=7", "cost=7", "8:24: a time: expected a number with one of s, ms"},
    {"CostOfSomeCollectives", "flops=7", "cost=7us",
     "4:3: this graph states costs, so expected cost=, or alpha= and busbw="},
    {"CostBelowAlpha", "param=a", "param=a cost=1us alpha=2us",
     "4:3: cost=1us is less than its alpha, 2us"},
    {"CostAndBandwidth", "param=a", "param=a cost=1us busbw=2GB/s",
     "4:3: expected cost= or busbw=, not both"},
    {"HiddenByNobody", "param=a", "param=a hidden_by(%nobody)", "4:61: expected an earlier node"},
    {"PlanOfAnotherNode", "%ws %y", "%ws %yy", "13:18: expected an earlier node"},
    {"PlanWithoutOrder", "order {\n    %g %w %s %ws %y\n  }", "",
     "13:1: expected an order before this"},
    {"PlanWithAnUnknownBucket", "%ws %y", "%ws start:b0", "13:24: this plan has no buckets"},
    {"PlanWithABucketOfOthers", "  order", "  bucket b0 = {%g, %x}\n  order",
     "12:20: %0 (x) is a placeholder, expected a collective"},
    {"PlanWithABucketOfAnotherKind", "  order", "  bucket b0 = all_reduce {%g}\n  order",
     "12:15: expected all_gather, the kind of %2 (g)"},
    {"PlanWithBucketsOutOfTurn", "  order", "  bucket b1 = {%g}\n  order",
     "12:10: expected a bucket, b0 to b0"},
    {"TextBehindTheEnd", "  }\n}\n", "  }\n}\nmore", "16:1: expected the end of the text"},
};

INSTANTIATE_TEST_SUITE_P(Table, BadBir, ::testing::ValuesIn(kBad),
                         [](const auto& bad) { return bad.param.what; });

TEST(BadBirs, AreRefusedWhereverTheyAreCutOff) {
  const std::string text = kText;
  const size_t graph_end = text.find("}\nplan") + 1;
  for (size_t length = 0; length + 2 < text.size(); ++length) {
    const auto parsed = ParseBir(text.substr(0, length));
    const bool whole = length == graph_end || length == graph_end + 1;
    EXPECT_EQ(parsed.ok(), whole) << length << ": " << parsed.status();
  }
}

TEST(BadBirs, AreRefusedOrReadWhateverByteIsAnother) {
  const std::string text = kText;
  int refused = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char c : {'\0', '"', '%', '(', '}', '\n', '9', '\xff', '='}) {
      std::string changed = text;
      changed[at] = c;
      const auto parsed = ParseBir(changed);
      if (parsed.ok()) continue;
      ++refused;
      EXPECT_THAT(std::string(parsed.status().message()),
                  ::testing::MatchesRegex("[0-9]+:[0-9]+: (.|\n)*"));
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(BadBirs, AreBoundedInLengthOfTextAndLineAndInNodes) {
  const auto says = [](const BirLimits& limits) {
    return std::string(ParseBir(kText, limits).status().message());
  };
  BirLimits limits;
  limits.max_bytes = 100;
  EXPECT_THAT(says(limits), HasSubstr("bytes; the limit is 100"));
  limits = BirLimits();
  limits.max_line_bytes = 40;
  EXPECT_THAT(says(limits), StartsWith("4:1: this line has 49 bytes; the limit is 40"));
  limits = BirLimits();
  limits.graph.max_nodes = 3;
  EXPECT_THAT(says(limits), StartsWith("5:3: node %3 (w)"));
  limits = BirLimits();
  limits.graph.max_string_length = 10;
  EXPECT_THAT(says(limits), HasSubstr("bytes; the limit is 10"));
}

// 2^50 times 2^24 is 0 in an int64.
TEST(BadBirTest, AGatherWhoseSizeLeavesAnInt64IsRefused) {
  const auto parsed = ParseBir(
      "graph @g mesh(dp=16777216) {\n"
      "  %x = input : bool[1125899906842624]\n"
      "  %g = all_gather(%x) : bool[0]\n"
      "  %w = wait(%g)\n"
      "  return %w\n}\n");
  EXPECT_THAT(std::string(parsed.status().message()),
              HasSubstr("all_gather over 16777216 ranks makes bool[0]"));
}

// Read, printed and read again, in seconds of this process's processor.
double Took(const std::string& text) {
  const std::clock_t begin = std::clock();
  const auto parsed = ParseBir(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return 0.0;
  BirParts parts;
  parts.mesh = &parsed->mesh;
  const std::string printed = PrintBir(parsed->graph, parts);
  EXPECT_EQ(PrintBir(ParseBir(printed)->graph, parts), printed);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// Half a second each; half a minute where each piece or group looks at all.
TEST(BadBirTest, TakesTimeByTheNumberOfPiecesAndGroups) {
  constexpr int kMany = 60'000;
  std::string types, pieces, groups;
  for (int i = 0; i < kMany; ++i) {
    absl::StrAppend(&types, i == 0 ? "" : ",\n", "u8[1]");
    absl::StrAppend(&pieces, "%p", i, " = getitem(%t) index=", i, "\n");
    absl::StrAppend(&groups, i == 0 ? "" : ",\n", "dp", i, "=2 per_node=2");
  }
  EXPECT_LT(Took(absl::StrCat("graph @g {\n%x = input : u8[1]\n%t = my.split.default(%x) : ", types,
                              "\n", pieces, "return %p0\n}\n")),
            10.0);
  EXPECT_LT(Took(absl::StrCat("graph @g mesh(", groups, ") {\n%x = input : u8[1]\nreturn %x\n}\n")),
            10.0);
}

}  // namespace
}  // namespace bucketd
