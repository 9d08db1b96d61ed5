// The text form says what it says, and all that a graph holds.
#include "passes/text/bir.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/io/fx_json.h"
#include "passes/io/profile_json.h"
#include "passes/ir/canonical.h"
#include "passes/plan/verify.h"
#include "tests/passes/test_data.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParsedBir Parsed(absl::string_view text) {
  auto parsed = ParseBir(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status() << "\n" << text;
  return *std::move(parsed);
}

std::string Printed(const ParsedBir& bir) {
  BirParts parts;
  if (bir.has_costs) parts.costs = &bir.costs;
  parts.mesh = &bir.mesh;
  parts.overlap = bir.overlap;
  if (bir.plan.has_value()) parts.plan = &*bir.plan;
  return PrintBir(bir.graph, parts);
}

Costs CostsUnder(const Graph& graph, const StatedCosts& stated, const CostProfile& profile) {
  auto costs = Costs::FromFile(graph, stated, profile);
  EXPECT_TRUE(costs.ok()) << costs.status();
  return *std::move(costs);
}

// Byte for byte as it is printed.
constexpr char kCanonical[] =
    R"bir(graph @step forward mesh(dp=4 alpha=20us busbw=175GB/s per_node=2, tp=2 alpha=1.5us busbw=10.5B/s,
      dp#1=4) {
  %x = input : bf16[8,64]
  %w = param(layers.0.wq.weight) : bf16[16,64]
  %mask = buffer("odd name") : bool[]
  %mesh = placeholder
  %g = all_gather(%w) tag=fsdp_all_gather param=layers.0.wq.weight
  %wg = wait(%g) module=layers.0
  %v = view(%wg) view module=layers.0
  %h = mm(%x, %v) module=layers.0.wq flops=65536 cost=45us
  %r = aten.rand_like.default(%h) cost=1.5us
  %a = add_(%h, %r) !pointwise mutates(%h) cost=0.000001us
  %two = topk(%a) cost=1ms : bf16[8,2], i64[8,2]
  %top = getitem(%two)
  %at = getitem(%two) index=1
  %s = reduce_scatter(%x) group=dp#1 reduce=avg cost=100us hidden_by(%h) exposed=0.2us est=100us
  %ws = wait(%s) undirected
  %all = all_reduce(%a) group=tp
  %wall = wait(%all)
  %"odd (name)" = "my::op"(%ws)
  %18(x) = relu(%a) !pointwise
  %19 = "placeholder"(%18) bytes=7
  return %wall, %top, %at, saved %"odd (name)", grad(layers.0.wq.weight) %ws, grad %x, empty,
      none %19
}
)bir";

TEST(Bir, PrintsWhatItReadsByteForByte) {
  // Two nodes are called x; both go by position then.
  const std::string printed = Printed(Parsed(kCanonical));
  EXPECT_EQ(Printed(Parsed(printed)), printed);
  EXPECT_THAT(printed, HasSubstr("  %0(x) = input : bf16[8,64]\n"));
  EXPECT_THAT(printed, HasSubstr("  %18(x) = relu(%a) !pointwise\n"));
  EXPECT_THAT(printed, HasSubstr("grad %0, empty"));
  std::string text = absl::StrReplaceAll(
      kCanonical, {{"%18(x)", "%y"}, {"(%18)", "(%y)"}, {"aten.rand_like.default", "rand_like"}});
  EXPECT_EQ(Printed(Parsed(text)), text);
}

