// Rank agreement where all places are taken: whoever has most gives way to who has less, and nobody
// keeps another one out.
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "server/base/shares.h"
#include "tests/server/machine_world.h"

namespace bucketd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kMebibyte = size_t{1} << 20;

// Four jobs and a hundred calls have places.
class AgreementPlacesTest : public MachineTest {
 protected:
  static JobCall JobOf(const std::string& tenant, const std::string& id, uint32_t rank,
                       uint32_t size, const std::string& scope = "fw") {
    return {.tenant = tenant,
            .id = id,
            .generation = 1,
            .scope = scope,
            .ranks = {rank},
            .size = size,
            .fresh = false,
            .share = ShareOf(tenant, "host", true)};
  }
  Actions Call(const JobCall& job) {
    last_call_ = table_.NewCall();
    return Do(Came(last_call_, job, FakeRequest(1), now_ + seconds(60)));
  }
  // A rank of two: it waits.
  Actions Waits(const std::string& tenant, const std::string& id) {
    return Call(JobOf(tenant, id, 0, 2));
  }
  // What all ranks of a job of one agree on is to be stored.
  StoreAgreed Complete(const std::string& tenant, const std::string& id) {
    const Actions loaded = Loaded(Call(JobOf(tenant, id, 0, 1)));
    return All<StoreAgreed>(Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")}))[0];
  }
  // A job that has agreed: nobody waits for it.
  void Agree(const std::string& tenant, const std::string& id) {
    const StoreAgreed store = Complete(tenant, id);
    EXPECT_THAT(Do(AgreedStored{store.scope, StandingPin{store.pin, store.reply}}).answers,
                SizeIs(1));
  }
  // "tenant/job", in order.
  std::vector<std::string> Jobs() {
    std::vector<std::string> names;
    for (const JobSnapshot& job : table_.Snapshots(now_, {}, 100)) {
      names.push_back(absl::StrCat(job.tenant, "/", job.id));
    }
    return names;
  }
  static size_t CountOf(const Actions& actions, Tally tally) {
    size_t count = 0;
    for (const Count& each : actions.counts) {
      const auto* one = std::get_if<Tally>(&each);
      count += one != nullptr && *one == tally ? 1 : 0;
    }
    return count;
  }
};

TEST_F(AgreementPlacesTest, ATenantThatHasAllJobsGivesHalfOfThemUpToAnotherOne) {
  std::vector<CallId> calls;
  for (const char* id : {"1", "2", "3", "4"}) {
    EXPECT_THAT(Waits("b", id).answers, IsEmpty());
    calls.push_back(last_call_);
  }
  EXPECT_EQ(ErrorOf(Waits("b", "5")), "OVERLOADED") << "whoever has most is refused itself";
  const Actions came = Waits("a", "1");
  ASSERT_THAT(came.answers, SizeIs(1));
  EXPECT_EQ(came.answers[0].first, calls[3]) << "the newest of its jobs";
  EXPECT_EQ(ErrorOf(came), "OVERLOADED");
  EXPECT_THAT(TextOf(came), HasSubstr("most of them yours"));
  EXPECT_EQ(CountOf(came, Tally::kJobDisplaced), 1U);
  EXPECT_TRUE(table_.Waits(last_call_));
  EXPECT_EQ(ErrorOf(Waits("b", "4")), "OVERLOADED");
  EXPECT_THAT(Jobs(), ElementsAre("a/1", "b/1", "b/2", "b/3"));
  Waits("a", "2");
  EXPECT_EQ(ErrorOf(Waits("a", "3")), "OVERLOADED");
  EXPECT_EQ(ErrorOf(Waits("b", "3")), "OVERLOADED");
  EXPECT_THAT(Jobs(), ElementsAre("a/1", "a/2", "b/1", "b/2")) << "even";
  EXPECT_EQ(table_.waiting_ranks(), 4);
}

TEST_F(AgreementPlacesTest, HostsThatAreNotKnownShareJobsWhateverTenantTheyName) {
  for (const char* tenant : {"1", "2", "3", "4"}) {
    JobCall job = JobOf(tenant, "train", 0, 2);
    job.share = ShareOf(tenant, "busy", false);
    Call(job);
  }
  JobCall job = JobOf("1", "other", 0, 2);
  job.share = ShareOf("1", "quiet", false);
  EXPECT_THAT(Call(job).answers, SizeIs(1));
  EXPECT_TRUE(table_.Waits(last_call_));
}

TEST_F(AgreementPlacesTest, OfWhoHasMostTheJobThatNobodyWaitsForGoesFirst) {
  Waits("b", "1");
  Agree("b", "idle");
  Agree("b", "idle too");
  Call(JobOf("b", "idle", 0, 1));  // which is the one that was used last now
  Waits("b", "2");
  EXPECT_THAT(Waits("a", "1").answers, IsEmpty());
  EXPECT_THAT(Jobs(), ElementsAre("a/1", "b/1", "b/2", "b/idle"));
  EXPECT_THAT(Waits("b", "3").answers, IsEmpty()) << "in its own place";
  EXPECT_THAT(Jobs(), ElementsAre("a/1", "b/1", "b/2", "b/3"));
}

TEST_F(AgreementPlacesTest, AJobThatNobodyWaitsForJustNowIsKeptFromWhoHasMore) {
  Agree("a", "idle");
  for (const char* id : {"1", "2", "3"}) Waits("b", id);
  EXPECT_EQ(ErrorOf(Waits("b", "4")), "OVERLOADED");
  EXPECT_THAT(Jobs(), ElementsAre("a/idle", "b/1", "b/2", "b/3"));
}

TEST_F(AgreementPlacesTest, WhereEachHasOneTheJobThatNobodyWaitsForGoes) {
  Waits("a", "1");
  Waits("b", "1");
  Agree("c", "idle");
  Waits("d", "1");
  EXPECT_THAT(Waits("e", "1").answers, IsEmpty());
  EXPECT_THAT(Jobs(), ElementsAre("a/1", "b/1", "d/1", "e/1"));
  EXPECT_EQ(ErrorOf(Waits("f", "1")), "OVERLOADED");
}

TEST_F(AgreementPlacesTest, WhatAJobThatGaveWayWasAboutToKeepIsNotWrittenOverWhatItBeginsAnew) {
  for (const char* id : {"1", "2", "3"}) Waits("b", id);
  const StoreAgreed store = Complete("b", "train");
  EXPECT_TRUE(table_.MemoryOf(store.job, 1, store.scope).ok());
  EXPECT_EQ(ErrorOf(Waits("a", "1")), "OVERLOADED") << "its rank hears of it, and comes again";
  EXPECT_TRUE(absl::IsAborted(table_.MemoryOf(store.job, 1, store.scope).status()));
  Do(JobReleased{JobName("b", "1"), true});
  const Actions again = Call(JobOf("b", "train", 0, 1));
  // Where it was written just before, that stands.
  EXPECT_THAT(Do(AgreedStored{store.scope, StandingPin{store.pin, store.reply}}).answers,
              IsEmpty());
  EXPECT_THAT(All<AnswerFromStore>(Loaded(again, store.pin)), SizeIs(1));
  EXPECT_TRUE(table_.MemoryOf(store.job, 1).ok());
  EXPECT_TRUE(absl::IsAborted(table_.MemoryOf(store.job, 1, store.scope).status()));
}

TEST_F(AgreementPlacesTest, WhoKeepsMostBytesGivesTheJobUpThatKeepsMost) {
  for (const char* id : {"small", "large"}) {
    RankCame came =
        Came(table_.NewCall(), JobOf("b", id, 0, 2), FakeRequest(1), now_ + seconds(60));
    came.signature.resize((id[0] == 'l' ? 258 : 1) * kMebibyte);
    EXPECT_THAT(Do(std::move(came)).answers, IsEmpty());
  }
  EXPECT_EQ(ErrorOf(Waits("b", "more")), "OVERLOADED");
  EXPECT_THAT(Waits("a", "1").answers, SizeIs(1));
  EXPECT_THAT(Jobs(), ElementsAre("a/1", "b/small"));
  EXPECT_THAT(Waits("b", "more").answers, IsEmpty()) << "nothing of it is counted any more";
}

TEST_F(AgreementPlacesTest, WhereNoBytesAreLeftAJobGetsNoScopeMoreUnlessAnotherGivesWay) {
  RankCame came =
      Came(table_.NewCall(), JobOf("b", "large", 0, 2), FakeRequest(1), now_ + seconds(60));
  came.signature.resize(258 * kMebibyte);
  EXPECT_THAT(Do(std::move(came)).answers, IsEmpty());
  EXPECT_EQ(ErrorOf(Call(JobOf("b", "large", 0, 2, "bw"))), "OVERLOADED");
  EXPECT_THAT(Call(JobOf("b", "large", 1, 2)).answers, IsEmpty()) << "what has begun goes on";
  EXPECT_EQ(table_.scopes(), 1);
  // Of who keeps less all that there is stays.
  Do(JobReleased{JobName("b", "large"), true});
  EXPECT_THAT(Waits("a", "small").answers, IsEmpty());
  came = Came(table_.NewCall(), JobOf("b", "large", 0, 2), FakeRequest(1), now_ + seconds(60));
  came.signature.resize(258 * kMebibyte);
  EXPECT_THAT(Do(std::move(came)).answers, IsEmpty());
  EXPECT_THAT(Call(JobOf("a", "small", 0, 2, "bw")).answers, SizeIs(1));
  EXPECT_TRUE(table_.Waits(last_call_));
  EXPECT_THAT(Jobs(), ElementsAre("a/small"));
}

TEST_F(AgreementPlacesTest, WhatAPinOfAnEarlierGenerationBringsCountsAsLongAsItIsKept) {
  const Pin pin = OldPin(std::string(258 * kMebibyte, 'k'));
  const Actions loaded = Loaded(Call(JobOf("b", "train", 0, 1)), pin);
  EXPECT_EQ(ErrorOf(Waits("b", "more")), "OVERLOADED");
  const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
  const StoreAgreed store = All<StoreAgreed>(planned)[0];
  Do(AgreedStored{store.scope, StandingPin{store.pin, store.reply}});
  EXPECT_THAT(Waits("b", "more").answers, IsEmpty());
  EXPECT_THAT(Jobs(), ElementsAre("b/more", "b/train"));
}

// Thousands wait for a pin that is read after a restart.
TEST_F(AgreementPlacesTest, CallsThatAreAnsweredFromOnePinShareIt) {
  const Actions first = Call(JobOf("b", "train", 0, 2));
  Call(JobOf("b", "train", 1, 2));
  const Pin pin{.generation = 1,
                .size = 2,
                .plan_key = FakeRequest(1)->key,
                .profile_as_asked = "p@latest",
                .plan_sha256 = Sha256("plan")};
  const std::vector<AnswerFromStore> answers = All<AnswerFromStore>(Loaded(first, pin));
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].pin, answers[1].pin);
}

