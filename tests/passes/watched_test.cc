// Settings that know for which other values a decode would have gone the same way: it does.
#include "passes/auto/watched.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "passes/auto/decoder.h"
#include "passes/auto/knobs.h"
#include "passes/auto/known_scores.h"
#include "passes/io/profile_json.h"
#include "passes/modes/pass_registry.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/ladder.h"

namespace bucketd::testing {
namespace {

using search::Decoded;
using search::Decoder;
using search::Knob;
using search::Problem;
using search::Settings;
using search::Watched;
using search::WatchedSettings;

bool IsSame(const Decoded& a, const Decoded& b) {
  if (!(a.figures == b.figures) || a.order.size() != b.order.size() ||
      a.batches.size() != b.batches.size()) {
    return false;
  }
  for (size_t i = 0; i < a.order.size(); ++i) {
    if (a.order[i].kind != b.order[i].kind || a.order[i].id != b.order[i].id) return false;
  }
  for (size_t i = 0; i < a.batches.size(); ++i) {
    if (a.batches[i].members != b.batches[i].members || a.batches[i].form != b.batches[i].form) {
      return false;
    }
  }
  return true;
}

std::vector<Knob> KnobsFor(const Problem& problem) {
  int64_t alpha = 1, longest = 1;
  for (const search::Transfer& t : problem.transfers) {
    alpha = std::max(alpha, t.alpha_ps);
    longest = std::max(longest, t.alpha_ps + t.wire_ps);
  }
  return search::KnobsOf(alpha, longest, problem.total_ps());
}

// Every knob somewhere else among what is said to make no difference: at the ends where there are
// any, since that is where a threshold that is off by one shows.
Settings Elsewhere(const WatchedSettings& seen, const Settings& from,
                   const std::vector<Knob>& knobs, Random& random) {
  Settings settings = from;
  for (const Knob& knob : knobs) {
    Settings other = settings;
    knob.set(other, random.OneOf(knob.values));
    if (seen.Covers(other)) settings = other;
  }
  WatchedSettings::ForEach([&](auto plain, auto watched) {
    const Watched& range = seen.*watched;
    const int64_t end = random.OneIn(2) ? range.first() : range.last();
    if (random.OneIn(2) || end < 1 || end > 1'000'000'000'000'000) return;
    Settings other = settings;
    other.*plain = static_cast<std::remove_reference_t<decltype(other.*plain)>>(end);
    if (seen.Covers(other)) settings = other;
  });
  return settings;
}

// Returns how many of the other settings differed.
int ExpectSameElsewhere(const PassContext& context, Random& random, int decodes,
                        const std::string& what) {
  const absl::StatusOr<Problem> problem = search::Contract(context);
  EXPECT_TRUE(problem.ok()) << problem.status();
  const std::vector<Knob> knobs = KnobsFor(*problem);
  Decoder decoder(*problem);
  int moved = 0;
  for (int k = 0; k < decodes; ++k) {
    Settings settings;
    for (const Knob& knob : knobs) {
      if (random.OneIn(2)) knob.set(settings, random.OneOf(knob.values));
    }
    const int64_t cap = context.program_order.peak_bytes * (95 + random.Below(20)) / 100;
    const search::Partition buckets = RandomPartition(random, *problem);
    const search::Partition* partition = random.OneIn(2) ? &buckets : nullptr;
    const Decoded first = decoder.Decode(settings, cap, partition);
    const WatchedSettings seen = decoder.settings();
    const Watched seen_cap = decoder.cap();
    EXPECT_TRUE(seen.Covers(settings) && seen_cap.Covers(cap)) << what;
    for (int other = 0; other < 4; ++other) {
      const Settings elsewhere = Elsewhere(seen, settings, knobs, random);
      const int64_t other_cap = random.OneIn(2) ? cap
                                : seen_cap.last() < cap * 1000
                                    ? seen_cap.last()
                                    : std::max<int64_t>(0, seen_cap.first());
      moved += elsewhere == settings && other_cap == cap ? 0 : 1;
      EXPECT_TRUE(IsSame(first, decoder.Decode(elsewhere, other_cap, partition)))
          << what << " decode " << k << "." << other;
    }
  }
  return moved;
}

TEST(Watched, KnowsTheValuesThatWouldHaveAnsweredAlike) {
  Watched w(10);
  EXPECT_TRUE(w.AtLeast(7));
  EXPECT_FALSE(w.AtLeast(15));
  EXPECT_FALSE(w.AtMost(3));
  EXPECT_TRUE(w.Covers(7) && w.Covers(14));
  EXPECT_FALSE(w.Covers(6) || w.Covers(15));
  EXPECT_EQ(w.Exact(), 10);
  EXPECT_FALSE(w.Covers(9) || w.Covers(11));
}

TEST(KnownScores, AnswerForWhatIsCoveredAndAsFarAsTheyWent) {
  search::KnownScores known;
  const Settings settings;
  WatchedSettings seen(settings);
  seen.slack_ps.AtMost(100);
  Watched cap(1000);
  cap.AtLeast(900);
  known.Add(7, seen, cap, 50, {false, 40, 1});
  Settings other = settings;
  other.slack_ps = 100;
  ASSERT_NE(known.Find(7, other, 900, search::kNever), nullptr);  // it came to its end
  EXPECT_EQ(known.Find(7, other, 900, search::kNever)->first, 40);
  EXPECT_EQ(known.Find(8, other, 900, 50), nullptr) << "another partition";
  EXPECT_EQ(known.Find(7, other, 899, 50), nullptr) << "another cap";
  other.slack_ps = 101;
  EXPECT_EQ(known.Find(7, other, 900, 50), nullptr) << "other settings";
  known.Add(9, WatchedSettings(settings), Watched(1000), 50, {false, 60, 1});
  EXPECT_NE(known.Find(9, settings, 1000, 50), nullptr);
  EXPECT_EQ(known.Find(9, settings, 1000, 51), nullptr) << "60 is only a lower bound";
}

TEST(Watched, NoKnobIsForgotten) {
  for (const Knob& knob : search::KnobsOf(1000, 2000, 3000)) {
    const Settings settings;
    WatchedSettings exact(settings);
    WatchedSettings::ForEach([&](auto, auto watched) { (exact.*watched).Exact(); });
    Settings share = settings;
    share.memory_share = 940;
    EXPECT_TRUE(exact.Covers(share));  // asked about as the cap
    for (const int64_t value : knob.values) {
      Settings other = settings;
      knob.set(other, value);
      other.memory_share = settings.memory_share;
      EXPECT_EQ(exact.Covers(other), other == settings);
    }
  }
}

TEST(Watched, OrdersAreTheSameForAllSettingsThatAreCoveredOnRandomGraphs) {
  int moved = 0;
  for (uint32_t seed = 0; seed < Seeds(300); ++seed) {
    const Graph graph = RandomStep(seed).Build();
    const Costs costs = CostsOf(graph);
    PlanOptions options;
    options.numerics = static_cast<Numerics>(1 + seed % 3);
    PassContext context(graph, costs, options);
    Plan plan = ProgramOrder(graph);
    context.program_order = Simulate(graph, plan, costs).prediction;
    ASSERT_TRUE((*MakePass("tag-collectives"))->Run(context, plan).ok());
    Random random(seed);
    moved += ExpectSameElsewhere(context, random, 4, "seed " + std::to_string(seed));
  }
  EXPECT_GT(moved, Share(4000));  // of 4,800
}

TEST(Watched, OrdersAreTheSameForAllSettingsThatAreCoveredOnCapturedGraphs) {
  Random random(1);
  PlanOptions options;
  options.numerics = Numerics::kFree;
  for (const std::string& name : CapturedNames()) {
    const CapturedGraph captured = Captured(name);
    for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
      const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(costs.ok()) << costs.status();
      PassContext context(captured.graph, *costs, options);
      Plan plan = ProgramOrder(captured.graph);
      context.program_order = Simulate(captured.graph, plan, *costs).prediction;
      ASSERT_TRUE((*MakePass("tag-collectives"))->Run(context, plan).ok());
      ExpectSameElsewhere(context, random, captured.graph.size() > 3000 ? 2 : 12,
                          name + " " + profile.name);
    }
  }
}

}  // namespace
}  // namespace bucketd::testing