// Of an input, of a call and of a collective whose sizes are hints and do not fit one another.
TEST(Bir, SaysWhichSizesAreSymbolic) {
  const std::string text = absl::StrReplaceAll(
      kCanonical, {{"input : bf16[8,64]", "input symbolic : bf16[8,64]"},
                   {"flops=65536 cost=45us", "symbolic flops=65536 cost=45us : bf16[8,64]"},
                   {"all_reduce(%a) group=tp", "all_reduce(%a) symbolic group=tp : bf16[9,64]"}});
  const ParsedBir bir = Parsed(text);
  EXPECT_TRUE(bir.graph.is_symbolic(0));
  EXPECT_FALSE(bir.graph.is_symbolic(1));
  EXPECT_FALSE(bir.graph.collective(0).symbolic);
  EXPECT_TRUE(bir.graph.collective(1).symbolic);  // its input is
  EXPECT_TRUE(bir.graph.collective(2).symbolic);
  const ParsedBir again = Parsed(Printed(bir));
  EXPECT_EQ(Printed(again), Printed(bir));
  EXPECT_EQ(GraphDigest(again.graph), GraphDigest(bir.graph));
  EXPECT_NE(GraphDigest(bir.graph), GraphDigest(Parsed(kCanonical).graph));
}

TEST(Bir, SaysWhatTheTextSays) {
  const ParsedBir bir = Parsed(kCanonical);
  const Graph& g = bir.graph;
  EXPECT_EQ(g.name(), "step");
  ASSERT_EQ(g.size(), 21);
  EXPECT_EQ(g.role(1), Role::kParameter);
  EXPECT_EQ(g.parameter(1), "layers.0.wq.weight");
  EXPECT_EQ(g.parameter(2), "odd name");
  EXPECT_TRUE(g.outputs(3).empty());
  EXPECT_EQ(g.op(4), "_c10d_functional.all_gather_into_tensor.default");
  EXPECT_THAT(g.shape(g.outputs(4)[0]), ElementsAre(64, 64));
  EXPECT_EQ(g.collective(0).tag, Tag::kFsdpAllGather);
  EXPECT_EQ(g.string(g.collective(0).parameter), "layers.0.wq.weight");
  EXPECT_THAT(g.alias_of(5), ElementsAre(4));
  EXPECT_TRUE(g.is_view(6));
  EXPECT_THAT(g.alias_of(6), ElementsAre(5));
  EXPECT_EQ(g.op(7), "aten.mm.default");
  EXPECT_TRUE(g.is_compute(7));
  EXPECT_EQ(g.flops(7), 65536);
  EXPECT_EQ(g.memory_bytes(7), 2 * (8 * 64 + 64 * 64 + 8 * 64));
  EXPECT_EQ(g.direction(7), Direction::kForward);
  EXPECT_TRUE(g.is_ordered(8));
  EXPECT_THAT(g.mutates(9), ElementsAre(7));
  EXPECT_THAT(g.alias_of(9), ElementsAre(7));
  ASSERT_EQ(g.outputs(10).size(), 2u);
  EXPECT_EQ(g.outputs(12)[0].dtype, DType::kI64);
  EXPECT_EQ(g.getitem_index(12), 1);
  EXPECT_EQ(g.group(g.collective(1)), (Group{"dp", 1, 4}));
  EXPECT_EQ(g.collective(1).reduce_op, ReduceOp::kAvg);
  EXPECT_THAT(g.shape(g.outputs(13)[0]), ElementsAre(2, 64));
  EXPECT_EQ(g.direction(14), Direction::kNone);
  EXPECT_EQ(g.collective(2).reduce_op, ReduceOp::kSum);
  EXPECT_EQ(g.node_name(17), "odd (name)");
  EXPECT_EQ(g.op(17), "my::op");
  EXPECT_EQ(g.node_name(18), "x");
  EXPECT_EQ(g.flags(18), 0);
  EXPECT_EQ(g.node_name(19), "");
  EXPECT_EQ(g.kind(19), NodeKind::kCall);
  EXPECT_EQ(g.memory_bytes(19), 7);
  EXPECT_EQ(g.node_name(20), "output");
}

