#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/base/cancellation.h"
#include "passes/pass/overlap_bucket/overlap_bucket_apply.h"
#include "passes/pass/overlap_bucket/overlap_bucket_find.h"
#include "passes/pass/overlap_bucket/overlap_bucket_relations.h"
#include "passes/pass/upstream/edge_relations.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "tests/passes/overlap_bucket_test_util.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PlanOptions Upstream() {
  PlanOptions options = FreeOptions();
  options.upstream = true;
  return options;
}

std::string After(const Schedule& schedule, const PlanOptions& options = FreeOptions()) {
  return Words(*schedule.graph, BucketOverlap(schedule, options).plan);
}

// The pass with some of torch's defects only.
std::string AfterWith(const Schedule& schedule, const upstream::Defects& defects) {
  const PlanOptions options = FreeOptions();
  PassContext context(*schedule.graph, *schedule.costs, options);
  context.overlap = schedule.overlap;
  context.constraints = FindConstraints(*schedule.graph).value();
  context.directions = CollectiveDirections(*schedule.graph);
  Plan plan = ProgramOrder(*schedule.graph);
  const OverlapBucketPolicy policy;
  const overlap_bucket::Model model = overlap_bucket::Model::Make(context, policy, plan).value();
  overlap_bucket::GroupTimelines timeline(model);
  auto relations = upstream::EdgeRelations::Make(model, defects).value();
  const std::vector<int64_t> limits(model.launches.size(), int64_t{1} << 60);
  const overlap_bucket::Found found =
      overlap_bucket::FindBuckets(model, timeline, *relations, limits);
  overlap_bucket::Applied applied =
      overlap_bucket::Apply(model, plan, found.buckets, *relations).value();
  plan.buckets = applied.buckets;
  plan.order = applied.order;
  EXPECT_TRUE(VerifyPlan(*schedule.graph, plan).ok());
  return Words(*schedule.graph, plan);
}

struct GoldenCase {
  std::string name, words;
  std::map<std::string, std::vector<std::string>> hidden;
  std::string expected;
};

