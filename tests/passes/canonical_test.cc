#include "passes/ir/canonical.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

#include "passes/ir/ops.h"
#include "tests/passes/graph_fixtures.h"

namespace bucketd {
namespace {

using testing::GraphWriter;

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

TEST(CanonicalEncoding, IsWhatGraphMdSaysByteByByte) {
  GraphWriter w(4);
  const NodeId param = w.Placeholder({2}, "w", DType::kF32);
  const NodeId gather = w.Collective(CollectiveKind::kAllGather, param, {8}, DType::kF32);
  const NodeId wait = w.Wait(gather, {8}, DType::kF32);
  const Graph graph = w.Finish({wait, kNoNode});
  const std::string expected =
      Hex("BKTG") + "01" +                  // magic, version
      "01" + "0002" + Hex("dp") +           // one group: string 0
      "00" + "04" +                         // lane, size
      "04" +                                // four nodes
      "01" + "000b" + Hex("placeholder") +  // string 1
      "00" + "01" + "09" + "01" + "02" +    // no inputs, one f32[2]
      "0000" + "000000" + "00" +            // no alias, no mutation, flags, flops, bytes, direction
      "0000" +                              // module "": string 2
      "01" + "0001" + Hex("w") +            // role, string 3
      "05" + "0023" + Hex("_c10d_functional.collective.default") +  // string 4
      "01" + "01" + "01" + "09" + "01" + "08" + "0000" + "000000" + "00" +
      "03" +                              // module: string 2 again
      "01" + "00" + "00" + "00" + "03" +  // all-gather, group 0, no op, no tag, no parameter
      "06" + "0024" + Hex("_c10d_functional.wait_tensor.default") + "01" + "01" + "01" + "09" +
      "01" + "08" + "01" + "01" + "00" + "000000" + "00" + "03" + "07" + "0006" + Hex("output") +
      "01" + "01" + "00" + "0000" + "000000" + "00" + "03" + "02" + "03" + "01" + "03" + "00" +
      "00" + "03";  // two slots: node 2, output; empty
  EXPECT_EQ(Hex(CanonicalEncoding(graph)), expected);
  EXPECT_EQ(GraphDigest(graph), Sha256(CanonicalEncoding(graph)));
}

TEST(CanonicalEncoding, WritesLargeNumbersAsShortestLeb128) {
  GraphWriter w;
  const NodeId x = w.Placeholder({300, 128, 127}, "", DType::kU8);
  const std::string bytes = Hex(CanonicalEncoding(w.Finish({x})));
  EXPECT_NE(bytes.find("010203ac0280017f"), std::string::npos) << bytes;
}

TEST(CanonicalEncoding, NumbersAStringThatIsAGroupAndAParameterOnce) {
  GraphWriter w;
  const NodeId x = w.Placeholder({1}, "dp", DType::kU8);
  const std::string bytes = CanonicalEncoding(w.Finish({x}));
  EXPECT_EQ(bytes.find("dp"), bytes.rfind("dp"));
}

TEST(Ops, OrderedOnesAreKnownByTheirBaseName) {
  EXPECT_EQ(BaseName("aten.mm.default"), "mm");
  EXPECT_EQ(BaseName("run_with_rng_state"), "run_with_rng_state");
  EXPECT_EQ(BaseName("a.b"), "b");
  EXPECT_TRUE(IsOrderedOp("aten.native_dropout.default"));
  EXPECT_TRUE(IsOrderedOp("run_and_save_rng_state"));
  EXPECT_TRUE(IsOrderedOp("aten._local_scalar_dense.default"));
  EXPECT_FALSE(IsOrderedOp("aten.native_dropout_backward.default"));
  EXPECT_FALSE(IsOrderedOp("aten.expand.default"));
  EXPECT_FALSE(IsOrderedOp("rand.mm.default"));
}

TEST(Ops, TellTheirKindOfWork) {
  EXPECT_TRUE(IsComputeOp("aten.mm.default"));
  EXPECT_FALSE(IsComputeOp("aten.mul.Tensor"));
  EXPECT_TRUE(IsPointwiseOp("aten.mul.Tensor"));
  EXPECT_TRUE(IsPointwiseOp("aten.mul_.Tensor"));
  EXPECT_FALSE(IsPointwiseOp("aten.sum.dim_IntList"));
  EXPECT_EQ(TrafficOf("aten.embedding.default"), Traffic::kGather);
  EXPECT_EQ(TrafficOf("aten.embedding_dense_backward.default"), Traffic::kAll);
  EXPECT_EQ(TrafficOf("aten.new_zeros.default"), Traffic::kOutputs);
  EXPECT_EQ(TrafficOf("aten.empty_like.default"), Traffic::kNone);
  EXPECT_EQ(TrafficOf("aten.new_empty_strided.default"), Traffic::kNone);
  EXPECT_EQ(TrafficOf("aten.detach.default"), Traffic::kNone);
}

}  // namespace
}  // namespace bucketd