TEST(Bir, KeepsCostsToThePicosecond) {
  const ParsedBir bir = Parsed(kCanonical);
  ASSERT_TRUE(bir.has_costs);
  CostProfile profile;
  const Costs costs = CostsUnder(bir.graph, bir.costs, profile);
  EXPECT_EQ(costs.node_ps(7), 45'000'000);
  EXPECT_EQ(costs.node_ps(9), 1);
  EXPECT_EQ(costs.node_ps(10), 1'000'000'000);
  // 20 us + 3/4 of 8192 bytes at 175 GB/s.
  EXPECT_EQ(costs.AlphaPs(0), 20'000'000);
  EXPECT_EQ(costs.node_ps(4), 20'035'109);
  EXPECT_EQ(costs.node_ps(13), 100'000'000);
  EXPECT_EQ(costs.AlphaPs(1), 0);
  EXPECT_EQ(costs.AlphaPs(2), 3'000'000);
  ASSERT_EQ(bir.overlap.size(), 1u);
  EXPECT_EQ(bir.overlap[0], (BirOverlap{1, {7}, 200'000, 100'000'000}));
  ASSERT_EQ(bir.mesh.dims.size(), 2u);
  EXPECT_EQ(bir.mesh.dims[0], (MeshDim{"dp", 4, 2, ""}));
}

TEST(Bir, AnAllReduceTakesItsGroupsAlphaTwice) {
  const ParsedBir bir = Parsed(R"(graph mesh(dp=4 alpha=10us busbw=1GB/s) {
    %x = input : f32[8]
    %a = all_reduce(%x)
    %g = all_gather(%x)
    return
  })");
  EXPECT_EQ(bir.costs.links[0].alpha_us, 20.0);
  EXPECT_EQ(bir.costs.links[1].alpha_us, 10.0);
  EXPECT_THAT(Printed(bir), HasSubstr("dp=4 alpha=10us busbw=1GB/s"));
}

TEST(Bir, AReturnOfNothingMayHaveAttributes) {
  constexpr char kText[] = "graph {\n  %x = input : f32[8]\n  return op=done module=m forward\n}\n";
  EXPECT_EQ(Parsed(kText).graph.op(1), "done");
  EXPECT_EQ(Printed(Parsed(kText)), kText);
}

TEST(Bir, WithoutAnyTimeStatesNoCosts) {
  constexpr char kText[] = "graph mesh(dp=4) {\n  %x = input : f32[8]\n  return %x\n}\n";
  EXPECT_FALSE(Parsed(kText).has_costs);
  EXPECT_EQ(Printed(Parsed(kText)), kText);
  constexpr char kFree[] = "graph costs {\n  %x = input : f32[8]\n  return %x\n}\n";
  EXPECT_TRUE(Parsed(kFree).has_costs);
  EXPECT_EQ(Printed(Parsed(kFree)), kFree);
}

TEST(Bir, UnderstandsWhatPeopleWrite) {
  const ParsedBir bir = Parsed(
      "// a comment\n\n"
      "graph  mesh( dp = 2 ,\n tp=2 ){ // another\r\n"
      "\t%x=input:f32[ 8 , 2 ]  // its shape\n"
      "%y = relu(\n  %x // first\n  )\n"
      "%z = add(%0,%y)\n"
      "  return %z,\n   %y }\n"
      "\n// the end");
  EXPECT_EQ(bir.graph.size(), 4);
  EXPECT_THAT(bir.graph.inputs(2), ElementsAre(0, 1));
  EXPECT_EQ(bir.graph.output_slots().size(), 2u);
}

void ExpectRoundTrip(const Graph& graph, const StatedCosts* stated, const Mesh& mesh,
                     const std::string& what) {
  BirParts parts;
  parts.costs = stated;
  parts.mesh = &mesh;
  const std::string text = PrintBir(graph, parts);
  const auto back = ParseBir(text);
  ASSERT_TRUE(back.ok()) << what << ": " << back.status() << "\n" << text.substr(0, 3000);
  ASSERT_EQ(ToHex(GraphDigest(back->graph)), ToHex(GraphDigest(graph))) << what;
  ASSERT_EQ(back->graph.name(), graph.name());
  for (NodeId n = 0; n < graph.size(); ++n) {
    ASSERT_EQ(back->graph.node_name(n), graph.node_name(n)) << what;
  }
  ASSERT_EQ(Printed(*back), text) << what;
  if (stated == nullptr) return;
  ASSERT_TRUE(back->has_costs) << what;
  for (const CostProfile& profile : BuiltInProfiles()) {
    const Costs was = CostsUnder(graph, *stated, profile);
    const Costs is = CostsUnder(back->graph, back->costs, profile);
    for (NodeId n = 0; n < graph.size(); ++n) ASSERT_EQ(is.node_ps(n), was.node_ps(n)) << what;
    for (size_t c = 0; c < graph.collectives().size(); ++c) {
      const auto id = static_cast<CollectiveId>(c);
      ASSERT_EQ(is.AlphaPs(id), was.AlphaPs(id)) << what;
      ASSERT_EQ(is.CollectivePs(id, 123'456'789, 3), was.CollectivePs(id, 123'456'789, 3)) << what;
    }
  }
}

TEST(Bir, KeepsEveryCapturedGraphWithItsCosts) {
  const std::vector<std::string> files = testing::TestDataFiles("graphs", ".json.gz");
  ASSERT_EQ(files.size(), 24u);
  for (const std::string& file : files) {
    const auto captured = ReadCapturedGraphFile(file);
    ASSERT_TRUE(captured.ok()) << captured.status();
    ExpectRoundTrip(captured->graph, &captured->costs, captured->mesh, file);
  }
}

TEST(Bir, KeepsTheGraphsOfRealRanks) {
  const std::vector<std::string> files = testing::TestDataFiles("vectors", ".json.gz");
  ASSERT_GT(files.size(), 20u);
  for (const std::string& file : files) {
    const auto captured = ReadCapturedGraphFile(file);
    ASSERT_TRUE(captured.ok()) << captured.status();
    ExpectRoundTrip(captured->graph, captured->has_costs ? &captured->costs : nullptr,
                    captured->mesh, file);
  }
}

// Random graphs with every kind of node, aliases, mutation, several outputs and odd names.
class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed) : random_(seed), builder_(absl::StrCat("random ", seed)) {
    Must(builder_.AddGroup({"dp", 0, 4}).ok());
    Must(builder_.AddGroup({"a b", 0, 2}).ok());
    Must(builder_.AddGroup({"dp", 1, 4}).ok());
  }

  Graph Build() {
    for (int i = 0; i < 4; ++i) Placeholder();
    for (int i = 0; i < 40; ++i) {
      const int what = Below(5);
      if (what == 0) Start();
      if (what == 1) Getitem();
      if (what >= 2) Call();
    }
    Output();
    auto graph = std::move(builder_).Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }

 private:
  void Must(bool ok) { ASSERT_TRUE(ok); }
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  std::string Name() {
    static constexpr const char* kNames[] = {"",         "x",    "12", "say \"hi\" \\ there",
                                             "\xc3\xa9", "// no"};
    const int k = Below(12);
    return k < 6 ? kNames[k] : absl::StrCat("n", builder_.graph().size());
  }
  NodeId Any() { return Below(builder_.graph().size()); }
  void Add(NodeSpec spec) {
    const std::string name = Name();
    spec.name = name;
    spec.module = Below(2) == 0 ? "" : Below(2) == 0 ? "layers.0" : "a module";
    spec.direction = static_cast<Direction>(Below(3));
    const auto id = builder_.Add(spec);
    ASSERT_TRUE(id.ok()) << id.status();
  }
  void Placeholder() {
    NodeSpec spec;
    spec.kind = NodeKind::kPlaceholder;
    spec.op = Below(4) == 0 ? "odd" : "placeholder";
    spec.role = static_cast<Role>(Below(6));
    spec.parameter = Below(2) == 0 ? "w" : "";
    const NodeSpec::Tensor tensor{DType::kF32, shape_};
    if (Below(4) != 0) spec.outputs = absl::MakeConstSpan(&tensor, 1);
    Add(spec);
  }
  std::vector<NodeId> Some() {
    std::vector<NodeId> nodes = {Any()};
    for (int i = Below(3); i > 0; --i) {
      const NodeId n = Any();
      if (std::find(nodes.begin(), nodes.end(), n) == nodes.end()) nodes.push_back(n);
    }
    return nodes;
  }
  void Call() {
    static constexpr const char* kOps[] = {"aten.mm.default",   "aten.add.Tensor",
                                           "aten.wait.default", "aten.rand.default",
                                           "getitem",           "x y",
                                           "aten.relu_.default"};
    NodeSpec spec;
    spec.kind = NodeKind::kCall;
    spec.op = kOps[Below(7)];
    const std::vector<NodeId> inputs = Some(), alias = Some();
    spec.inputs = inputs;
    if (Below(4) == 0) spec.mutates = absl::MakeConstSpan(inputs).subspan(inputs.size() - 1);
    if (Below(3) == 0) spec.alias_of = alias;
    spec.flags = static_cast<uint8_t>(Below(16));
    spec.flops = Below(3) == 0 ? 1000 : 0;
    spec.memory_bytes = Below(3) == 0 ? 77 : 0;
    std::vector<NodeSpec::Tensor> tensors;
    for (int i = Below(4); i > 0; --i) {
      tensors.push_back({static_cast<DType>(1 + Below(17)), Below(2) == 0 ? shape_ : scalar_});
    }
    spec.outputs = tensors;
    Add(spec);
  }
  void Getitem() {
    NodeSpec spec;
    spec.kind = NodeKind::kGetitem;
    spec.op = "getitem";
    const NodeId from = Any();
    spec.inputs = absl::MakeConstSpan(&from, 1);
    spec.getitem_index = Below(3);
    const NodeSpec::Tensor tensor{DType::kF32, shape_};
    spec.outputs = absl::MakeConstSpan(&tensor, 1);
    Add(spec);
  }
  void Start() {
    const NodeId from = Any();
    const Graph& g = builder_.graph();
    if (g.outputs(from).size() != 1 || g.outputs(from)[0].rank == 0) return;
    NodeSpec spec;
    spec.kind = NodeKind::kCollective;
    spec.op = "c10d.all_reduce_";
    spec.inputs = absl::MakeConstSpan(&from, 1);
    if (Below(3) == 0) spec.mutates = spec.inputs;
    spec.collective.kind = CollectiveKind::kAllReduce;
    spec.collective.group = Below(3);
    spec.collective.reduce_op = static_cast<ReduceOp>(1 + Below(8));
    if (Below(2) == 0) spec.collective.tag = Tag::kDdpAllReduce;
    if (spec.collective.tag != Tag::kNone) spec.collective.parameter = "w";
    const std::vector<int64_t> dims(g.shape(g.outputs(from)[0]).begin(),
                                    g.shape(g.outputs(from)[0]).end());
    const NodeSpec::Tensor tensor{g.outputs(from)[0].dtype, dims};
    spec.outputs = absl::MakeConstSpan(&tensor, 1);
    Add(spec);
    const NodeId start = g.size() - 1;
    if (Below(4) == 0) return;
    NodeSpec wait;
    wait.kind = NodeKind::kWait;
    wait.op = "_c10d_functional.wait_tensor.default";
    wait.inputs = absl::MakeConstSpan(&start, 1);
    if (Below(2) == 0) wait.alias_of = wait.inputs;
    wait.outputs = spec.outputs;
    Add(wait);
  }
  void Output() {
    std::vector<NodeSpec::Slot> slots;
    std::vector<NodeId> inputs;
    for (int i = 0; i < 6; ++i) {
      const NodeId n = Any();
      const auto kind = static_cast<SlotKind>(Below(5));
      if (Below(4) == 0) {
        slots.emplace_back();
        continue;
      }
      slots.push_back({n, kind, Below(2) == 0 ? "w" : ""});
      if (std::find(inputs.begin(), inputs.end(), n) == inputs.end()) inputs.push_back(n);
    }
    NodeSpec spec;
    spec.kind = NodeKind::kOutput;
    spec.op = "output";
    spec.inputs = inputs;
    spec.slots = slots;
    Add(spec);
  }

  std::mt19937 random_;
  GraphBuilder builder_;
  const std::vector<int64_t> shape_ = {8, 3}, scalar_;
};

TEST(Bir, KeepsThreeHundredRandomGraphsWithMutationAndSeveralOutputs) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    ExpectRoundTrip(RandomGraph(seed).Build(), nullptr, Mesh(), absl::StrCat("seed ", seed));
    if (HasFatalFailure()) return;
  }
}

