// One hand-broken plan for every rule of VerifyPlan, and the edges of those rules.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/plan/plan.h"
#include "passes/plan/storage.h"
#include "passes/plan/verify.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd {
namespace {

using bucketd::testing::Net;
using ::testing::HasSubstr;
using Kind = Step::Kind;

NodeId Named(const Graph& graph, absl::string_view name) {
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (graph.node_name(n) == name) return n;
  }
  ADD_FAILURE() << "no node " << name;
  return kNoNode;
}

// Program order with some collectives in buckets: a bucket starts where its last member stood and
// is waited for where its first wait stood.
Plan WithBuckets(const Graph& graph, const std::vector<std::vector<std::string>>& buckets) {
  Plan plan;
  plan.node_count = graph.size();
  std::vector<BucketId> bucket_of(static_cast<size_t>(graph.size()), -1);
  std::vector<NodeId> start_at, wait_at;
  for (const std::vector<std::string>& names : buckets) {
    Bucket bucket;
    NodeId last = 0, first_wait = graph.size();
    for (const std::string& name : names) {
      const NodeId member = Named(graph, name);
      const NodeId wait = graph.collective(graph.collective_of(member)).wait;
      bucket.members.push_back(member);
      bucket_of[static_cast<size_t>(member)] = static_cast<BucketId>(plan.buckets.size());
      bucket_of[static_cast<size_t>(wait)] = static_cast<BucketId>(plan.buckets.size());
      last = std::max(last, member);
      first_wait = std::min(first_wait, wait);
    }
    start_at.push_back(last);
    wait_at.push_back(std::max(first_wait, last + 1));
    LayOut(graph, bucket);
    plan.buckets.push_back(bucket);
  }
  for (NodeId n = 0; n < graph.size(); ++n) {
    const BucketId k = bucket_of[static_cast<size_t>(n)];
    if (k < 0) plan.order.push_back({Kind::kNode, n});
    for (size_t b = 0; b < start_at.size(); ++b) {
      if (start_at[b] == n) plan.order.push_back({Kind::kStart, static_cast<int32_t>(b)});
      if (wait_at[b] == n) plan.order.push_back({Kind::kWait, static_cast<int32_t>(b)});
    }
  }
  return plan;
}

size_t Position(const Plan& plan, Step step) {
  const auto it = std::find(plan.order.begin(), plan.order.end(), step);
  EXPECT_NE(it, plan.order.end());
  return static_cast<size_t>(it - plan.order.begin());
}

void MoveBefore(Plan& plan, Step what, Step target) {
  plan.order.erase(plan.order.begin() + static_cast<std::ptrdiff_t>(Position(plan, what)));
  plan.order.insert(plan.order.begin() + static_cast<std::ptrdiff_t>(Position(plan, target)), what);
}

Step Node(const Graph& graph, absl::string_view name) { return {Kind::kNode, Named(graph, name)}; }

// Four gathers (one of another dtype), one all-to-all, a scatter, random ops.
Graph Step1() {
  Net net(4);
  const NodeId x = net.Input("x", {8, 4});
  std::vector<NodeId> shards;
  for (const char* name : {"a", "b", "c"}) shards.push_back(net.Parameter(name, {2, 4}));
  net.Typed(DType::kF32);
  const NodeId wide = net.Parameter("wide", {2, 4});
  const NodeId w_wide = net.Gather("wide", wide);
  net.Typed(DType::kBF16);
  const NodeId wa = net.Gather("a", shards[0]);
  const NodeId wb = net.Gather("b", shards[1]);
  const NodeId wc = net.Gather("c", shards[2]);
  const NodeId m1 = net.Call("m1", {x, wa}, {8, 4});
  const NodeId r1 = net.Call("r1", {m1}, {8, 4}, kOrderedFlag, "aten.rand_like.default");
  const NodeId r2 = net.Call("r2", {x}, {8, 4}, kOrderedFlag, "aten.rand_like.default");
  const NodeId m2 = net.Call("m2", {r1, r2, wb, wc, w_wide}, {8, 4});
  const NodeId ws = net.Scatter("s", m2);
  const NodeId wsum = net.Scatter("sum", m2, ReduceOp::kSum);
  net.OnGroup(net.AddGroup("other", 4));
  const NodeId w_other = net.Gather("other", shards[0]);
  net.OnGroup(0);
  net.Start(CollectiveKind::kAllGather, "AGlost", shards[0]);
  const NodeId seen = net.Start(CollectiveKind::kAllGather, "AGseen", shards[0]);
  const NodeId w_seen = net.Wait("Wseen", seen);
  const NodeId peek = net.Call("peek", {seen}, {8, 4});
  const NodeId write = net.Mutate("write", x);
  const NodeId all = net.Start(CollectiveKind::kAllToAll, "all", m2);
  const NodeId w_all = net.Wait("all_done", all);
  net.Out(ws, SlotKind::kOutput);
  net.Out(w_all, SlotKind::kOutput);
  for (const NodeId n : {wsum, w_other, w_seen, peek, write}) net.Out(n, SlotKind::kOutput);
  return net.Build();
}