class OverlapBucketGolden : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(OverlapBucketGolden, IsAsTorchHasItWithAndWithoutItsDefects) {
  const Schedule schedule(GetParam().words, GetParam().hidden);
  EXPECT_EQ(After(schedule), GetParam().expected);
  EXPECT_EQ(After(schedule, Upstream()), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Section6_3, OverlapBucketGolden,
    ::testing::Values(
        GoldenCase{
            "TwoUnderOneProduct", "a1 a2 m1 w1 w2", {{"a1", {"m1"}}, {"a2", {"m1"}}}, "A12 m1 W12"},
        GoldenCase{"EachUnderItsOwnIndependentProduct",
                   "a1 m1 w1 a2 m2 w2",
                   {{"a1", {"m1"}}, {"a2", {"m2"}}},
                   "A12 m1 m2 W12"},
        GoldenCase{"TwoGroupsStayApart",
                   "a1 a2@1 m1 w1 w2",
                   {{"a1", {"m1"}}, {"a2", {"m1"}}},
                   "a1 a2 m1 w1 w2"},
        GoldenCase{"ExposedOnesMergeAcrossAProduct", "a1 w1 m1 a2 w2", {}, "A12 m1 W12"},
        GoldenCase{"ScattersThatAreWaitedForLate", "m1 r1 m2 r2 w1 w2", {}, "m1 m2 R12 W12"}),
    [](const auto& golden) { return golden.param.name; });

TEST(OverlapBucket, T6_8_AFailedAttemptPutsEveryEdgeOfItsEventsBack) {
  const Schedule schedule("m1 r1 m2 r2 m3 r3 w1 w2 w3");
  upstream::Defects only_first_member;
  only_first_member.edges_of_first_member = true;
  only_first_member.one_after_the_other = true;
  only_first_member.edges_are_shared = true;
  EXPECT_EQ(After(schedule, Upstream()), "m1 m2 m3 R123 W123");
  EXPECT_EQ(AfterWith(schedule, upstream::Defects::All()), "m1 m2 m3 R123 W123");
  EXPECT_EQ(AfterWith(schedule, only_first_member), "m1 m2 R12 m3 r3 W12 w3");
  EXPECT_EQ(AfterWith(schedule, upstream::Defects()), "m1 m2 m3 R123 W123");
  EXPECT_EQ(After(schedule), "m1 m2 m3 R123 W123");
}

// The exposed gathers move to where the last of them stands. In torch the chain's edge from w2 to
// w3 stays behind when the bucket's wait is taken from w3's event, so that a2, which could join
// there under m1, seems to depend on them.
TEST(OverlapBucket, T6_8_TheEdgesOfAnEventLeaveWithItWhoeverStandsThereNow) {
  const Schedule schedule("a1 a2 a3 m1 w2 w1 w3", {{"a2", {"m1"}}});
  EXPECT_EQ(After(schedule, Upstream()), "a2 A13 m1 w2 W13");
  upstream::Defects only_first_member;
  only_first_member.edges_of_first_member = true;
  EXPECT_EQ(AfterWith(schedule, only_first_member), "a2 A13 m1 w2 W13");
  EXPECT_EQ(After(schedule), "A132 m1 W132");
}

TEST(OverlapBucket, NoPartnersAreLookedForInAPlanThatNobodyWants) {
  const Schedule schedule("m1 r1 m2 r2 m3 r3 w1 w2 w3");
  const std::atomic<bool> cancelled = true;
  const CancellationScope scope(cancelled);
  EXPECT_TRUE(BucketOverlap(schedule).plan.buckets.empty());
  EXPECT_TRUE(BucketOverlap(schedule, Upstream()).plan.buckets.empty());
}

TEST(OverlapBucket, T6_14_ScattersThatAreWaitedForAtOnceMerge) {
  const Schedule two("m1 r1 w1 m2 r2 w2");
  EXPECT_EQ(After(two), "m1 m2 R12 W12");
  EXPECT_EQ(After(two, Upstream()), "m1 r1 w1 m2 r2 w2");
  const Schedule three("m1 r1 w1 m2 r2 w2 m3 r3 w3");
  EXPECT_EQ(After(three), "m1 m2 m3 R123 W123");
  EXPECT_EQ(After(three, Upstream()), "m1 r1 w1 m2 r2 w2 m3 r3 w3");
}

TEST(OverlapBucket, T2_13_WithoutPreBucketingBothSequencesGiveOneScatter) {
  EXPECT_EQ(BucketOverlap(Schedule("m1 r1 w1 m2 r2 w2")).plan.buckets.size(), 1u);
  EXPECT_EQ(BucketOverlap(Schedule("m1 r1 m2 r2 w1 w2")).plan.buckets.size(), 1u);
  EXPECT_EQ(BucketOverlap(Schedule("m1 r1 w1 m2 r2 w2"), Upstream()).plan.buckets.size(), 0u);
  EXPECT_EQ(BucketOverlap(Schedule("m1 r1 m2 r2 w1 w2"), Upstream()).plan.buckets.size(), 1u);
}

// F(3,2) of §6.2 in the scheduler's order; gathers and products are numbered 0 to 5.
std::string Chain(const std::string& order) {
  std::string words;
  for (const absl::string_view word : absl::StrSplit(order, ' ')) {
    std::string text(word);
    if (word[0] == 'm') {
      const int number = word[1] - '0';
      absl::StrAppend(&text, "(w", number, number > 0 ? absl::StrCat(",m", number - 1) : "", ")");
    }
    absl::StrAppend(&words, words.empty() ? "" : " ", text);
  }
  return words;
}

TEST(OverlapBucket, Section6_2_GathersUnderTheProductThatWaitsForTheOneBeforeStayAlone) {
  const std::string order = "a0 w0 a1 m0 w1 a2 m1 w2 a3 m2 w3 a4 m3 w4 a5 m4 w5 m5";
  const Schedule schedule(
      Chain(order),
      {{"a1", {"m0"}}, {"a2", {"m1"}}, {"a3", {"m2"}}, {"a4", {"m3"}}, {"a5", {"m4"}}});
  EXPECT_EQ(After(schedule), order);
  EXPECT_EQ(After(schedule, Upstream()), order);
  EXPECT_FALSE(BucketOverlap(schedule).changed);
}

TEST(OverlapBucket, Section6_2_GathersThatOneLongProductHidesMerge) {
  const Schedule exact(
      Chain("a0 w0 a1 a2 a3 m0 w1 a4 a5 m1 w2 m2 w3 m3 w4 m4 w5 m5"),
      {{"a1", {"m0"}}, {"a2", {"m0"}}, {"a3", {"m0"}}, {"a4", {"m1"}}, {"a5", {"m1"}}});
  const std::string two = "a0 w0 A123 m0 W123 A45 m1 m2 m3 W45 m4 m5";
  EXPECT_EQ(After(exact), two);
  EXPECT_EQ(After(exact, Upstream()), two);
  const Schedule latency(
      Chain("a0 w0 a1 a2 a3 a4 a5 m0 w1 m1 w2 m2 w3 m3 w4 m4 w5 m5"),
      {{"a1", {"m0"}}, {"a2", {"m0"}}, {"a3", {"m0"}}, {"a4", {"m0"}}, {"a5", {"m0"}}});
  const std::string one = "a0 w0 A12345 m0 W12345 m1 m2 m3 m4 m5";
  EXPECT_EQ(After(latency), one);
  EXPECT_EQ(After(latency, Upstream()), one);
}

TEST(OverlapBucket, AMergedLaunchIsHiddenByWhatHidItsMembers) {
  const Schedule schedule("a1 m1 w1 a2 m2 w2", {{"a1", {"m1"}}, {"a2", {"m2"}}});
  const Bucketed result = BucketOverlap(schedule);
  ASSERT_EQ(result.overlap.size(), 1u);
  EXPECT_EQ(result.overlap[0].bucket, 0);
  EXPECT_EQ(result.overlap[0].exposed_ps, 0);
  EXPECT_THAT(result.overlap[0].hidden_by, ElementsAre(schedule.node("m1"), schedule.node("m2")));
}

TEST(OverlapBucket, EveryRandomScheduleStaysLegalAndHidden) {
  size_t buckets = 0, hidden = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    const Schedule schedule = RandomSchedule(seed);
    const absl::StatusOr<Bucketed> result = TryBucket(schedule, FreeOptions());
    ASSERT_TRUE(result.ok()) << "seed " << seed << ": " << result.status();
    EXPECT_THAT(Unhidden(*schedule.graph, result->plan, schedule.overlap), IsEmpty())
        << "seed " << seed;
    buckets += result->plan.buckets.size();
    for (const LaunchOverlap& launch : schedule.overlap) hidden += launch.hidden_by.size();
  }
  EXPECT_GT(buckets, 500u);
  EXPECT_GT(hidden, 5000u);
}