constexpr char kTwoGathers[] = R"(graph mesh(dp=4) {
  %x = input : bf16[16,4]
  %a = param(a) : bf16[4,4]
  %b = param(b) : bf16[4,4]
  %ga = all_gather(%a)
  %wa = wait(%ga)
  %gb = all_gather(%b)
  %wb = wait(%gb)
  %y = mm(%x, %wa)
  %z = mm(%y, %wb)
  return %z
}
)";
constexpr char kPlan[] = R"(plan {
  bucket b0 = all_gather {%gb, %ga} grouped copies_on_comm name="layer 0"
  order {
    start:b0 wait:b0 %y %z
  }
}
)";

TEST(Bir, CarriesAPlan) {
  const std::string text = absl::StrCat(kTwoGathers, kPlan);
  const ParsedBir bir = Parsed(text);
  ASSERT_TRUE(bir.plan.has_value());
  const Plan& plan = *bir.plan;
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_THAT(plan.buckets[0].members, ElementsAre(5, 3));
  EXPECT_EQ(plan.buckets[0].mode, BucketMode::kGrouped);
  EXPECT_EQ(plan.buckets[0].copies, CopyStream::kComm);
  EXPECT_EQ(plan.buckets[0].name, "layer 0");
  EXPECT_THAT(plan.buckets[0].offsets, ElementsAre(0, 32));
  EXPECT_EQ(plan.order.size(), 8u);
  EXPECT_TRUE(VerifyPlan(bir.graph, plan).ok());
  EXPECT_EQ(Printed(bir), text);
  EXPECT_EQ(PrintPlan(bir.graph, plan), kPlan);
}

