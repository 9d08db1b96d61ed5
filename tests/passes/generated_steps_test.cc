// Steps that no captured graph shows: what they are, and what mode auto promises on them.
#include "tests/passes/generated_steps.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "passes/io/profile_json.h"
#include "passes/ir/canonical.h"
#include "passes/planner.h"
#include "passes/sim/sharp_bound.h"
#include "passes/sim/simulator.h"
#include "tests/passes/ladder.h"
#include "tests/passes/perturbed_costs.h"

namespace bucketd::testing {
namespace {

struct Peer {
  const char* name;
  PlanOptions options;
};

// Configurations of PyTorch's passes that peers.json has of the captured graphs.
std::vector<Peer> Peers() {
  PlanOptions greedy, overlap;
  greedy.mode = "greedy";
  overlap.mode = "overlap";
  for (PlanOptions* options : {&greedy, &overlap}) {
    options->upstream = true;
    options->numerics = Numerics::kFree;
  }
  std::vector<Peer> peers = {{"greedy", greedy}, {"overlap", overlap}};
  overlap.max_compute_prefetch = 10;
  peers.push_back({"overlap, a window of 10", overlap});
  overlap.pre_bucketing = false;
  peers.push_back({"overlap, a window of 10, no buckets before", overlap});
  overlap = peers[1].options;
  overlap.pre_bucketing = false;
  peers.push_back({"overlap, no buckets before", overlap});
  overlap.overlap_bucketing = false;
  peers.push_back({"overlap, no buckets", overlap});
  return peers;
}

TEST(GeneratedSteps, AreOfTheSizeThatWasAskedForAndTheSameEveryTime) {
  for (size_t kind = 0; kind < GeneratedKinds().size(); ++kind) {
    const CapturedGraph small = GeneratedStep(kind, 3, false), large = GeneratedStep(kind, 3, true);
    EXPECT_GE(small.graph.size(), 300) << GeneratedKinds()[kind];
    EXPECT_LE(small.graph.size(), 3000) << GeneratedKinds()[kind];
    EXPECT_GE(large.graph.size(), 8000) << GeneratedKinds()[kind];
    EXPECT_EQ(GraphDigest(small.graph), GraphDigest(GeneratedStep(kind, 3, false).graph));
    EXPECT_EQ(small.costs.node_us, GeneratedStep(kind, 3, false).costs.node_us);
    EXPECT_NE(small.costs.node_us, GeneratedStep(kind, 4, false).costs.node_us);
  }
}

TEST(GeneratedSteps, NoPassOfTorchsIsFasterOnLargeMixturesOfExperts) {
  PlanOptions options;
  options.mode = "auto";
  options.numerics = Numerics::kFree;
  int compared = 0;
  for (const size_t kind : {size_t{5}, size_t{6}}) {
    const CapturedGraph step = GeneratedStep(kind, 11, true);
    for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
      const Costs costs = *Costs::FromFile(step.graph, step.costs, profile);
      const absl::StatusOr<Plan> plan = MakePlan(step.graph, costs, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      for (const Peer& peer : Peers()) {
        const absl::StatusOr<Plan> other = MakePlan(step.graph, costs, peer.options);
        if (!other.ok()) continue;  // it refuses the graph
        const int64_t limit = plan->program_order.peak_bytes / 100 * 105;
        if (other->prediction.peak_bytes > limit) continue;
        EXPECT_LE(plan->prediction.total_ps, other->prediction.total_ps)
            << GeneratedKinds()[kind] << " " << profile.name << " " << peer.name;
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, static_cast<int>(Ladder(BuiltInProfiles()).size()) * 5);
}

// What two collectives of tensor parallelism enclose wants its gathers in one bucket. Before the
// search began with such buckets, costs like these, of one set of a distribution that nothing is
// tuned to, left it at 1.4 times the bound: no rule of the decoder and no other mode had them.
TEST(GeneratedSteps, GathersBetweenCollectivesOnThePathShareABucket) {
  PlanOptions options;
  options.mode = "auto";
  options.numerics = Numerics::kFree;
  const CapturedGraph step = GeneratedStep(3, 4102, false);
  const Costs costs =
      *PerturbedCosts(step, *FindProfile("small_batch"), 415'200, 0.3, Perturbation::kGrouped);
  const absl::StatusOr<Plan> plan = MakePlan(step.graph, costs, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(static_cast<double>(plan->prediction.total_ps),
            1.2 * static_cast<double>(SharpBoundOf(step.graph, costs).total_ps));
}

// What plans lose that were made for wires of which `said` was said, in the mean over a small step
// of every kind; those that a sanitizer leaves out lose nothing.
double LostForWires(double said, const CostProfile& profile) {
  PlanOptions options;
  options.mode = "auto";
  options.numerics = Numerics::kFree;
  double lost = 0.0;
  for (size_t kind = 0; kind < GeneratedKinds().size(); kind += kStride) {
    const CapturedGraph step = GeneratedStep(kind, 21, false);
    const Costs truth = *Costs::FromFile(step.graph, step.costs, profile);
    const Costs wrong = truth.WithWires(step.graph, said);
    const absl::StatusOr<Plan> right = MakePlan(step.graph, truth, options);
    const absl::StatusOr<Plan> made = MakePlan(step.graph, wrong, options);
    EXPECT_TRUE(right.ok() && made.ok());
    const auto total = static_cast<double>(Simulate(step.graph, *made, truth).prediction.total_ps);
    lost += total / static_cast<double>(right->prediction.total_ps) - 1.0;
  }
  return lost / static_cast<double>(GeneratedKinds().size());
}

// Said to be bound by wires, most of these steps are less so.
TEST(GeneratedSteps, PlansForWiresThatWereSaidToBeSlowAreGoodOnFasterOnes) {
  EXPECT_LE(LostForWires(1.4, *FindProfile("slow_network")), 0.01);
}

// What hides behind compute is launched earlier for it; 0.061 without a search for slower wires.
TEST(GeneratedSteps, PlansForWiresThatWereSaidToBeFastAreGoodOnSlowerOnes) {
  EXPECT_LE(LostForWires(1 / 1.4, *FindProfile("h100_nvlink")), 0.05);
}

}  // namespace
}  // namespace bucketd::testing
