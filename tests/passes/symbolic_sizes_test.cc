// Sizes that change from step to step: what plans leave alone, and that no plan's legality rests on
// a hint.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/io/fx_json.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "tests/passes/generated_steps.h"
#include "tests/passes/ladder.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::HasSubstr;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(engine_() % static_cast<uint32_t>(bound));
  }

 private:
  std::mt19937 engine_;
};

// About one in `every` of the nodes with an output.
std::vector<bool> Drawn(const Graph& graph, uint32_t seed, int64_t every) {
  Random random(seed);
  std::vector<bool> drawn;
  for (NodeId n = 0; n < graph.size(); ++n) {
    drawn.push_back(!graph.outputs(n).empty() && random.Below(every) == 0);
  }
  return drawn;
}

class Copy {
 public:
  Copy(const Graph& graph, const std::vector<bool>& symbolic, uint32_t hints)
      : graph_(graph), symbolic_(symbolic), random_(hints), builder_(std::string(graph.name())) {}

  Graph Run() && {
    for (const Group& group : graph_.groups()) EXPECT_TRUE(builder_.AddGroup(group).ok());
    for (NodeId n = 0; n < graph_.size(); ++n) Add(n);
    return *std::move(builder_).Build();
  }

 private:
  void Add(NodeId n) {
    NodeSpec spec;
    spec.kind = graph_.kind(n);
    spec.op = graph_.op(n);
    spec.name = graph_.node_name(n);
    spec.module = graph_.module(n);
    spec.inputs = graph_.inputs(n);
    spec.alias_of = graph_.alias_of(n);
    spec.mutates = graph_.mutates(n);
    spec.flags = graph_.flags(n);
    spec.flops = graph_.flops(n);
    spec.memory_bytes = graph_.memory_bytes(n);
    spec.direction = graph_.direction(n);
    spec.role = graph_.role(n);
    spec.parameter = graph_.parameter(n);
    spec.getitem_index = graph_.getitem_index(n);
    if (spec.kind == NodeKind::kCollective) {
      const Collective& c = graph_.collective(graph_.collective_of(n));
      spec.collective = {c.kind, c.group, c.reduce_op, c.tag, graph_.string(c.parameter)};
    }
    std::vector<NodeSpec::Slot> slots;
    if (spec.kind == NodeKind::kOutput) {
      for (const OutputSlot& slot : graph_.output_slots()) {
        slots.push_back({slot.node, slot.kind, graph_.string(slot.parameter)});
      }
      spec.slots = slots;
    }
    AddOutputs(n, spec);
  }

  // With other sizes, and costs of other sizes, where the node is symbolic.
  void AddOutputs(NodeId n, NodeSpec& spec) {
    const bool symbolic = symbolic_[static_cast<size_t>(n)];
    std::vector<std::vector<int64_t>> shapes;
    for (const TensorType& tensor : graph_.outputs(n)) {
      const absl::Span<const int64_t> shape = graph_.shape(tensor);
      shapes.emplace_back(shape.begin(), shape.end());
      if (!symbolic) continue;
      for (int64_t& size : shapes.back()) size = random_.Below(4) == 0 ? 0 : random_.Below(97);
    }
    std::vector<NodeSpec::Tensor> outputs;
    for (size_t i = 0; i < shapes.size(); ++i) {
      outputs.push_back({graph_.outputs(n)[i].dtype, shapes[i]});
    }
    spec.outputs = outputs;
    if (symbolic) {
      spec.flags |= kSymbolicFlag;
      spec.flops *= random_.Below(3);
      spec.memory_bytes *= random_.Below(3);
    }
    const absl::StatusOr<NodeId> added = builder_.Add(spec);
    EXPECT_TRUE(added.ok()) << added.status();
  }

  const Graph& graph_;
  const std::vector<bool>& symbolic_;
  Random random_;
  GraphBuilder builder_;
};

std::vector<PlanOptions> Options() {
  std::vector<PlanOptions> all;
  for (const absl::string_view mode : PlanModes()) {
    for (const Numerics numerics : {Numerics::kFree, Numerics::kExact}) {
      PlanOptions options;
      options.mode = std::string(mode);
      options.numerics = numerics;
      if (mode == "manual") options.buckets = "layers.[0-99]";
      all.push_back(options);
    }
  }
  for (const char* mode : {"greedy", "overlap"}) {
    PlanOptions options;
    options.mode = mode;
    options.numerics = Numerics::kFree;
    options.upstream = true;
    all.push_back(options);
  }
  return all;
}