// The fast relations against every edge, searched in full.
TEST(OverlapBucket, T6_8_SlotsAndShortSearchesFindWhatAFullSearchFinds) {
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    const Schedule schedule = RandomSchedule(seed);
    const PlanOptions options = FreeOptions();
    PassContext context(*schedule.graph, *schedule.costs, options);
    context.overlap = schedule.overlap;
    context.constraints = FindConstraints(*schedule.graph).value();
    context.directions = CollectiveDirections(*schedule.graph);
    const Plan plan = ProgramOrder(*schedule.graph);
    const OverlapBucketPolicy policy;
    const overlap_bucket::Model model = overlap_bucket::Model::Make(context, policy, plan).value();
    const std::vector<int64_t> limits(model.launches.size(), int64_t{1} << 60);
    overlap_bucket::GroupTimelines fast_timeline(model), slow_timeline(model);
    overlap_bucket::Quotient fast(model, fast_timeline);
    const auto slow = upstream::EdgeRelations::Make(model, upstream::Defects()).value();
    const overlap_bucket::Found a = overlap_bucket::FindBuckets(model, fast_timeline, fast, limits);
    const overlap_bucket::Found b =
        overlap_bucket::FindBuckets(model, slow_timeline, *slow, limits);
    ASSERT_EQ(a.buckets.size(), b.buckets.size()) << "seed " << seed;
    for (size_t i = 0; i < a.buckets.size(); ++i) {
      ASSERT_EQ(a.buckets[i].launches, b.buckets[i].launches) << "seed " << seed;
    }
    EXPECT_TRUE(overlap_bucket::Apply(model, plan, b.buckets, *slow).ok()) << "seed " << seed;
  }
}

TEST(OverlapBucket, T6_12_WhatHidesAPartStaysBetweenStartAndWait) {
  const std::string words = "a1 m1 es2(m1) a2(es2) m3 w1 w2";
  const Schedule exposed(words);
  EXPECT_EQ(After(exposed), "m1 es2 A12 m3 W12");
  const Schedule partly(words, {{"a1", {"m1"}}}, {{"a1", kMs / 2}});
  EXPECT_EQ(After(partly), "a1 m1 es2 a2 m3 w1 w2");
  EXPECT_EQ(After(partly, Upstream()), "a1 m1 es2 a2 m3 w1 w2");
}

TEST(OverlapBucket, T6_12_AWaitThatHidesAPartMayStillMerge) {
  const std::string words = "a1 a5@1 w5 a6@1 w6 w1";
  const Schedule partly(words, {{"a1", {"w5"}}}, {{"a1", kMs / 2}});
  EXPECT_EQ(After(partly), "a1 A56 W56 w1");
  const Schedule altogether(words, {{"a1", {"w5"}}});
  const Bucketed kept = BucketOverlap(altogether);
  EXPECT_EQ(Words(*altogether.graph, kept.plan), "a1 a5 w5 a6 w6 w1");
  EXPECT_THAT(DiagnosticText(kept.plan, "left-alone"), HasSubstr("hide other collectives"));
}

