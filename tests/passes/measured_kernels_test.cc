// Measured kernels: what tells one from another, and how rows of a profile enter a graph's costs.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/cost/costs.h"
#include "passes/cost/measured_kernel.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"
#include "passes/ir/graph_builder.h"
#include "proto/costs.pb.h"
#include "tests/passes/test_data.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Signature(char digit) { return std::string(32, digit); }

CostProfile WithRows(std::vector<MeasuredKernel> rows) {
  CostProfile profile = BuiltInProfiles()[0];
  profile.kernels = std::move(rows);
  return profile;
}

TEST(MeasuredKernels, StandInTheFingerprintOnlyWhereThereAreAny) {
  EXPECT_THAT(WithRows({}).Fingerprint(), Not(HasSubstr("kernels")));
  const CostProfile profile = WithRows({{Signature('a'), "aten.mm.default", 3.0, 2}});
  EXPECT_NE(profile.Fingerprint(), WithRows({}).Fingerprint());
  EXPECT_NE(profile.Fingerprint(), WithRows({{Signature('b'), "", 3.0, 0}}).Fingerprint());
  EXPECT_NE(profile.Fingerprint(),
            WithRows({{Signature('a'), "", std::nextafter(3.0, 4.0), 0}}).Fingerprint());
  EXPECT_EQ(profile.Fingerprint(), WithRows({{Signature('a'), "other", 3.0, 9}}).Fingerprint());
}

TEST(MeasuredKernels, SurviveJsonAndTheWire) {
  const CostProfile profile =
      WithRows({{Signature('0'), "aten.mm.default", 1.0 / 3.0, 2}, {Signature('f'), "", 0.0, 0}});
  const absl::StatusOr<CostProfile> read = ProfileFromJson(ProfileToJson(profile), "x");
  ASSERT_TRUE(read.ok()) << read.status();
  v1::CostProfile message;
  ProfileToProto(profile, message);
  const absl::StatusOr<CostProfile> wired = ProfileFromProto(message);
  ASSERT_TRUE(wired.ok()) << wired.status();
  for (const CostProfile* got : {&*read, &*wired}) {
    EXPECT_EQ(got->Fingerprint(), profile.Fingerprint());
    EXPECT_EQ(got->kernels[0].op, "aten.mm.default");
    EXPECT_EQ(got->kernels[0].samples, 2);
  }
  EXPECT_THAT(ProfileToJson(WithRows({})), Not(HasSubstr("\"kernels\"")));
}

TEST(MeasuredKernels, AreRefusedWithTheirRowWhereTheyMakeNoSense) {
  const MeasuredKernel good = {Signature('a'), "aten.mm.default", 3.0, 2};
  const auto error = [&](void (*change)(MeasuredKernel&)) {
    MeasuredKernel row = good;
    change(row);
    const CostProfile profile = WithRows({row});
    v1::CostProfile message;
    ProfileToProto(profile, message);
    EXPECT_FALSE(ProfileFromProto(message).ok());
    return std::string(profile.Validate().message());
  };
  EXPECT_THAT(error([](MeasuredKernel& k) { k.signature = "a"; }), HasSubstr("row 0: signature"));
  EXPECT_THAT(error([](MeasuredKernel& k) { k.signature[3] = 'A'; }), HasSubstr("signature"));
  EXPECT_THAT(error([](MeasuredKernel& k) { k.us = -1.0; }), HasSubstr("us is -1"));
  EXPECT_THAT(error([](MeasuredKernel& k) { k.us = std::nan(""); }), HasSubstr("us is nan"));
  EXPECT_THAT(error([](MeasuredKernel& k) { k.us = 1.1e8; }), HasSubstr("us is 1.1e+08"));
  EXPECT_THAT(error([](MeasuredKernel& k) { k.op = std::string(257, 'x'); }), HasSubstr("op"));
  EXPECT_THAT(error([](MeasuredKernel& k) { k.op = "a\nb"; }), HasSubstr("op"));
  EXPECT_THAT(WithRows({good, good}).Validate().message(), HasSubstr("row 1: expected ascending"));
  std::string text = ProfileToJson(WithRows({good}));
  text.replace(text.find("\"us\": 3.0"), 9, "\"us\": \"3\"");
  EXPECT_THAT(ProfileFromJson(text, "x").status().message(), HasSubstr("kernels[0].us"));
  v1::CostProfile message;
  ProfileToProto(CostProfile(), message);
  for (size_t i = 0; i <= kMaxMeasuredKernels; ++i) message.add_kernels();
  EXPECT_THAT(ProfileFromProto(message).status().message(), HasSubstr("at most 4096"));
}

