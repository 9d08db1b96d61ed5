// Waits where they are needed: robust against a wire that is slower than its costs say.
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/auto/order_replay.h"
#include "passes/auto/search.h"
#include "passes/auto/to_plan.h"
#include "passes/io/profile_json.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/contracted.h"
#include "tests/passes/generated_steps.h"
#include "tests/passes/ladder.h"

namespace bucketd::testing {
namespace {

using search::Decoded;
using search::Problem;

// How late waits stand: the compute before them, in nanoseconds, summed over all.
int64_t Lateness(const Graph& graph, const Costs& costs, const Plan& plan) {
  int64_t sum = 0, compute_ps = 0;
  for (const Step& step : plan.order) {
    const bool node = step.kind == Step::Kind::kNode;
    if (step.kind == Step::Kind::kWait || (node && graph.kind(step.id) == NodeKind::kWait)) {
      sum += compute_ps / 1000;
    } else if (node && graph.kind(step.id) != NodeKind::kCollective) {
      compute_ps += costs.node_ps(step.id);
    }
  }
  return sum;
}

// A plan of the search's before and after.
void Check(const std::string& what, const Graph& graph, const Costs& costs, int64_t decodes,
           int64_t& late_before, int64_t& late_after) {
  const Contracted step(graph, costs);
  search::Search search(step.problem, step.limit(), {{decodes * step.problem.size(), 0}});
  search.Run();
  const Decoded& best = search.best().decoded;
  const Prediction before = step.Simulated(best);
  late_before += Lateness(graph, costs, step.PlanOf(best));
  search::OrderReplay replay(step.problem, step.limit());
  const Decoded& late = replay.Late(best);
  const Plan plan = step.PlanOf(late);
  late_after += Lateness(graph, costs, plan);
  EXPECT_TRUE(VerifyPlan(graph, plan).ok()) << what << VerifyPlan(graph, plan);
  EXPECT_LE(late.figures.total_ps, before.total_ps) << what;
  EXPECT_LE(late.figures.peak_bytes, std::max(step.limit(), before.peak_bytes)) << what;
  const Prediction again = step.Simulated(late);
  EXPECT_EQ(again.total_ps, late.figures.total_ps) << what;
  EXPECT_EQ(again.peak_bytes, late.figures.peak_bytes) << what;
}

TEST(LateWaits, KeepLegalityTimeAndMemoryOnRandomSteps) {
  int64_t before = 0, after = 0;
  for (uint32_t seed = 3000; seed < 3000 + Seeds(300); ++seed) {
    const Graph graph = RandomStep(seed).Build();
    Check(absl::StrCat("seed ", seed), graph, CostsOf(graph), 10, before, after);
  }
  EXPECT_GT(after, before);
}

// Kernels between the wait of a batch, at `place`, and who needs it first, or the end.
int KernelsBeforeUse(const Problem& problem, const Decoded& order, size_t place) {
  std::vector<search::LeaderId> waits;
  const auto members = [&](const search::Action& action) {
    return order.batches[Index(action.id)].members;
  };
  for (const CollectiveId c : members(order.order[place])) {
    waits.push_back(problem.transfer(c).wait);
  }
  const auto needs = [&](search::LeaderId l) {
    const auto before = problem.before.of(l);
    return std::any_of(before.begin(), before.end(), [&](search::LeaderId x) {
      return std::count(waits.begin(), waits.end(), x);
    });
  };
  int kernels = 0;
  for (size_t i = place + 1; i < order.order.size(); ++i) {
    const search::Action& action = order.order[i];
    if (action.kind == search::Action::Kind::kRun) {
      if (needs(action.id)) break;
      kernels += problem.cost[Index(action.id)] > 0 && !problem.is_post[Index(action.id)];
    } else if (action.kind == search::Action::Kind::kLaunch) {
      const std::vector<CollectiveId> launched = members(action);
      if (std::any_of(launched.begin(), launched.end(),
                      [&](CollectiveId c) { return needs(problem.transfer(c).start); })) {
        break;
      }
    }
  }
  return kernels;
}

// Buckets of every form, in memory that holds everything. What is computed from a result without
// taking time is put off like the result.
TEST(LateWaits, StandRightBeforeWhoeverNeedsThem) {
  int looked_at = 0;
  for (uint32_t seed = 3000; seed < 3000 + Seeds(300); ++seed) {
    const Contracted step(RandomStep(seed).Build());
    const Problem& problem = step.problem;
    search::Decoder decoder(problem);
    search::Settings settings;
    settings.slack_ps = search::kForever;
    Decoded order = decoder.Decode(settings, search::kNever, nullptr);
    for (search::Batch& batch : order.batches) {
      if (batch.members.size() > 1) batch.form = static_cast<search::Form>(1 + seed % 3);
    }
    order.figures.total_ps = search::kNever;
    search::OrderReplay replay(problem, search::kNever);
    const Decoded& late = replay.Late(order);
    for (size_t i = 0; i < late.order.size(); ++i) {
      if (late.order[i].kind != search::Action::Kind::kWait) continue;
      const auto idle = [&](CollectiveId c) {
        const search::Transfer& t = problem.transfer(c);
        const auto after = problem.after.of(t.wait);
        return t.pinned || std::any_of(after.begin(), after.end(), [&](search::LeaderId l) {
                 return problem.cost[Index(l)] == 0 || problem.is_post[Index(l)];
               });
      };
      const std::vector<CollectiveId>& members = late.batches[Index(late.order[i].id)].members;
      if (std::any_of(members.begin(), members.end(), idle)) continue;
      EXPECT_EQ(KernelsBeforeUse(problem, late, i), 0) << "seed " << seed << " action " << i;
      ++looked_at;
    }
  }
  EXPECT_GT(looked_at, Share(300));
}

TEST(LateWaits, StandWhereTheyAreNeededInCapturedGraphs) {
  for (const char* const name : {"llama3_debug_fsdp8.bw", "llama3_debug_fsdp4_tp2.fw"}) {
    int64_t before = 0, after = 0;
    const CapturedGraph captured = Captured(name);
    for (const CostProfile& profile : BuiltInProfiles()) {
      const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(costs.ok()) << costs.status();
      Check(absl::StrCat(name, " ", profile.name), captured.graph, *costs, 30, before, after);
    }
    EXPECT_GT(after, before) << name;
  }
}

// An order whose late waits memory does not hold stays as it is, with every wait where its
// collective ends: that should be rare.
TEST(LateWaits, MemoryHoldsThoseOfNearlyEveryOrder) {
  int orders = 0, kept = 0;
  for (uint32_t seed = 1; seed <= Seeds(2); ++seed) {
    for (size_t kind = 0; kind < GeneratedKinds().size(); ++kind) {
      const CapturedGraph step = GeneratedStep(kind, seed, false);
      for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
        const Costs costs = *Costs::FromFile(step.graph, step.costs, profile);
        const Contracted contracted(step.graph, costs);
        const Problem& problem = contracted.problem;
        const int64_t limit = contracted.limit();
        search::Decoder decoder(problem);
        search::OrderReplay replay(problem, limit);
        const search::Units units = {1'000'000, 100'000'000, problem.total_ps()};
        for (const search::Start& start : search::StartsOf(units)) {
          const Decoded& order = decoder.Decode(start.settings, limit, nullptr);
          if (order.figures.peak_bytes > limit) continue;
          ++orders;
          if (&replay.Late(order) == &order) ++kept;
        }
      }
    }
  }
  EXPECT_GT(orders, Share(200));
  EXPECT_LT(kept, orders / 10) << orders;
}

TEST(LateWaits, StayBeforeWhoeverWritesWhatTheirCollectiveReads) {
  Net net;
  const NodeId x = net.Call("x", {net.Input("in", {512, 512})}, {512, 512});
  const NodeId start = net.Start(CollectiveKind::kAllReduce, "r", x, ReduceOp::kSum);
  NodeId h = net.Input("h", {512, 512});
  for (int i = 0; i < 20; ++i) h = net.Call(absl::StrCat("mm", i), {h}, {512, 512});
  const NodeId reduced = net.Wait("r", start);
  const NodeId written = net.Mutate("add_", x);
  for (int i = 20; i < 30; ++i) h = net.Call(absl::StrCat("mm", i), {h}, {512, 512});
  net.Out(net.Call("last", {h, reduced, written}, {512, 512}), SlotKind::kOutput);
  const Graph graph = net.Build();
  int64_t before = 0, after = 0;
  Check("", graph, CostsOf(graph), 10, before, after);
}

// Memory decides of each wait alone. That for a gather without a cast frees nothing, so it does not
// come early.
TEST(LateWaits, StandAsLateAsMemoryLetsEachOfThem) {
  Net net(4);
  NodeId h = net.Input("h", {64, 64});
  const NodeId weight = net.Gather("w", net.Parameter("w", {16, 64}));
  std::vector<NodeId> updates;
  for (int i = 0; i < 8; ++i) {
    h = net.Call(absl::StrCat("mm", i), {h}, {64, 64}, kComputeFlag);
    const int64_t rows = i == 2 ? 4096 : 64;  // the third one's gradient is large
    const NodeId gradient = net.Call(absl::StrCat("grad", i), {h}, {rows, 64}, kComputeFlag);
    const NodeId reduced = net.Reduce(absl::StrCat("r", i), gradient);
    updates.push_back(net.Call(absl::StrCat("update", i), {reduced}, {1, 64}, kComputeFlag));
  }
  net.Out(net.Call("last", {h, weight}, {64, 64}, kComputeFlag), SlotKind::kOutput);
  for (const NodeId update : updates) net.Out(update, SlotKind::kOutput);
  const Contracted step(net.Build());
  const Problem& problem = step.problem;
  Decoded order = search::OrderOf(step.graph, problem, step.program_order);
  order.figures.total_ps = search::kNever;
  // Of each wait, how many kernels are still to come, apart from what is computed from reductions.
  const auto behind = [&](const Decoded& decoded) {
    std::vector<int> left(decoded.batches.size());
    int kernels = 0;
    for (size_t i = decoded.order.size(); i-- > 0;) {
      const search::Action& action = decoded.order[i];
      if (action.kind == search::Action::Kind::kRun) kernels += !problem.is_post[Index(action.id)];
      if (action.kind == search::Action::Kind::kWait) left[Index(action.id)] = kernels;
    }
    return left;
  };
  search::OrderReplay roomy(problem, search::kNever);
  const Decoded anywhere = roomy.Late(order);
  EXPECT_THAT(behind(anywhere), ::testing::ElementsAre(1, 0, 0, 0, 0, 0, 0, 0, 0));
  // Less than that takes: some wait has to stand before.
  search::OrderReplay tight(problem, anywhere.figures.peak_bytes / 20 * 19);
  const Decoded fitting = tight.Late(order);
  EXPECT_LT(fitting.figures.peak_bytes, anywhere.figures.peak_bytes);
  const std::vector<int> left = behind(fitting);
  EXPECT_EQ(left[0], 1) << "the gather's";
  EXPECT_GT(std::accumulate(left.begin() + 1, left.end(), 0), 0);
  EXPECT_GT(std::count(left.begin(), left.end(), 0), 4);
}

// Kernels that take no time are put off like the wait that they need, whether or not another one
// needs them, however many hang on one another.
TEST(LateWaits, StandBeforeChainsOfAnyLength) {
  for (const bool needed : {true, false}) {
    Net net;
    NodeId h = net.Gather("w", net.Parameter("w", {1, 8}));
    for (int i = 0; i < 200'000; ++i) h = net.Call(absl::StrCat("h", i), {h}, {8, 8});
    net.Out(needed ? net.Call("mm", {h}, {8, 8}) : h, SlotKind::kOutput);
    const Contracted step(net.Build());
    Decoded order = search::OrderOf(step.graph, step.problem, step.program_order);
    order.figures.total_ps = search::kNever;
    search::OrderReplay replay(step.problem, search::kNever);
    const Decoded& late = replay.Late(order);
    EXPECT_NE(&late, &order);
    EXPECT_EQ(late.order.size(), order.order.size());
  }
}

// Memory is full all the time, and what waits for room is one of very many.
TEST(LateWaits, OfManyReductionsInLittleMemoryTakeNoMoreThanMomentsToPlace) {
  Net net;
  const NodeId x = net.Input("x", {8, 8});
  for (int i = 0; i < 100'000; ++i) {
    const NodeId gradient = net.Call(absl::StrCat("g", i), {x}, {64, 8});
    net.Out(net.Scatter(absl::StrCat("r", i), gradient), SlotKind::kOutput);
  }
  const Contracted step(net.Build());
  Decoded order = search::OrderOf(step.graph, step.problem, step.program_order);
  order.figures.total_ps = search::kNever;
  search::OrderReplay replay(step.problem, step.limit());
  const std::clock_t before = std::clock();
  const Decoded& late = replay.Late(order);
  EXPECT_LT(std::clock() - before, 5 * CLOCKS_PER_SEC);
  EXPECT_NE(&late, &order);
  EXPECT_LE(late.figures.peak_bytes, step.limit());
}

}  // namespace
}  // namespace bucketd::testing