TEST(OverlapBucket, LaunchesOfDifferentKeysStayApart) {
  EXPECT_EQ(After(Schedule("a1 a2:f32 w1 w2")), "a1 a2 w1 w2");
  EXPECT_EQ(After(Schedule("m1 a0 r1 w0 w1")), "m1 a0 r1 w0 w1");
  EXPECT_EQ(After(Schedule("a1 a2:bw w1:bw w2:bw")), "a1 a2 w1 w2");
  EXPECT_EQ(After(Schedule("a1 a2:bw w1:bw w2:bw"), Upstream()), "A12 W12");
}

TEST(OverlapBucket, BucketsThatCameMergeFurther) {
  const Schedule schedule("a1 a2 m1 w1 w2 a3 a4 m2 w3 w4");
  const auto bucket = [&](const std::string& a, const std::string& b) {
    Bucket made;
    made.members = {schedule.node(a), schedule.node(b)};
    return made;
  };
  const absl::StatusOr<Bucketed> result =
      TryBucket(schedule, FreeOptions(), {bucket("a1", "a2"), bucket("a3", "a4")});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Words(*schedule.graph, result->plan), "A1234 m1 m2 W1234");
  ASSERT_EQ(result->plan.buckets.size(), 1u);
  EXPECT_EQ(result->plan.buckets[0].offsets.size(), 4u);
  ASSERT_EQ(result->overlap.size(), 1u);
  EXPECT_EQ(result->overlap[0].bucket, 0);
}

TEST(OverlapBucket, TheCapClosesABucketAndEqualityIsAllowed) {
  const Schedule schedule("a1 a2 a3 w1 w2 w3");
  PlanOptions options = FreeOptions();
  const int64_t one = 9 * 8 * 64 * 2;  // the shard and eight times as much
  options.overlap_bucket_cap_bytes = 2 * one;
  const Bucketed two = BucketOverlap(schedule, options);
  EXPECT_EQ(Words(*schedule.graph, two.plan), "A12 a3 W12 w3");
  EXPECT_THAT(DiagnosticText(two.plan, "bucket-closed"), HasSubstr("exceed the cap of 18432"));
  EXPECT_THAT(DiagnosticText(two.plan, "left-alone"), HasSubstr("no further candidate"));
  options.overlap_bucket_cap_bytes = 2 * one - 1;
  EXPECT_THAT(BucketOverlap(schedule, options).plan.buckets, IsEmpty());
  options.overlap_bucket_cap_bytes = 3 * one;
  const Bucketed all = BucketOverlap(schedule, options);
  EXPECT_EQ(Words(*schedule.graph, all.plan), "A123 W123");
  EXPECT_EQ(DiagnosticText(all.plan, "bucket-closed"), "no further candidate");
}

// A gather, `products` others, and another gather.
Schedule Apart(int products) {
  std::string words = "a1 w1";
  for (int i = 0; i < products; ++i) absl::StrAppend(&words, " m", i + 10);
  return Schedule(words + " a2 w2");
}

TEST(OverlapBucket, ExposedOnesOfAParameterGroupMergeWithinTwentyPositions) {
  EXPECT_EQ(BucketOverlap(Apart(18)).plan.buckets.size(), 1u);
  const Bucketed far = BucketOverlap(Apart(19));
  EXPECT_THAT(far.plan.buckets, IsEmpty());
  EXPECT_THAT(DiagnosticText(far.plan, "left-alone"), HasSubstr("too far away"));
  PlanOptions options = FreeOptions();
  options.bucket_exposed_first = Choice::kOff;
  EXPECT_EQ(BucketOverlap(Apart(19), options).plan.buckets.size(), 1u);
}

