// Which plan mode auto takes: one that holds where costs are not those that it was made from.
#include "passes/auto/choice.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

#include "passes/io/profile_json.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/generated_steps.h"
#include "tests/passes/ladder.h"
#include "tests/passes/perturbed_costs.h"

namespace bucketd::testing {
namespace {

struct Step {
  const char* kind;
  uint32_t seed = 0;
  bool large = false;
  const char* profile;
  uint64_t wrong = 0;  // seed of the costs
};

class ChoiceTest : public ::testing::TestWithParam<Step> {
 protected:
  // What the plan made from wrong costs takes under the true ones, over what the plan takes that
  // knew them.
  static double Loss(const Step& step) {
    const absl::Span<const absl::string_view> kinds = GeneratedKinds();
    const auto kind = static_cast<size_t>(absl::c_find(kinds, step.kind) - kinds.begin());
    const CapturedGraph captured = GeneratedStep(kind, step.seed, step.large);
    const absl::Span<const CostProfile> profiles = BuiltInProfiles();
    const CostProfile& profile =
        *absl::c_find_if(profiles, [&](const CostProfile& p) { return p.name == step.profile; });
    PlanOptions options;
    options.mode = "auto";
    options.numerics = Numerics::kFree;
    const Costs truth = *Costs::FromFile(captured.graph, captured.costs, profile);
    const Costs wrong = *PerturbedCosts(captured, profile, step.wrong, 0.3);
    const auto taken = [&](const Costs& costs) {
      const Plan plan = *MakePlan(captured.graph, costs, options);
      return static_cast<double>(Simulate(captured.graph, plan, truth).prediction.total_ps);
    };
    return taken(wrong) / taken(truth) - 1;
  }
};

// Each lost 3 to 11 % when smaller efforts bounded what a sturdier plan may take, and when every
// reduction was waited for where it ends by the costs that were said once memory did not hold all
// of them to the end.
TEST_P(ChoiceTest, HoldsWhereCostsAreWrong) { EXPECT_LT(Loss(GetParam()), 0.02); }

INSTANTIATE_TEST_SUITE_P(
    Generated, ChoiceTest,
    ::testing::Values(Step{"vision transformer, backward", 9401, false, "slow_network", 3001},
                      Step{"vision transformer, backward", 9401, false, "slow_network", 3002},
                      Step{"vision transformer, backward", 9401, false, "slow_network", 3003},
                      Step{"convolutions, both, replicated", 9402, false, "small_batch", 3001},
                      Step{"convolutions, both, replicated", 9402, false, "small_batch", 3003},
                      Step{"convolutions, both, replicated", 9401, true, "h100_nvlink", 3002},
                      Step{"transformer, backward, tensor parallel", 9401, true, "h100_nvlink",
                           3001}));

// Costs that are off by up to 30 %, as measured ones may be: the plan against the one that knew.
TEST(Choice, APlanFromWrongCostsIsHardlySlowerThanTheOneThatKnewTheTruth) {
  const std::vector<std::string> names = {"llama3_debug_ddp8.bw", "llama3_debug_fsdp8.bw",
                                          "moe_debug_fsdp4_ep4.fw"};
  for (const std::string& name : Ladder(names)) {
    const CapturedGraph captured = Captured(name);
    for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
      if (profile.name == "cpu_loopback") continue;
      PlanOptions options;
      options.mode = "auto";
      options.numerics = Numerics::kFree;
      const absl::StatusOr<Costs> truth = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(truth.ok()) << truth.status();
      const absl::StatusOr<Plan> right = MakePlan(captured.graph, *truth, options);
      ASSERT_TRUE(right.ok()) << right.status();
      for (uint64_t seed = 1; seed <= Seeds(3); ++seed) {
        const absl::StatusOr<Costs> wrong = PerturbedCosts(captured, profile, seed, 0.3);
        ASSERT_TRUE(wrong.ok()) << wrong.status();
        const absl::StatusOr<Plan> plan = MakePlan(captured.graph, *wrong, options);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const int64_t total = Simulate(captured.graph, *plan, *truth).prediction.total_ps;
        EXPECT_LE(total, right->prediction.total_ps / 100 * 103)
            << name << " " << profile.name << " seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace bucketd::testing