struct Broken {
  const char* rule;
  std::function<void(const Graph&, Plan&)> breaks;
  const char* says;
};

const Broken kBroken[] = {
    {"BucketNeedsTwoMembers", [](const Graph&, Plan& p) { p.buckets[0].members.pop_back(); },
     "has 1 members"},
    {"MembersAreDistinct",
     [](const Graph&, Plan& p) { p.buckets[0].members.push_back(p.buckets[0].members[0]); },
     "member twice"},
    {"MemberIsANode", [](const Graph&, Plan& p) { p.buckets[0].members[1] = 1'000'000; },
     "there is no node 1000000"},
    {"MemberIsNotNegative", [](const Graph&, Plan& p) { p.buckets[0].members[1] = -1; },
     "there is no node -1"},
    {"MemberIsACollective",
     [](const Graph& g, Plan& p) { p.buckets[0].members[1] = Named(g, "m1"); },
     "is not a collective"},
    {"WaitIsNoMember",
     [](const Graph& g, Plan& p) {
       p.buckets[0].members[1] = g.collective(g.collective_of(p.buckets[0].members[0])).wait;
     },
     "is not a collective"},
    {"MemberIsInOneBucketOnly", [](const Graph&, Plan& p) { p.buckets.push_back(p.buckets[0]); },
     "already in bucket 0"},
    {"MembersAgreeInDtype",
     [](const Graph& g, Plan& p) { p.buckets[0].members[1] = Named(g, "AGwide"); },
     "(AGwide) differ in dtype"},
    {"MembersAgreeInKind",
     [](const Graph& g, Plan& p) { p.buckets[0].members[1] = Named(g, "RSs"); },
     "(RSs) differ in kind"},
    {"MembersAgreeInGroup",
     [](const Graph& g, Plan& p) { p.buckets[0].members[1] = Named(g, "AGother"); },
     "(AGother) differ in group"},
    {"MembersAgreeInReduceOp",
     [](const Graph& g, Plan& p) {
       p.buckets[0].members = {Named(g, "RSs"), Named(g, "RSsum")};
     },
     "(RSsum) differ in reduce op"},
    {"BytesAreThoseOfTheMembers",
     [](const Graph&, Plan& p) {
       p.buckets[0].offsets.clear();
       p.buckets[0].bytes = int64_t{1} << 60;
     },
     "offsets are not those of its members"},
    {"MembersAreWaitedFor",
     [](const Graph& g, Plan& p) { p.buckets[0].members[1] = Named(g, "AGlost"); },
     "nobody waits for"},
    {"NobodyElseReadsAMember",
     [](const Graph& g, Plan& p) {
       p = WithBuckets(g, {{"AGa", "AGseen"}});
     },
     "(peek) reads"},
    {"OffsetsAreOneAMember", [](const Graph&, Plan& p) { p.buckets[0].offsets.pop_back(); },
     "bucket 0: offsets are not"},
    {"BytesAreTheWholeMessage", [](const Graph&, Plan& p) { p.buckets[0].bytes -= 2; },
     "bucket 0: offsets are not"},
    {"AllToAllIsNotBucketed",
     [](const Graph& g, Plan& p) { p.buckets[0].members[0] = Named(g, "all"); },
     "cannot be bucketed"},
    {"ModeIsKnown", [](const Graph&, Plan& p) { p.buckets[0].mode = static_cast<BucketMode>(9); },
     "neither packed nor grouped"},
    {"CopiesAreKnown",
     [](const Graph&, Plan& p) { p.buckets[0].copies = static_cast<CopyStream>(0); },
     "neither on compute nor on comm"},
    {"OffsetsAreBackToBack", [](const Graph&, Plan& p) { p.buckets[0].offsets[1] += 2; },
     "back to back"},
    {"SliceHasItsLength", [](const Graph&, Plan& p) { p.buckets[0].slice_bytes += 16; },
     "back to back"},
    {"EveryNodeStands",
     [](const Graph& g, Plan& p) {
       p.order.erase(p.order.begin() + static_cast<std::ptrdiff_t>(Position(p, Node(g, "m1"))));
     },
     "is missing"},
    {"NoNodeStandsTwice", [](const Graph&, Plan& p) { p.order.push_back(p.order[0]); },
     "stands twice"},
    {"OrderNamesNodesOnly",
     [](const Graph&, Plan& p) {
       p.order.push_back({Kind::kNode, 1'000'000});
     },
     "there is no node 1000000"},
    {"OrderNamesNoNegativeNode",
     [](const Graph&, Plan& p) {
       p.order.push_back({Kind::kNode, -7});
     },
     "there is no node -7"},
    {"MemberDoesNotStandByItself",
     [](const Graph& g, Plan& p) { p.order.push_back(Node(g, "AGa")); }, "is inside bucket 0"},
    {"WaitOfAMemberDoesNotStandByItself",
     [](const Graph& g, Plan& p) { p.order.push_back(Node(g, "Wa")); }, "is inside bucket 0"},
    {"StartStands",
     [](const Graph&, Plan& p) {
       p.order.erase(p.order.begin() + static_cast<std::ptrdiff_t>(Position(p, {Kind::kStart, 0})));
     },
     "start:0 is missing"},
    {"WaitStands",
     [](const Graph&, Plan& p) {
       p.order.erase(p.order.begin() + static_cast<std::ptrdiff_t>(Position(p, {Kind::kWait, 0})));
     },
     "wait:0 is missing"},
    {"TokensStandOnce",
     [](const Graph&, Plan& p) {
       p.order.push_back({Kind::kWait, 0});
     },
     "wait:0 stands twice"},
    {"TokensNameBuckets",
     [](const Graph&, Plan& p) {
       p.order.push_back({Kind::kStart, 1});
     },
     "start:1 names no bucket"},
    {"StepsHaveAKind",
     [](const Graph&, Plan& p) {
       p.order.push_back({static_cast<Kind>(3), 0});
     },
     "of no known kind"},
    {"NodesComeAfterTheirInputs",
     [](const Graph& g, Plan& p) { MoveBefore(p, Node(g, "m2"), Node(g, "r1")); },
     "(m2) runs before its input"},
    {"StartsComeAfterTheMembersInputs",
     [](const Graph& g, Plan& p) {
       MoveBefore(p, {Kind::kStart, 0}, Node(g, "p_b"));
     },
     "start:0 stands before"},
    {"WaitsComeBeforeTheMembersUsers",
     [](const Graph& g, Plan& p) {
       MoveBefore(p, Node(g, "m1"), {Kind::kWait, 0});
     },
     "(m1) runs before wait:0"},
    {"WaitsComeAfterTheirStart",
     [](const Graph&, Plan& p) {
       MoveBefore(p, {Kind::kWait, 0}, {Kind::kStart, 0});
     },
     "wait:0 stands before start:0"},
    {"RandomOpsKeepTheirOrder",
     [](const Graph& g, Plan& p) { MoveBefore(p, Node(g, "r2"), Node(g, "r1")); },
     "(r2) runs before"},
    {"InPlaceOpsKeepTheirSide",
     [](const Graph& g, Plan& p) { MoveBefore(p, Node(g, "write"), Node(g, "m1")); },
     "(write) writes in place and changed sides with"},
};