TEST(MeasuredKernels, TakeThePlaceOfTheModelForTheirKindAloneWithoutItsScale) {
  const CapturedGraph captured = bucketd::testing::ReadTestGraph("llama3_debug_fsdp8.bw");
  const Graph& graph = captured.graph;
  CostProfile profile = *FindProfile("small_batch");  // its compute_scale is 0.15
  const Costs before = *Costs::FromDeviceModel(graph, captured.mesh, profile);
  KernelSignatures signatures(graph);
  std::map<std::string, int> kinds;
  for (NodeId n = 0; n < graph.size(); ++n) ++kinds[signatures.Of(n)];
  std::string chosen;
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (graph.op(n) != "aten.mm.default") continue;
    const std::string kind = signatures.Of(n);
    if (chosen.empty() || kinds[kind] > kinds[chosen]) chosen = kind;
  }
  // Blocks are alike: a kind has several kernels, and by far not all are of one kind.
  ASSERT_GT(kinds[chosen], 1);
  ASSERT_GT(kinds.size(), 20U);
  profile.kernels = {{chosen, "", 123.5, 1}};
  const Costs after = *Costs::FromDeviceModel(graph, captured.mesh, profile);
  StatedCosts stated = captured.costs;
  UseMeasuredKernels(graph, profile, stated);
  const Costs from_file = *Costs::FromFile(graph, stated, profile);
  int measured = 0;
  for (NodeId n = 0; n < graph.size(); ++n) {
    const bool is = signatures.Of(n) == chosen;
    measured += is ? 1 : 0;
    EXPECT_EQ(after.node_ps(n), is ? 123'500'000 : before.node_ps(n));
    if (is) {
      EXPECT_EQ(from_file.node_ps(n), 123'500'000);
    }
  }
  EXPECT_EQ(measured, kinds[chosen]);
  // The same kernels in another graph of the model are the same kind.
  const CapturedGraph joint = bucketd::testing::ReadTestGraph("llama3_debug_fsdp8.joint");
  KernelSignatures in_other(joint.graph);
  int in_joint = 0;
  for (NodeId n = 0; n < joint.graph.size(); ++n) {
    in_joint += in_other.Of(n) == chosen ? 1 : 0;
  }
  EXPECT_GE(in_joint, measured);
}

// x -> first (no bytes) -> view -> add (96 bytes), as Inductor fuses them.
std::string FusedSignature(const std::string& first, const std::string& name, int64_t first_bytes,
                           int64_t bytes, int64_t width = 4) {
  GraphBuilder builder(name);
  const int64_t flat[] = {2 * width}, square[] = {2, width};
  const NodeSpec::Tensor was[] = {{DType::kF32, flat}}, is[] = {{DType::kF32, square}};
  const auto add = [&](NodeKind kind, const std::string& op, std::vector<NodeId> inputs,
                       absl::Span<const NodeSpec::Tensor> outputs, int64_t moved, uint8_t flags) {
    NodeSpec spec;
    spec.kind = kind;
    spec.op = op;
    const std::string own = name + op;
    spec.name = own;
    spec.module = name;
    spec.inputs = inputs;
    spec.outputs = outputs;
    spec.memory_bytes = moved;
    spec.flags = flags;
    spec.role = kind == NodeKind::kPlaceholder ? Role::kInput : Role::kNone;
    return *builder.Add(spec);
  };
  const NodeId x = add(NodeKind::kPlaceholder, "placeholder", {}, was, 0, 0);
  const NodeId one = add(NodeKind::kCall, first, {x}, was, first_bytes, kPointwiseFlag);
  const NodeId view = add(NodeKind::kCall, "aten.view.default", {one}, is, 0, kViewFlag);
  const NodeId sum = add(NodeKind::kCall, "aten.add.Tensor", {view}, is, bytes, kPointwiseFlag);
  return KernelSignatures(builder.graph()).Of(sum);
}

TEST(KernelSignature, IsOfAllThatAFusedKernelComputesAndOfNothingElse) {
  const std::string of = FusedSignature("aten.exp.default", "a", 0, 96);
  EXPECT_EQ(of.size(), 32U);
  EXPECT_EQ(FusedSignature("aten.exp.default", "b", 0, 96), of);
  EXPECT_NE(FusedSignature("aten.sin.default", "a", 0, 96), of);
  EXPECT_NE(FusedSignature("aten.exp.default", "a", 64, 96), of);
  EXPECT_NE(FusedSignature("aten.exp.default", "a", 0, 92), of);
  EXPECT_NE(FusedSignature("aten.exp.default", "a", 0, 96, 8), of);
  // What runs by itself is no part of the kernel that reads it.
  EXPECT_EQ(FusedSignature("aten.sin.default", "a", 64, 96),
            FusedSignature("aten.exp.default", "a", 64, 96));
  EXPECT_EQ(FusedSignature("aten.exp.default", "a", 0, 0), "");
}

TEST(KernelSignature, ManyKernelsThatReadOneHugeTupleAreNotAllWrittenDown) {
  constexpr int kPieces = 20'000, kKernels = 200'000;  // 56 GB of text
  GraphBuilder builder("hostile");
  const int64_t one[] = {1};
  const std::vector<NodeSpec::Tensor> pieces(kPieces, {DType::kF32, one});
  NodeSpec tuple;
  tuple.kind = NodeKind::kCall;
  tuple.op = "my.tuple.default";
  tuple.outputs = pieces;
  const NodeId source = *builder.Add(tuple);
  const NodeId inputs[] = {source};
  NodeSpec kernel;
  kernel.kind = NodeKind::kCall;
  kernel.op = "my.kernel.default";
  kernel.inputs = inputs;
  kernel.flops = 1;
  for (int i = 0; i < kKernels; ++i) ASSERT_TRUE(builder.Add(kernel).ok());
  KernelSignatures signatures(builder.graph());
  EXPECT_NE(signatures.Of(source + 1), "");
  int with = 1;
  for (NodeId n = source + 2; n <= source + kKernels; ++n) with += signatures.Of(n) != "" ? 1 : 0;
  EXPECT_LT(with, 600);
}

}  // namespace
}  // namespace bucketd
