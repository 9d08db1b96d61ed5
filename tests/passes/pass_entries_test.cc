#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/pass/entries.h"
#include "passes/pass/options.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(absl::string_view text) {
  const auto entries = ParseEntries(text);
  EXPECT_TRUE(entries.ok()) << entries.status();
  std::vector<std::string> names;
  if (!entries.ok()) return names;
  for (const Entry& entry : *entries) {
    std::string all;
    for (const std::string& path : entry.paths) all += all.empty() ? path : "|" + path;
    names.push_back(all);
  }
  return names;
}

std::string Error(absl::string_view text) {
  const auto entries = ParseEntries(text);
  EXPECT_EQ(entries.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(entries.status().message());
}

TEST(Entries, T4_16_RangesAndPlusExpand) {
  EXPECT_THAT(Names("tok_embeddings,layers.[0-2],norm+output"),
              ElementsAre("tok_embeddings", "layers.0", "layers.1", "layers.2", "norm|output"));
  EXPECT_THAT(Names("a[8-10].b, c"), ElementsAre("a8.b", "a9.b", "a10.b", "c"));
  EXPECT_THAT(Names("l.[0-1].e.[2-3]"), ElementsAre("l.0.e.2", "l.0.e.3", "l.1.e.2", "l.1.e.3"));
}

TEST(Entries, T4_16_WhatIsAmbiguousOrMalformedIsRefusedByName) {
  EXPECT_THAT(Error("a,layers.[0-2]+norm"), HasSubstr("\"layers.[0-2]+norm\""));
  EXPECT_THAT(Error("layers.*+norm"), HasSubstr("ambiguous"));
  EXPECT_THAT(Error("layers.[3-1]"), HasSubstr("reversed"));
  EXPECT_THAT(Error("layers..x"), HasSubstr("empty component"));
  EXPECT_THAT(Error("a+"), HasSubstr("empty component"));
  EXPECT_THAT(Error("a,,b"), HasSubstr("empty"));
  EXPECT_THAT(Error(""), HasSubstr("empty"));
  EXPECT_THAT(Error("layers.[0-"), HasSubstr("without ']'"));
  EXPECT_THAT(Error("layers.[x-2]"), HasSubstr("two decimal numbers"));
  EXPECT_THAT(Error("layers.[0-1][0-1]"), HasSubstr("'['"));
  EXPECT_THAT(Error("lay*rs.0"), HasSubstr("'*'"));
  EXPECT_THAT(Error("layers.0:2"), HasSubstr("':'"));
  EXPECT_THAT(Error("caf\xc3\xa9"), HasSubstr(R"('\xc3')")) << "no part of a character as it is";
  EXPECT_THAT(Error("layers.0+a\x1b"), HasSubstr("\"layers.0+a\\x1b\": has a control character"));
  EXPECT_THAT(Names("layers.0 +\n\tnorm"), ElementsAre("layers.0|norm"));
}

TEST(Entries, A6_ARegularExpressionIsToldThatPatternsAreGlobs) {
  for (const char* text :
       {"layers\\..*", "layers.(0|1)", "^layers", "norm$", "layers.\\d+", "layers.\\d{2}"}) {
    EXPECT_THAT(Error(text), HasSubstr("globs, not regular expressions"));
  }
}

TEST(Entries, T4_6_WhatIsNamedTwiceIsRefused) {
  EXPECT_THAT(Error("layers.1,layers.[0-2]"), HasSubstr("named twice"));
  EXPECT_THAT(Error("a+a"), HasSubstr("named twice"));
}

TEST(Entries, A5_ARegionIsOneEntryWhateverItsPatternsExpandTo) {
  EXPECT_THAT(Names("middle: layers.[1-2]+norm ,layers.0"),
              ElementsAre("layers.1|layers.2|norm", "layers.0"));
  auto entries = ParseEntries("attention:layers.*.attention+rope,tail:norm");
  ASSERT_TRUE(entries.ok()) << entries.status();
  const std::vector<absl::string_view> labels = {"layers.1.attention.wq", "layers.0.attention.wq",
                                                 "layers.1.attention.wk", "rope.weight"};
  entries = ExpandWildcards(*std::move(entries), labels);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "attention");
  EXPECT_THAT((*entries)[0].paths, ElementsAre("layers.1.attention", "layers.0.attention", "rope"));
  EXPECT_EQ((*entries)[1].name, "tail");
}

TEST(Entries, A5_ARegionsNameIsAWordAndComesOnce) {
  EXPECT_THAT(Error("layers.0:a"), HasSubstr("no name of a region"));
  EXPECT_THAT(Error(":a"), HasSubstr("no name of a region"));
  EXPECT_THAT(Error("2:a"), HasSubstr("no name of a region"));
  EXPECT_THAT(Error("one:a:b"), HasSubstr("':'"));
  EXPECT_THAT(Error("one:"), HasSubstr("empty component"));
  EXPECT_THAT(Error("one:a,one:b"), HasSubstr("two regions"));
  EXPECT_THAT(Error("one:a.[0-40000],two:b.[0-40000]"), HasSubstr("expands beyond"));
}