TEST(OverlapBucket, CandidatesEndAtTheDistanceAndAfterTwentyFailures) {
  PlanOptions options = FreeOptions();
  options.max_collective_distance = 1;
  const Schedule schedule("a1 a2 a3 w1 w2 w3");
  EXPECT_EQ(After(schedule, options), "A12 a3 W12 w3");
  // Gathers of what a0 brings, one after the other, then one of a parameter.
  const auto chain = [](int length) {
    std::string words = "a0 w0";
    for (int i = 1; i <= length; ++i) {
      absl::StrAppend(&words, " es", i, "(w", i - 1, ") a", i, "(es", i, ") w", i);
    }
    return Schedule(words + " a99 w99");
  };
  options = FreeOptions();
  options.bucket_exposed_first = Choice::kOff;
  EXPECT_EQ(BucketOverlap(chain(19), options).plan.buckets.size(), 1u);
  const Bucketed given_up = BucketOverlap(chain(20), options);
  EXPECT_EQ(given_up.plan.buckets.size(), 1u);
  EXPECT_THAT(Members(*chain(20).graph, given_up.plan.buckets[0]), ElementsAre("a1", "a99"));
  EXPECT_THAT(Members(*chain(19).graph, BucketOverlap(chain(19), options).plan.buckets[0]),
              ElementsAre("a0", "a99"));
}

TEST(OverlapBucket, OnlyGroupsAcrossNodesMergeIfTheOptionsSaySo) {
  PlanOptions options = FreeOptions();
  options.bucket_only_internode = true;
  EXPECT_EQ(After(Schedule("m1 r1 m2 r2 w1 w2"), options), "m1 r1 m2 r2 w1 w2");
  EXPECT_EQ(After(Schedule("a1 a2 w1 w2"), options), "A12 W12");
}

TEST(OverlapBucket, MemoryDissolvesBucketsUntilThePlanFits) {
  const Schedule schedule("m1 r1 w1 m2 r2 w2 m3 r3 w3 m4 r4 w4 m5 r5 w5 m6 r6 w6");
  const auto peak = [&](const Plan& plan) {
    return Simulate(*schedule.graph, plan, *schedule.costs).prediction.peak_bytes;
  };
  const int64_t before = peak(ProgramOrder(*schedule.graph));
  const Bucketed free = BucketOverlap(schedule);
  EXPECT_EQ(free.plan.buckets.size(), 1u);
  EXPECT_FALSE(HasDiagnostic(free.plan, "bucket-dissolved"));
  PlanOptions options = FreeOptions();
  options.memory_limit_bytes = (before + peak(free.plan)) / 2;
  const Bucketed some = BucketOverlap(schedule, options);
  EXPECT_LE(peak(some.plan), options.memory_limit_bytes);
  EXPECT_FALSE(some.plan.buckets.empty());
  EXPECT_TRUE(HasDiagnostic(some.plan, "bucket-dissolved"));
  options.memory_limit_bytes = before;
  const Bucketed none = BucketOverlap(schedule, options);
  EXPECT_LE(peak(none.plan), before);
  options.upstream = true;  // torch takes no notice
  options.memory_limit_bytes = 1;
  EXPECT_FALSE(HasDiagnostic(BucketOverlap(schedule, options).plan, "bucket-dissolved"));
}

TEST(OverlapBucket, ANodeThatHidesFromOutsideIsRefusedByName) {
  Schedule schedule("a1 m1 w1 m2");
  schedule.overlap[0].hidden_by = {schedule.node("m2")};
  const absl::Status status = TryBucket(schedule, FreeOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("m2"), HasSubstr("a1")));
  schedule.overlap[0].hidden_by = {1000};
  EXPECT_EQ(TryBucket(schedule, FreeOptions()).status().code(), absl::StatusCode::kInvalidArgument);
  schedule.overlap[0].hidden_by.clear();
  schedule.overlap.push_back(schedule.overlap[0]);
  EXPECT_THAT(std::string(TryBucket(schedule, FreeOptions()).status().message()),
              HasSubstr("listed twice"));
}

TEST(OverlapBucket, SwitchedOffItChangesNothing) {
  PlanOptions options = FreeOptions();
  options.overlap_bucketing = false;
  EXPECT_FALSE(BucketOverlap(Schedule("a1 a2 w1 w2"), options).changed);
}

// Each bucket alone is legal; the edges that their failed attempts left make a cycle together.
TEST(OverlapBucket, T6_9_WhatEndsInACycleInTorchHasAnOrderHere) {
  const Schedule schedule("m0 r0 w0 m1(m0) r1 w1 m2 r2 m3(m1) r3 m4(m0) r4 w2 w3 w4");
  PlanOptions options = Upstream();
  const absl::Status cycle = TryBucket(schedule, options).status();
  EXPECT_EQ(cycle.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(cycle.message()), HasSubstr("autofix_cycles"));
  options.autofix_cycles = true;
  EXPECT_TRUE(TryBucket(schedule, options).ok());
  EXPECT_EQ(After(schedule), "m0 m1 m2 m3 m4 R01234 W01234");
}

}  // namespace
}  // namespace bucketd::testing