TEST(Bir, WritesPlaceholdersThatDoNotStandFirst) {
  const ParsedBir bir = Parsed(kTwoGathers);
  Plan plan = ProgramOrder(bir.graph);
  EXPECT_THAT(PrintPlan(bir.graph, plan), HasSubstr("\n    %ga %wa %gb %wb %y %z\n"));
  std::swap(plan.order[0], plan.order[1]);
  const std::string text = PrintPlan(bir.graph, plan);
  EXPECT_THAT(text, HasSubstr("\n    %a %x %b %ga"));
  const ParsedBir back = Parsed(absl::StrCat(kTwoGathers, text));
  ASSERT_TRUE(back.plan.has_value());
  EXPECT_EQ(back.plan->order, plan.order);
}

TEST(Bir, BreaksLongListsOnly) {
  std::string text = "graph {\n  %x = input : f32[8]\n";
  for (int i = 0; i < 200; ++i) absl::StrAppend(&text, "  %node_", i, " = relu(%x)\n");
  absl::StrAppend(&text, "  %all = cat(%node_0");
  for (int i = 1; i < 200; ++i) absl::StrAppend(&text, ", %node_", i);
  absl::StrAppend(&text, ")\n  return %all\n}\n");
  const std::string printed = Printed(Parsed(text));
  EXPECT_EQ(Printed(Parsed(printed)), printed);
  size_t longest = 0;
  for (size_t from = 0; from < printed.size();) {
    const size_t to = printed.find('\n', from);
    longest = std::max(longest, to - from);
    from = to + 1;
  }
  EXPECT_LE(longest, 102u);
}

}  // namespace
}  // namespace bucketd
