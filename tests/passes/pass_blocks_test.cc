#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/pass/units/blocks.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// In order of first use.
absl::StatusOr<std::vector<FoundUnit>> Find(const std::vector<std::string>& fqns) {
  std::vector<LabelUse> uses;
  for (size_t i = 0; i < fqns.size(); ++i) uses.push_back({fqns[i], static_cast<int64_t>(i), {}});
  return FindBlocks(uses);
}

std::vector<std::string> Names(const std::vector<std::string>& fqns) {
  const auto units = Find(fqns);
  EXPECT_TRUE(units.ok()) << units.status();
  std::vector<std::string> names;
  if (!units.ok()) return names;
  size_t uses = 0;
  for (const FoundUnit& unit : *units) {
    names.push_back(unit.name);
    uses += unit.uses.size();
  }
  EXPECT_EQ(uses, fqns.size()) << "every parameter is in exactly one unit";
  return names;
}

void AddBlock(std::vector<std::string>& fqns, const std::string& block,
              const std::vector<std::string>& parameters) {
  for (const std::string& parameter : parameters) {
    fqns.push_back(absl::StrCat(block, ".", parameter));
  }
}

TEST(Blocks, T4_20_Llama) {
  std::vector<std::string> fqns = {"tok_embeddings.weight"};
  for (int i = 0; i < 12; ++i) {
    AddBlock(fqns, absl::StrCat("layers.", i), {"attention.wq.weight", "feed_forward.w1.weight"});
  }
  fqns.insert(fqns.end(), {"norm.weight", "output.weight"});
  EXPECT_THAT(Names(fqns),
              ElementsAre("tok_embeddings", "layers.0", "layers.1", "layers.2", "layers.3",
                          "layers.4", "layers.5", "layers.6", "layers.7", "layers.8", "layers.9",
                          "layers.10", "layers.11", "norm+output"));
}

TEST(Blocks, T4_20_MixtureOfExpertsHasTwoClassesAndExpertsAreNoBlocks) {
  std::vector<std::string> fqns = {"tok_embeddings.weight"};
  AddBlock(fqns, "layers.0", {"attention.wq.weight", "feed_forward.w1.weight"});
  for (int i = 1; i < 4; ++i) {
    AddBlock(fqns, absl::StrCat("layers.", i),
             {"attention.wq.weight", "moe.router.weight", "moe.experts.0.w1.weight",
              "moe.experts.1.w1.weight"});
  }
  fqns.push_back("output.weight");
  EXPECT_THAT(Names(fqns), ElementsAre("tok_embeddings", "layers.0", "layers.1", "layers.2",
                                       "layers.3", "output"));
}

TEST(Blocks, T4_20_VisionTransformer) {
  std::vector<std::string> fqns = {"patch_embed.proj.weight", "cls_token", "pos_embed"};
  for (int i = 0; i < 2; ++i) {
    AddBlock(fqns, absl::StrCat("blocks.", i), {"attn.qkv.weight", "mlp.fc1.weight"});
  }
  fqns.insert(fqns.end(), {"norm.weight", "norm.bias", "head.weight"});
  EXPECT_THAT(Names(fqns), ElementsAre("patch_embed", "cls_token+pos_embed", "blocks.0", "blocks.1",
                                       "norm+head"));
}

TEST(Blocks, T4_20_EncoderAndDecoder) {
  std::vector<std::string> fqns = {"shared.weight"};
  for (int i = 0; i < 2; ++i) {
    AddBlock(fqns, absl::StrCat("encoder.block.", i), {"attn.q.weight", "mlp.wi.weight"});
  }
  fqns.push_back("encoder.final_norm.weight");
  for (int i = 0; i < 2; ++i) {
    AddBlock(fqns, absl::StrCat("decoder.block.", i),
             {"attn.q.weight", "cross.q.weight", "mlp.wi.weight"});
  }
  fqns.insert(fqns.end(), {"decoder.final_norm.weight", "lm_head.weight"});
  EXPECT_THAT(Names(fqns),
              ElementsAre("shared", "encoder.block.0", "encoder.block.1", "encoder.final_norm",
                          "decoder.block.0", "decoder.block.1", "decoder.final_norm+lm_head"));
}

TEST(Blocks, T4_20_AConvolutionalNetWithoutBlocksIsAnErrorThatOffersManual) {
  const auto units = Find({"conv1.weight", "bn1.weight", "conv2.weight", "fc.weight"});
  EXPECT_EQ(units.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(units.status().message()), HasSubstr("manual"));
}

TEST(Blocks, ASequenceOfUnlikeModulesIsNoRow) {
  const auto units = Find({"features.0.a", "features.1.b", "features.2.c", "fc.weight"});
  EXPECT_FALSE(units.ok());
}

TEST(Blocks, ALoneNumberedChildIsABlockIfThereIsNoOther) {
  const auto units = Find({"embed.weight", "layers.3.wq", "layers.3.wk", "norm.weight"});
  ASSERT_TRUE(units.ok()) << units.status();
  ASSERT_EQ(units->size(), 3u);
  EXPECT_EQ((*units)[1].name, "layers.3");
  EXPECT_TRUE((*units)[1].lone_block);
  EXPECT_FALSE((*units)[0].lone_block);
  const auto row = Find({"layers.0.w", "layers.1.w", "stages.0.w"});
  ASSERT_TRUE(row.ok()) << row.status();
  for (const FoundUnit& unit : *row) EXPECT_FALSE(unit.lone_block) << unit.name;
  EXPECT_EQ(row->back().name, "stages") << "beside a row it is a module like any other";
}

TEST(Blocks, TheOrderOfUseInsideABlockDoesNotTellBlocksApart) {
  const std::vector<std::string> fqns = {"layers.0.a", "layers.0.b", "layers.1.b",
                                         "layers.1.a", "layers.2.a", "layers.2.b"};
  EXPECT_THAT(Names(fqns), ElementsAre("layers.0", "layers.1", "layers.2"));
}

TEST(Blocks, LastUnitHoldsAllThatComesAfterTheBlocks) {
  std::vector<std::string> fqns = {"layers.0.w", "layers.1.w"};
  for (int i = 0; i < 20; ++i) fqns.push_back(absl::StrCat("tail", i, ".weight"));
  const auto units = Find(fqns);
  ASSERT_TRUE(units.ok());
  ASSERT_EQ(units->size(), 3u);
  EXPECT_EQ(units->back().uses.size(), 20u);
  EXPECT_EQ(units->back().name, "tail0+tail1+tail2+tail3+tail4+tail5+tail6+tail7+...");
}

}  // namespace
}  // namespace bucketd