TEST(Entries, AHugeExpansionIsRefusedBeforeItIsMade) {
  EXPECT_THAT(Error("layers.[0-999999999]"), HasSubstr("expands beyond"));
  EXPECT_THAT(Error("a.[0-60000].[0-60000]"), HasSubstr("expands beyond"));
}

TEST(Entries, WhatAListTakesGoesByItsOwnLength) {
  const auto repeated = [](absl::string_view text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) absl::StrAppend(&all, text);
    return all;
  };
  // A kilobyte each, 64 MiB in all; copied component by component, it was minutes.
  EXPECT_THAT(Error("[0-65535]" + repeated(".abcd", 200)),
              HasSubstr("expands beyond 16777216 bytes"));
  EXPECT_THAT(Error("[0-60000]" + repeated(".[1-1].a", 40)), HasSubstr("16777216 bytes"));
  EXPECT_THAT(Error("a" + repeated(".a", 256)), HasSubstr("more than 256 components"));
  EXPECT_LT(Error("a" + repeated(".a", 256)).size(), 300u);  // names the entry's beginning
  EXPECT_EQ(Names("a[0-9]" + repeated(".a", 255)).size(), 10u);
  EXPECT_THAT(Names("l[3-3].[0-1]x.[2-2].[4-5]"),
              ElementsAre("l3.0x.2.4", "l3.0x.2.5", "l3.1x.2.4", "l3.1x.2.5"));
}

TEST(Entries, ADistanceIsReadOnlyWhereItIsAllowed) {
  const auto entries = ParseEntries("layers.[1-2]:3,head", true);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].name, "layers.1");
  EXPECT_EQ((*entries)[1].distance, 3);
  EXPECT_EQ((*entries)[2].distance, -1);
  EXPECT_FALSE(ParseEntries("layers.1:x", true).ok());
}

TEST(Entries, AStarIsOneComponentInOrderOfFirstUse) {
  auto entries = ParseEntries("*.attention,stem");
  ASSERT_TRUE(entries.ok());
  const std::vector<absl::string_view> labels = {"b.attention.wq", "stem.weight", "a.attention.wq",
                                                 "b.attention.wk", "a.mlp.w1",    "c.attentions.x"};
  entries = ExpandWildcards(*std::move(entries), labels);
  ASSERT_TRUE(entries.ok()) << entries.status();
  std::vector<std::string> names;
  for (const Entry& entry : *entries) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("b.attention", "a.attention", "stem"));
}

TEST(Entries, AStarThatMeetsANamedEntryIsRefused) {
  auto entries = ParseEntries("layers.0,layers.*");
  ASSERT_TRUE(entries.ok());
  const std::vector<absl::string_view> labels = {"layers.0.w"};
  EXPECT_THAT(std::string(ExpandWildcards(*std::move(entries), labels).status().message()),
              HasSubstr("named twice"));
}

TEST(Entries, T4_4_HoldsGoesByComponents) {
  EXPECT_TRUE(Holds("layers.1", "layers.1.wq"));
  EXPECT_TRUE(Holds("layers.1", "layers.1"));
  EXPECT_FALSE(Holds("layers.1", "layers.10.wq"));
  EXPECT_FALSE(Holds("layers.1.wq", "layers.1"));
}

TEST(Options, UnknownNamesListTheKnownOnes) {
  PlanOptions options;
  EXPECT_TRUE(options.Validate().ok());
  options.mode = "fastest";
  EXPECT_THAT(std::string(options.Validate().message()),
              HasSubstr("known: transformer_block, manual, "));
  options = {};
  options.backend = "mpi";
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("gloo, nccl"));
  options = {};
  options.numerics = static_cast<Numerics>(9);
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("eager_order, exact, free"));
}

TEST(Options, WhatCannotBeIsRefused) {
  const auto refused = [](auto change) {
    PlanOptions options;
    change(options);
    return options.Validate().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](PlanOptions& o) { o.prefetch_forward = -1; }));
  EXPECT_TRUE(refused([](PlanOptions& o) { o.prefetch_backward = -1; }));
  EXPECT_TRUE(refused([](PlanOptions& o) { o.defer_reduce_scatter = -1; }));
  EXPECT_TRUE(refused([](PlanOptions& o) { o.memory_limit_ppm = 0; }));
  EXPECT_TRUE(refused([](PlanOptions& o) { o.memory_limit_bytes = -1; }));
  EXPECT_TRUE(refused([](PlanOptions& o) { o.mode = "manual"; }));
  EXPECT_TRUE(refused([](PlanOptions& o) { o.buckets = "layers.0"; }));
  EXPECT_TRUE(refused([](PlanOptions& o) { o.reorder = "some:where"; }));
  EXPECT_FALSE(refused([](PlanOptions& o) { o.reorder = "layers.[0-3]:2,head"; }));
}

}  // namespace
}  // namespace bucketd
