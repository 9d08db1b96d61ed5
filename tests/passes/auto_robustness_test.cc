// How orders fare under perturbed costs, and what a search finds on its way.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "passes/auto/decoder.h"
#include "passes/auto/order_replay.h"
#include "passes/auto/robustness.h"
#include "passes/auto/search.h"
#include "passes/io/profile_json.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/contracted.h"

namespace bucketd::testing {
namespace {

using search::Decoded;
using search::Decoder;
using search::kNever;
using search::Problem;
using search::RobustnessEvaluator;

constexpr search::Errors kNone = {0, 0};

// Every order as it stands, with waits where the decoder has them and late.
TEST(RobustnessEvaluator, WithoutErrorsEveryCaseTakesWhatTheSimulatorSays) {
  for (uint32_t seed = 5000; seed < 5200; ++seed) {
    const Contracted step(RandomStep(seed).Build());
    Decoder decoder(step.problem);
    RobustnessEvaluator evaluator(step.problem, RobustnessEvaluator::kFewCases, kNone);
    search::OrderReplay replay(step.problem, kNever);
    for (const int64_t slack_ps : {int64_t{0}, search::kForever}) {
      search::Settings settings;
      settings.slack_ps = slack_ps;
      const Decoded& decoded = decoder.Decode(settings, kNever, nullptr);
      EXPECT_EQ(evaluator.Of(decoded, kNever), 4 * step.Simulated(decoded).total_ps)
          << "seed " << seed;
      const Decoded& late = replay.Late(decoded);
      EXPECT_EQ(evaluator.Of(late, kNever), 4 * step.Simulated(late).total_ps) << "seed " << seed;
    }
  }
}

TEST(RobustnessEvaluator, WithoutErrorsCapturedGraphsTakeWhatTheSimulatorSays) {
  for (const char* const name :
       {"llama3_debug_fsdp8.bw", "llama3_debug_ddp8.bw", "llama3_debug_fsdp4_tp2.fw"}) {
    const CapturedGraph captured = Captured(name);
    for (const CostProfile& profile : BuiltInProfiles()) {
      const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(costs.ok()) << costs.status();
      const Contracted step(captured.graph, *costs);
      Decoder decoder(step.problem);
      RobustnessEvaluator evaluator(step.problem, RobustnessEvaluator::kCases, kNone);
      for (const int32_t compute_weight : {20, 1000}) {
        search::Settings settings;
        settings.slack_ps = search::kForever;
        settings.wire_weight = 1020 - compute_weight;
        settings.compute_weight = compute_weight;
        const Decoded& decoded = decoder.Decode(settings, kNever, nullptr);
        EXPECT_EQ(evaluator.Of(decoded, kNever), 16 * decoded.figures.total_ps)
            << name << " " << profile.name;
      }
    }
  }
}

TEST(RobustnessEvaluator, ErrorsInOppositeDirectionsCancelOutWhereNothingOverlaps) {
  for (uint32_t seed = 5200; seed < 5230; ++seed) {
    const Contracted step(RandomStep(seed).Build(/*with_collectives=*/false));
    Decoder decoder(step.problem);
    RobustnessEvaluator evaluator(step.problem);
    const Decoded& decoded = decoder.Decode({}, kNever, nullptr);
    const int64_t sum = evaluator.Of(decoded, kNever);
    const int64_t rounding = RobustnessEvaluator::kCases * int64_t{step.problem.size()};
    EXPECT_LE(sum, RobustnessEvaluator::kCases * decoded.figures.total_ps) << "seed " << seed;
    EXPECT_GE(sum, RobustnessEvaluator::kCases * decoded.figures.total_ps - rounding)
        << "seed " << seed;
  }
}

TEST(RobustnessEvaluator, WhatIsNotAboveTheMostIsExact) {
  int64_t cut_short = 0;
  for (uint32_t seed = 5300; seed < 5330; ++seed) {
    const Contracted step(RandomStep(seed).Build());
    Decoder decoder(step.problem);
    RobustnessEvaluator evaluator(step.problem);
    const Decoded& decoded = decoder.Decode({}, kNever, nullptr);
    const int64_t sum = evaluator.Of(decoded, kNever), steps = evaluator.replayed();
    EXPECT_EQ(evaluator.Of(decoded, kNever), sum) << "seed " << seed;
    for (const int64_t percent : {80, 99, 101, 120}) {
      const int64_t most = sum / 100 * percent, found = evaluator.Of(decoded, most);
      if (found <= most) {
        EXPECT_EQ(found, sum) << "seed " << seed << " " << percent << " %";
      }
      EXPECT_EQ(found > most, percent < 100 || found != sum) << "seed " << seed;
      if (evaluator.replayed() < steps) ++cut_short;
    }
  }
  EXPECT_GT(cut_short, 0);
}

TEST(RobustnessEvaluator, LookingAroundNeverTakesLongerThanTheCeilingAndFaresNoWorse) {
  int64_t better = 0;
  for (uint32_t seed = 5400; seed < 5460; ++seed) {
    const Contracted step(RandomStep(seed).Build());
    search::Search search(step.problem, kNever, {{50 * step.problem.size(), 0}});
    search.Run();
    RobustnessEvaluator evaluator(step.problem);
    search::OrderReplay replay(step.problem, kNever);
    const auto score_of = [&](const Decoded& decoded) {
      return evaluator.Of(replay.Late(decoded), kNever) +
             evaluator.cases() / search::kCasesOfNominal * decoded.figures.total_ps;
    };
    const int64_t before = score_of(search.best().decoded);
    const int64_t ceiling = search.score().first + search.score().first / 50;
    search::Search around(step.problem, kNever, {{100 * step.problem.size(), 0}});
    around.EvaluateBy(evaluator, replay, ceiling);
    around.Adopt(search.best());
    around.LookAround();
    EXPECT_LE(around.best().decoded.figures.total_ps, ceiling) << "seed " << seed;
    EXPECT_EQ(score_of(around.best().decoded), around.score().first) << "seed " << seed;
    EXPECT_LE(around.score().first, before) << "seed " << seed;
    if (around.score().first < before) ++better;
  }
  EXPECT_GT(better, 0);
}

TEST(Search, AtAStopOnTheWayItHasFoundWhatASearchThatEndsThereFinds) {
  for (uint32_t seed = 5500; seed < 5520; ++seed) {
    const Contracted step(RandomStep(seed).Build());
    const int64_t size = step.problem.size();
    const std::vector<search::Stop> stops = {{5 * size, 0}, {40 * size, 0}, {300 * size, 0}};
    std::vector<search::Score> on_the_way;
    search::Search all(step.problem, kNever, stops, [&](size_t stop) {
      EXPECT_EQ(stop, on_the_way.size());
      on_the_way.push_back(all.score());
    });
    all.Run();
    ASSERT_EQ(on_the_way.size(), stops.size());
    for (size_t i = 0; i < stops.size(); ++i) {
      search::Search alone(step.problem, kNever, {stops[i]});
      alone.Run();
      EXPECT_EQ(alone.score(), on_the_way[i]) << "seed " << seed << " stop " << i;
    }
  }
}

}  // namespace
}  // namespace bucketd::testing