class VerifyPlanTest : public ::testing::TestWithParam<Broken> {};

TEST_P(VerifyPlanTest, RefusesAndNamesIt) {
  const Graph graph = Step1();
  Plan plan = WithBuckets(graph, {{"AGa", "AGb"}});
  ASSERT_TRUE(VerifyPlan(graph, plan).ok()) << VerifyPlan(graph, plan);
  GetParam().breaks(graph, plan);
  const absl::Status status = VerifyPlan(graph, plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(EveryRule, VerifyPlanTest, ::testing::ValuesIn(kBroken),
                         [](const auto& rule) { return rule.param.rule; });

TEST(VerifyPlan, AcceptsProgramOrderAndRefusesAnEmptyPlan) {
  const Graph graph = Step1();
  EXPECT_TRUE(VerifyPlan(graph, ProgramOrder(graph)).ok());
  const absl::Status status = VerifyPlan(graph, Plan{});
  EXPECT_THAT(std::string(status.message()), HasSubstr("is missing"));
}

TEST(VerifyPlan, RefusesAPlanOfAnotherGraph) {
  const Graph graph = Step1();
  const Graph other = bucketd::testing::Backward(2, 2);
  EXPECT_FALSE(VerifyPlan(graph, ProgramOrder(other)).ok());
  EXPECT_FALSE(VerifyPlan(other, ProgramOrder(graph)).ok());
}

TEST(VerifyPlan, ListsFiftyViolationsAndCountsTheRest) {
  const Graph graph = bucketd::testing::Backward(8, 4);
  ASSERT_GT(graph.size(), 60);
  const std::string text(VerifyPlan(graph, Plan{}).message());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 50);
  EXPECT_THAT(text, HasSubstr("more"));
}

TEST(VerifyPlan, RefusesABucketWhoseMembersDependOnOneAnother) {
  Net net(4);
  const NodeId a = net.Parameter("a", {2, 4});
  const NodeId wa = net.Gather("a", a);
  const NodeId small = net.Call("small", {wa}, {2, 4});
  const NodeId wb = net.Gather("b", small);
  net.Out(wb, SlotKind::kOutput);
  const Graph graph = net.Build();
  Plan plan = WithBuckets(graph, {{"AGa", "AGb"}});
  // Whatever the order, it cannot exist: small needs the wait, the start needs small.
  EXPECT_FALSE(VerifyPlan(graph, plan).ok());
  MoveBefore(plan, Node(graph, "small"), {Kind::kStart, 0});
  EXPECT_FALSE(VerifyPlan(graph, plan).ok());
}

TEST(VerifyPlan, RefusesACollectiveThatNobodyWaitsFor) {
  Net net(4);
  const NodeId a = net.Parameter("a", {2, 4});
  const NodeId b = net.Parameter("b", {2, 4});
  const NodeId wa = net.Gather("a", a);
  const NodeId lone = net.Start(CollectiveKind::kAllGather, "lone", b);
  net.Out(wa, SlotKind::kOutput);
  net.Out(lone, SlotKind::kOutput);
  const Graph graph = net.Build();
  Plan plan = ProgramOrder(graph);
  EXPECT_TRUE(VerifyPlan(graph, plan).ok());
  Bucket bucket;
  bucket.members = {Named(graph, "AGa"), lone};
  plan.buckets.push_back(bucket);
  EXPECT_THAT(std::string(VerifyPlan(graph, plan).message()), HasSubstr("nobody waits"));
}

// x is read by `before`, viewed, written in place by `write` and read by `after`.
Graph InPlace() {
  Net net(4);
  const NodeId x = net.Input("x", {8, 4});
  const NodeId y = net.Input("y", {8, 4});
  const NodeId view = net.View("view", x);
  const NodeId before = net.Call("before", {view}, {8, 4});
  const NodeId start = net.Start(CollectiveKind::kAllReduce, "reduce", x, ReduceOp::kSum);
  const NodeId wait = net.Wait("reduced", start);
  const NodeId start2 = net.Start(CollectiveKind::kAllReduce, "reduce2", y, ReduceOp::kSum);
  const NodeId wait2 = net.Wait("reduced2", start2);
  const NodeId write = net.Mutate("write", x, {y});
  const NodeId after = net.Call("after", {view}, {8, 4});
  for (const NodeId n : {before, wait, wait2, write, after}) net.Out(n, SlotKind::kOutput);
  return net.Build();
}

TEST(VerifyPlanInPlace, KeepsReadersOfViewsOnTheirSide) {
  const Graph graph = InPlace();
  Plan plan = ProgramOrder(graph);
  ASSERT_TRUE(VerifyPlan(graph, plan).ok()) << VerifyPlan(graph, plan);
  MoveBefore(plan, Node(graph, "after"), Node(graph, "write"));
  EXPECT_THAT(std::string(VerifyPlan(graph, plan).message()), HasSubstr("changed sides"));
  plan = ProgramOrder(graph);
  MoveBefore(plan, Node(graph, "write"), Node(graph, "before"));
  EXPECT_THAT(std::string(VerifyPlan(graph, plan).message()), HasSubstr("(write) writes in place"));
}

TEST(VerifyPlanInPlace, LetsACollectiveUseItsInputUntilItsWait) {
  const Graph graph = InPlace();
  Plan plan = ProgramOrder(graph);
  // Started before the write, as in program order, but waited for after it.
  MoveBefore(plan, Node(graph, "reduced"), Node(graph, "after"));
  EXPECT_THAT(std::string(VerifyPlan(graph, plan).message()), HasSubstr("changed sides"));
}

TEST(VerifyPlanInPlace, HoldsForBucketsToo) {
  const Graph graph = InPlace();
  Plan plan = WithBuckets(graph, {{"reduce", "reduce2"}});
  ASSERT_TRUE(VerifyPlan(graph, plan).ok()) << VerifyPlan(graph, plan);
  MoveBefore(plan, {Kind::kWait, 0}, Node(graph, "after"));
  EXPECT_THAT(std::string(VerifyPlan(graph, plan).message()), HasSubstr("changed sides"));
}

TEST(StorageSets, ShareOneSetAlongAChainOfViews) {
  Net net(4);
  NodeId x = net.Input("x", {2});
  for (int i = 0; i < 40; ++i) x = net.View("v" + std::to_string(i), x);
  net.Out(x, SlotKind::kOutput);
  EXPECT_TRUE(StorageSets::Of(net.Build(), /*max_entries=*/1).ok());
}

// Every node aliases the one before and a tensor of its own: sets as long as the graph.
TEST(StorageSets, RefuseAliasesThatGrowWithoutBound) {
  GraphBuilder builder("tangle");
  const int64_t shape[] = {2};
  const NodeSpec::Tensor tensor{DType::kF32, shape};
  NodeId last = kNoNode;
  for (int i = 0; i < 100; ++i) {
    NodeSpec input;
    input.kind = NodeKind::kPlaceholder;
    input.op = "placeholder";
    input.role = Role::kInput;
    input.outputs = absl::MakeConstSpan(&tensor, 1);
    const absl::StatusOr<NodeId> own = builder.Add(input);
    ASSERT_TRUE(own.ok()) << own.status();
    const std::vector<NodeId> alias =
        last == kNoNode ? std::vector<NodeId>{*own} : std::vector<NodeId>{last, *own};
    NodeSpec call;
    call.kind = NodeKind::kCall;
    call.op = "aten.tangle.default";
    call.inputs = alias;
    call.alias_of = alias;
    call.outputs = absl::MakeConstSpan(&tensor, 1);
    const absl::StatusOr<NodeId> node = builder.Add(call);
    ASSERT_TRUE(node.ok()) << node.status();
    last = *node;
  }
  NodeSpec output;
  output.kind = NodeKind::kOutput;
  output.op = "output";
  output.inputs = absl::MakeConstSpan(&last, 1);
  const NodeSpec::Slot slot{last, SlotKind::kOutput, ""};
  output.slots = absl::MakeConstSpan(&slot, 1);
  ASSERT_TRUE(builder.Add(output).ok());
  const absl::StatusOr<Graph> graph = std::move(builder).Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(StorageSets::Of(*graph, 5100).ok());
  EXPECT_EQ(StorageSets::Of(*graph, 1000).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(LayOut, PutsSlicesBackToBack) {
  const Graph graph = Step1();
  Bucket gather;
  gather.members = {Named(graph, "AGc"), Named(graph, "AGa")};
  LayOut(graph, gather);
  EXPECT_THAT(gather.offsets, ::testing::ElementsAre(0, 16));  // [2, 4] of bf16
  EXPECT_EQ(gather.slice_bytes, 32);
  EXPECT_EQ(gather.bytes, 128);
}

}  // namespace
}  // namespace bucketd