TEST_F(AgreementPlacesTest, RanksThatKnowOfAVerdictCountAsLongAsItIsRemembered) {
  RankCame came =
      Came(table_.NewCall(), JobOf("b", "large", 0, 2), FakeRequest(1), now_ + seconds(60));
  came.signature.resize(250 * kMebibyte);
  EXPECT_THAT(Do(std::move(came)).answers, IsEmpty());
  for (const char* scope : {"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}) {
    JobCall all_but_one = JobOf("b", "failed", 0, kMaxRanksOfScope, scope);
    for (uint32_t rank = 1; rank + 1 < kMaxRanksOfScope; ++rank) all_but_one.ranks.push_back(rank);
    Loaded(Do(RankRefused{table_.NewCall(), all_but_one, MakeError(Reason::kJobInvalid, "no")}));
  }
  EXPECT_THAT(Jobs(), ElementsAre("b/failed", "b/large"));
  EXPECT_THAT(Waits("b", "more").answers, IsEmpty());
  EXPECT_THAT(Jobs(), ElementsAre("b/large", "b/more")) << "nobody waits for the failed one";
}

TEST_F(AgreementPlacesTest, WhatALaterGenerationEndsIsRoomForItsScopes) {
  RankCame came =
      Came(table_.NewCall(), JobOf("b", "large", 0, 2), FakeRequest(1), now_ + seconds(60));
  const CallId before = came.call;
  came.signature.resize(258 * kMebibyte);
  EXPECT_THAT(Do(std::move(came)).answers, IsEmpty());
  JobCall later = JobOf("b", "large", 0, 2, "bw");
  ++later.generation;
  EXPECT_EQ(ErrorOf(Call(later)), "GENERATION_OVER") << "the one before it is told";
  EXPECT_FALSE(table_.Waits(before));
  EXPECT_TRUE(table_.Waits(last_call_));
}

TEST_F(AgreementPlacesTest, AJobThatNobodyWaitsForMakesRoomForAScopeOfItsOwn) {
  RankCame came =
      Came(table_.NewCall(), JobOf("b", "train", 0, 1), FakeRequest(1), now_ + seconds(60));
  came.signature.resize(258 * kMebibyte);
  const Actions loaded = Loaded(Do(std::move(came)));
  const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
  const StoreAgreed store = All<StoreAgreed>(planned)[0];
  EXPECT_THAT(Do(AgreedStored{store.scope, StandingPin{store.pin, store.reply}}).answers,
              SizeIs(1));
  EXPECT_THAT(Call(JobOf("b", "train", 0, 1, "bw")).answers, IsEmpty());
  EXPECT_EQ(table_.scopes(), 1) << "the other one is pinned";
  EXPECT_THAT(Jobs(), ElementsAre("b/train"));
}

// ---- places of calls

TEST_F(AgreementPlacesTest, ATenantWhoseRanksHaveAllPlacesGivesSomeUpToAnotherOne) {
  const Actions first = Call(JobOf("b", "train", 0, 101));
  Loaded(first);
  for (uint32_t rank = 1; rank < 100; ++rank) Call(JobOf("b", "train", rank, 101));
  const CallId newest = last_call_;
  EXPECT_EQ(ErrorOf(Call(JobOf("b", "train", 100, 101))), "OVERLOADED");
  const Actions came = Waits("a", "train");
  ASSERT_THAT(came.answers, SizeIs(1));
  EXPECT_EQ(came.answers[0].first, newest);
  EXPECT_EQ(ErrorOf(came), "OVERLOADED");
  EXPECT_EQ(CountOf(came, Tally::kRankDisplaced), 1U);
  EXPECT_TRUE(table_.Waits(last_call_));
  EXPECT_EQ(table_.waiting_ranks(), 100);
  EXPECT_EQ(ErrorOf(Call(JobOf("b", "train", 99, 101))), "OVERLOADED");
  Fire(All<ArmTimer>(first).back());
  const Actions told = Do(PinLoadedAgain{All<LoadScope>(first)[0].scope, std::optional<Pin>()});
  EXPECT_EQ(ErrorOf(told), "RANKS_MISSING");
  EXPECT_THAT(TextOf(told), HasSubstr("ranks 99, 100 came and found no room"));
}

TEST_F(AgreementPlacesTest, AScopeWhoseLastRankGaveWayIsOver) {
  for (uint32_t rank = 0; rank < 99; ++rank) Call(JobOf("b", "train", rank, 100));
  Loaded(Call(JobOf("b", "train", 0, 2, "bw")));
  EXPECT_EQ(table_.scopes(), 2);
  const Actions came = Waits("a", "train");
  EXPECT_THAT(came.answers, SizeIs(1));
  EXPECT_THAT(All<GiveUpFetch>(came), SizeIs(1));
  EXPECT_EQ(table_.scopes(), 2) << "and another one is there";
  EXPECT_THAT(All<LoadScope>(Call(JobOf("b", "train", 0, 2, "bw"))), SizeIs(1)) << "anew";
}

TEST_F(AgreementPlacesTest, AScopeGoesOnWhereOneOfItsOwnRanksGivesWayToAnother) {
  for (uint32_t rank = 0; rank < 2; ++rank) Call(JobOf("b", "busy", rank, 100));
  for (uint32_t call = 0; call < 97; ++call) Call(JobOf("b", "busy", 2, 100));
  Loaded(Call(JobOf("b", "train", 0, 2)));
  const CallId gives_way = last_call_;
  JobCall other = JobOf("b", "train", 1, 2);
  other.share = ShareOf("b", "another host", true);
  const Actions came = Call(other);
  ASSERT_THAT(came.answers, SizeIs(1));
  EXPECT_EQ(came.answers[0].first, gives_way);
  EXPECT_TRUE(table_.Waits(last_call_));
  EXPECT_EQ(table_.scopes(), 2);
  EXPECT_EQ(table_.waiting_ranks(), 4);
}

TEST_F(AgreementPlacesTest, WhoNeedNotWaitTakesNobodysPlace) {
  Agree("a", "train");
  for (uint32_t rank = 0; rank < 100; ++rank) Call(JobOf("b", "train", rank, 101));
  const Actions again = Call(JobOf("a", "train", 0, 1));
  EXPECT_THAT(All<AnswerFromStore>(again), SizeIs(1));
  EXPECT_THAT(again.answers, IsEmpty());
  EXPECT_EQ(table_.waiting_ranks(), 100);
}

}  // namespace
}  // namespace bucketd