TEST(SymbolicSizes, APlanIsLegalWhateverTheSizesAre) {
  int planned = 0;
  size_t buckets = 0;
  for (size_t kind = 0; kind < GeneratedKinds().size(); kind += kStride) {
    const CapturedGraph step = GeneratedStep(kind, 31, false);
    const auto seed = static_cast<uint32_t>(kind);
    const std::vector<bool> symbolic = Drawn(step.graph, seed, 5);
    const Graph graph = Copy(step.graph, symbolic, seed).Run();
    const Costs costs = *Costs::FromFile(graph, step.costs, CostProfile());
    for (const PlanOptions& options : Options()) {
      const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
      if (!plan.ok()) {  // a mode may refuse a graph, by its structure
        EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << plan.status();
        continue;
      }
      ++planned;
      buckets += plan->buckets.size();
      EXPECT_EQ(VerifyPlan(graph, *plan), absl::OkStatus());
      for (uint32_t other : {77u, 78u}) {
        const Graph later = Copy(step.graph, symbolic, other).Run();
        EXPECT_NE(GraphDigest(later), GraphDigest(graph));
        EXPECT_EQ(VerifyPlan(later, *plan), absl::OkStatus())
            << GeneratedKinds()[kind] << " " << options.mode;
      }
    }
  }
  EXPECT_GE(planned, 60 / static_cast<int>(kStride));
  EXPECT_GE(buckets, 300 / kStride);
}

// Which nodes are static decides what may share a bucket, and hints do not.
TEST(SymbolicSizes, WhatIsSymbolicIsInNoBucketAndTheOthersAre) {
  const CapturedGraph step = GeneratedStep(0, 32, false);
  const std::vector<bool> symbolic = Drawn(step.graph, 9, 3);
  const Graph graph = Copy(step.graph, symbolic, 1).Run();
  const Costs costs = *Costs::FromFile(graph, step.costs, CostProfile());
  PlanOptions options;
  options.mode = "transformer_block";
  const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int alone = 0;
  for (const Collective& c : graph.collectives()) alone += c.symbolic ? 1 : 0;
  EXPECT_GT(alone, 3);
  size_t members = 0;
  for (const Bucket& bucket : plan->buckets) {
    members += bucket.members.size();
    for (const NodeId n : bucket.members) {
      EXPECT_FALSE(symbolic[static_cast<size_t>(n)]);
      EXPECT_FALSE(symbolic[static_cast<size_t>(graph.inputs(n)[0])]);
    }
  }
  EXPECT_GT(members, 3u);
}

// Three gathers; the second one's input, or its result, is symbolic.
TEST(SymbolicSizes, TheVerifierRefusesABucketWithASymbolicMember) {
  const Graph graph = Gathers({"a", "b", "c"});
  const Plan plan = Planned(graph, Manual("a+b+c"));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(VerifyPlan(graph, plan), absl::OkStatus());
  const NodeId member = plan.buckets[0].members[1];
  for (const NodeId n : {member, graph.inputs(member)[0]}) {
    std::vector<bool> symbolic(static_cast<size_t>(graph.size()));
    symbolic[static_cast<size_t>(n)] = true;
    EXPECT_THAT(VerifyPlan(Copy(graph, symbolic, 1).Run(), plan).ToString(),
                HasSubstr("has a symbolic size"));
  }
}

// A gather that looks uneven by its hints is not one: they say nothing of the sizes to come.
TEST(SymbolicSizes, NormalisationReadsNoHint) {
  Net net(4);
  const NodeId shard = net.Input("x", {3, 5}, Role::kParameter, "w");
  const NodeId whole = net.Gather("w", shard);
  const NodeId cut = net.Call("cut", {whole}, {10, 5}, kViewFlag, "aten.slice.Tensor");
  net.Out(cut, SlotKind::kOutput);
  const Graph graph = net.Build();
  const absl::StatusOr<NormalizedGraph> uneven = Normalize(graph);
  ASSERT_TRUE(uneven.ok());
  EXPECT_EQ(uneven->graph.size(), graph.size() + 1);
  for (const NodeId n : {shard, cut}) {
    std::vector<bool> symbolic(static_cast<size_t>(graph.size()));
    symbolic[static_cast<size_t>(n)] = true;
    const Graph changing = Copy(graph, symbolic, 1).Run();
    const absl::StatusOr<NormalizedGraph> same = Normalize(changing);
    ASSERT_TRUE(same.ok());
    EXPECT_EQ(GraphDigest(same->graph), GraphDigest(changing));
  }
}

}  // namespace
}  // namespace bucketd::testing
