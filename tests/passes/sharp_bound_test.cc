// The sharper lower bound, against every plan there is.
#include "passes/sim/sharp_bound.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "passes/io/profile_json.h"
#include "passes/modes/pass_registry.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "passes/sim/machine.h"
#include "passes/sim/simulator.h"
#include "tests/passes/exact_solver.h"
#include "tests/passes/ladder.h"
#include "tests/passes/tiny_steps.h"

namespace bucketd::testing {
namespace {

using internal::Backlog;
using internal::BatchMachine;
using internal::Job;

TEST(SharpBound, NoPlanOfAnyModeOfAnyCapturedGraphIsFaster) {
  for (const std::string& name : CapturedNames()) {
    const CapturedGraph captured = Captured(name);
    for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
      const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(costs.ok()) << costs.status();
      const int64_t bound = SharpBoundOf(captured.graph, *costs).total_ps;
      // Sharper, but for the picoseconds that every rounding goes down.
      EXPECT_GE(bound + 2 * captured.graph.size(), LowerBoundPs(captured.graph, *costs)) << name;
      for (const ModeInfo& mode : AllModes()) {
        if (mode.name == "manual") continue;
        PlanOptions options;
        options.mode = std::string(mode.name);
        options.numerics = Numerics::kFree;
        options.memory_limit_ppm = 2'000'000;
        options.effort = captured.graph.size() < 3000 ? 3 : 0;
        const absl::StatusOr<Plan> plan = MakePlan(captured.graph, *costs, options);
        if (!plan.ok()) continue;
        EXPECT_LE(bound, plan->prediction.total_ps)
            << name << " " << profile.name << " " << mode.name;
      }
    }
  }
}

TEST(SharpBound, IsAtMostTheOptimumOfTinySteps) {
  int solved = 0, reached = 0;
  for (uint32_t seed = 0; seed < Seeds(700); ++seed) {
    for (size_t kind = 0; kind < kTinyKinds.size(); ++kind) {
      TinyStep step(kind, seed);
      const Graph graph = step.Build();
      const Costs costs = step.CostsOf(graph);
      const Prediction before = Simulate(graph, ProgramOrder(graph), costs).prediction;
      const std::optional<Optimum> best =
          FindOptimum(graph, costs, before.total_ps + 1, /*limit=*/INT64_MAX, /*steps=*/100'000);
      if (!best) continue;
      ++solved;
      const std::string what = std::string(kTinyKinds[kind]) + " seed " + std::to_string(seed);
      const absl::Status legal = VerifyPlan(graph, best->plan);
      ASSERT_TRUE(legal.ok()) << what << ": " << legal;
      ASSERT_EQ(Simulate(graph, best->plan, costs).prediction.total_ps, best->total_ps) << what;
      const int64_t bound = SharpBoundOf(graph, costs).total_ps;
      ASSERT_LE(bound, best->total_ps) << what;
      if (bound + 1000 >= best->total_ps) ++reached;
    }
  }
  EXPECT_GT(solved, Share(3000));
  EXPECT_GT(reached, solved / 4);  // or it would be too weak to say anything
}

// Kernels and collectives by hand: 10 us a kernel, 5 us a collective and 1 us a launch if asked.
int64_t BoundOf(const Graph& graph, double host_us = 0.0) {
  CostProfile profile;
  profile.overlap_slowdown = 0.0;
  profile.host_us_per_kernel = host_us;
  StatedCosts stated;
  for (NodeId n = 0; n < graph.size(); ++n) {
    stated.node_us.push_back(graph.kind(n) == NodeKind::kCall ? 10.0 : 0.0);
  }
  stated.links.assign(graph.collectives().size(), {5.0, 1e30, false});
  const absl::StatusOr<Costs> costs = Costs::FromFile(graph, stated, profile);
  EXPECT_TRUE(costs.ok()) << costs.status();
  return SharpBoundOf(graph, *costs).total_ps / 1'000'000;
}

TEST(SharpBound, AllComputeBetweenTwoCollectivesStandsBetweenThem) {
  Net net;
  const NodeId x = net.Reduce("0", net.Call("a", {net.Input("x", {8, 8})}, {8, 8}));
  const NodeId b = net.Call("b", {x}, {8, 8}), c = net.Call("c", {x}, {8, 8});
  const NodeId y = net.Reduce("1", net.Call("d", {b, c}, {8, 8}));
  net.Out(net.Call("e", {y}, {8, 8}), SlotKind::kOutput);
  EXPECT_EQ(BoundOf(net.Build()), 5 * 10 + 2 * 5);  // the longest path is one kernel shorter
}

// What reads a collective beside its wait waits for nothing.
TEST(LowerBound, IsThatOfPlansInWhichAReaderComesBeforeTheWait) {
  Net net;
  const NodeId start = net.Start(CollectiveKind::kAllGather, "0", net.Parameter("p", {8, 8}));
  const NodeId x = net.Input("x", {8, 8});
  net.Out(net.Reduce("1", net.Call("a", {x, start}, {8, 8})), SlotKind::kOutput);
  const Graph graph = net.Build();
  StatedCosts stated;
  for (NodeId n = 0; n < graph.size(); ++n) {
    stated.node_us.push_back(graph.kind(n) == NodeKind::kCall ? 10.0 : 0.0);
  }
  stated.links.assign(graph.collectives().size(), {50.0, 1e30, false});
  CostProfile profile;
  profile.overlap_slowdown = 0.0;
  const Costs costs = Costs::FromFile(graph, stated, profile).value();
  const int64_t took = Simulate(graph, ProgramOrder(graph), costs).prediction.total_ps;
  EXPECT_LE(LowerBoundPs(graph, costs), took);
  EXPECT_GE(took, 100'000'000) << "two launches of one wire";
}

TEST(SharpBound, TheHostLaunchesOneAfterTheOther) {
  Net net;
  const NodeId x = net.Input("x", {8, 8});
  std::vector<NodeId> all;
  for (int i = 0; i < 7; ++i) all.push_back(net.Call("k" + std::to_string(i), {x}, {8, 8}));
  net.Out(net.Call("last", all, {8, 8}), SlotKind::kOutput);
  EXPECT_EQ(BoundOf(net.Build(), 30.0), 8 * 30 + 10);
}

TEST(SharpBound, DependentCollectivesOfOneKeyPayALatencyEach) {
  Net net;
  NodeId x = net.Input("x", {8, 8});
  for (int i = 0; i < 4; ++i) x = net.Reduce(std::to_string(i), x);
  net.Out(x, SlotKind::kOutput);
  EXPECT_EQ(BoundOf(net.Build()), 4 * 5);
}

TEST(SharpBound, WhoReadsACollectiveWithoutWaitingIsNotHeldUp) {
  Net net;
  const NodeId start = net.Start(CollectiveKind::kAllGather, "g", net.Input("x", {8, 8}));
  net.Out(net.Call("k", {start}, {8, 8}), SlotKind::kOutput);
  EXPECT_EQ(BoundOf(net.Build()), 10);
}

// The least end of all sequences of all batches.
int64_t BestBatches(const std::vector<Job>& jobs, int64_t setup) {
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  int64_t best = INT64_MAX;
  do {
    for (uint32_t cuts = 0; cuts < (1u << (jobs.size() - 1)); ++cuts) {
      int64_t free = 0, end = 0, release = 0, work = 0, tail = 0;
      for (size_t k = 0; k < jobs.size(); ++k) {
        const Job& job = jobs[order[k]];
        release = std::max(release, job.head);
        tail = std::max(tail, job.tail);
        work += job.work;
        if (k + 1 < jobs.size() && ((cuts >> k) & 1) == 0) continue;
        free = std::max(free, release) + setup + work;
        end = std::max(end, free + tail);
        release = work = tail = 0;
      }
      best = std::min(best, end);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(BatchMachine, IsAtMostTheBestBatchesAndExactWhereTailsAreEqual) {
  Random random(3);
  for (int k = 0; k < 400; ++k) {
    std::vector<Job> jobs;
    const bool equal = random.OneIn(2);
    for (int i = 0; i < 1 + random.Below(5); ++i) {
      jobs.push_back({random.Below(40), random.Below(12), equal ? 4 : random.Below(40)});
    }
    const int64_t best = BestBatches(jobs, 5), bound = BatchMachine(jobs, 5);
    EXPECT_LE(bound, best);
    if (equal) {
      EXPECT_EQ(bound, best);
    }
    std::vector<Job> turned = jobs;
    for (Job& job : turned) std::swap(job.head, job.tail);
    EXPECT_EQ(BatchMachine(turned, 5), bound);
  }
}

TEST(Backlog, IsExactForJobsInOrderOfReleaseAndElseALowerBound) {
  Random random(5);
  for (int k = 0; k < 200; ++k) {
    const size_t count = static_cast<size_t>(1 + random.Below(30));
    const bool sorted = random.OneIn(2);
    std::vector<Job> jobs;
    for (size_t i = 0; i < count; ++i) jobs.push_back({random.Below(100), random.Below(9), 0});
    const auto earlier = [](const Job& a, const Job& b) { return a.head < b.head; };
    if (sorted) std::sort(jobs.begin(), jobs.end(), earlier);
    Backlog backlog(count);
    for (const Job& job : jobs) backlog.Add(job.head, job.work);
    std::sort(jobs.begin(), jobs.end(), earlier);
    int64_t end = 0;
    for (const Job& job : jobs) end = std::max(end, job.head) + job.work;
    EXPECT_LE(backlog.end(), end);
    if (sorted) {
      EXPECT_EQ(backlog.end(), end);
    }
  }
}

}  // namespace
}  // namespace bucketd::testing
