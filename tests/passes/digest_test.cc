#include "passes/base/digest.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/base/types.h"

namespace bucketd {
namespace {

TEST(Digest, IsSha256) {
  // FIPS 180-2, appendix B.
  EXPECT_EQ(ToHex(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(ToHex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Digest, OfPiecesIsThatOfTheWhole) {
  Sha256Stream stream;
  stream.Append("a");
  stream.Append("");
  stream.Append("bc");
  EXPECT_EQ(stream.Finish(), Sha256("abc"));
}

TEST(Digest, ComesBackFromHexAndBytes) {
  const Digest digest = Sha256("abc");
  EXPECT_EQ(*DigestFromHex(ToHex(digest)), digest);
  EXPECT_EQ(*DigestFromHex("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"),
            digest);
  EXPECT_EQ(*DigestFromBytes(AsBytes(digest)), digest);
}

TEST(Digest, OfAnyOtherTextIsRefused) {
  EXPECT_FALSE(DigestFromHex("").ok());
  EXPECT_FALSE(DigestFromHex(std::string(63, 'a')).ok());
  EXPECT_FALSE(DigestFromHex(std::string(65, 'a')).ok());
  const auto bad = DigestFromHex(std::string(40, 'a') + "g" + std::string(23, 'a'));
  EXPECT_EQ(bad.status().message(), "digest: not a hexadecimal digit at position 40");
  EXPECT_FALSE(DigestFromBytes(std::string(31, 'a')).ok());
}

TEST(Names, AreKnownForEveryValueAndForNoOther) {
  EXPECT_EQ(Name(DType::kC128), "c128");
  EXPECT_EQ(Name(DType::kBF16), "bf16");
  EXPECT_EQ(Name(NodeKind::kOutput), "output");
  EXPECT_EQ(Name(CollectiveKind::kBroadcast), "broadcast");
  EXPECT_EQ(Name(ReduceOp::kBxor), "bxor");
  EXPECT_EQ(Name(Role::kSaved), "saved");
  EXPECT_EQ(Name(SlotKind::kSaved), "saved");
  EXPECT_EQ(Name(Tag::kHsdpAllReduce), "hsdp_all_reduce");
  EXPECT_EQ(Name(static_cast<DType>(18)), "?");
}

TEST(Names, AreFoundAgainBarWhatStandsForNone) {
  DType dtype = DType::kUnspecified;
  EXPECT_TRUE(FromName("bool", dtype));
  EXPECT_EQ(dtype, DType::kBool);
  EXPECT_TRUE(FromName("c128", dtype));
  EXPECT_EQ(dtype, DType::kC128);
  for (const char* none : {"unspecified", "?", "", "C128"}) EXPECT_FALSE(FromName(none, dtype));
  EXPECT_EQ(dtype, DType::kC128);
  EXPECT_THAT(NamesOf<Numerics>(), ::testing::ElementsAre("eager_order", "exact", "free"));
}

TEST(ItemSize, FollowsTheDType) {
  EXPECT_EQ(ItemSize(DType::kBool), 1);
  EXPECT_EQ(ItemSize(DType::kF8E5M2), 1);
  EXPECT_EQ(ItemSize(DType::kBF16), 2);
  EXPECT_EQ(ItemSize(DType::kU32), 4);
  EXPECT_EQ(ItemSize(DType::kC64), 8);
  EXPECT_EQ(ItemSize(DType::kC128), 16);
  EXPECT_EQ(ItemSize(DType::kUnspecified), 0);
}

}  // namespace
}  // namespace bucketd
