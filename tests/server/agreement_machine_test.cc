// Rank agreement as a state machine: events and times in, actions out; nothing waits.
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "server/jobs/machine/scope_errors.h"
#include "tests/server/machine_world.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AgreementMachineTest : public MachineTest {};

TEST_F(AgreementMachineTest, AsksForThePlanBeforeAllRanksHaveCome) {
  const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1)));
  EXPECT_THAT(All<AskBroker>(loaded), SizeIs(1));
  EXPECT_THAT(loaded.answers, IsEmpty());
}

TEST_F(AgreementMachineTest, AnswersNobodyBeforeThePinIsStored) {
  const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1)));
  Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
  const Actions complete = Rank(1, 2, FakeRequest(1));
  EXPECT_THAT(complete.answers, IsEmpty());
  const std::vector<StoreAgreed> store = All<StoreAgreed>(complete);
  ASSERT_THAT(store, SizeIs(1));
  const Actions stored =
      Do(AgreedStored{store[0].scope, StandingPin{store[0].pin, store[0].reply}});
  ASSERT_THAT(stored.answers, SizeIs(2));
  EXPECT_EQ(stored.answers[0].second->reply, stored.answers[1].second->reply);
}

TEST_F(AgreementMachineTest, LooksForThePinOfAnotherServerBeforeRanksAreCalledMissing) {
  const Actions first = Rank(0, 2, FakeRequest(1));
  Loaded(first);
  const Actions late = Fire(All<ArmTimer>(first).back());
  EXPECT_THAT(late.answers, IsEmpty());
  const std::vector<LoadPinAgain> again = All<LoadPinAgain>(late);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(ErrorOf(Do(PinLoadedAgain{again[0].scope, std::optional<Pin>()})), "RANKS_MISSING");
}

TEST_F(AgreementMachineTest, AStoreThatIsSlowerThanTheDeadlineHoldsNobody) {
  const Actions first = Rank(0, 2, FakeRequest(1));
  const Actions late = Fire(All<ArmTimer>(first).back());
  const std::vector<LoadPinAgain> again = All<LoadPinAgain>(late);
  ASSERT_THAT(again, SizeIs(1));
  const Actions told = Do(PinLoadedAgain{again[0].scope, absl::UnavailableError("busy")});
  EXPECT_EQ(ErrorOf(told), "RANKS_MISSING");
}

TEST_F(AgreementMachineTest, AStoreThatDoesNotAnswerKeepsNobodyFromHearingWhoIsMissing) {
  const Actions first = Rank(0, 2, FakeRequest(1));
  const SteadyTime deadline = All<ArmTimer>(first).back().at;
  const Actions late = Fire(All<ArmTimer>(first).back());
  const std::vector<LoadPinAgain> again = All<LoadPinAgain>(late);
  ASSERT_THAT(again, SizeIs(1));
  const std::vector<ArmTimer> grace = All<ArmTimer>(late);
  ASSERT_THAT(grace, SizeIs(1));
  EXPECT_LT(grace[0].at - deadline, milliseconds(250)) << "of its caller's that is left";
  EXPECT_EQ(ErrorOf(Fire(grace[0])), "RANKS_MISSING");
  EXPECT_THAT(Do(PinLoadedAgain{again[0].scope, std::optional<Pin>()}).answers, IsEmpty());
}

TEST_F(AgreementMachineTest,
       TheDeadlineIsACallersLessAQuarterOfSecondAndATenthOfAMillisecondARank) {
  const Actions first = Rank(0, 10, FakeRequest(1));
  EXPECT_EQ(All<ArmTimer>(first).back().at, now_ + seconds(60) - milliseconds(251));
}

TEST_F(AgreementMachineTest, ARankThatFoundNoRoomIsNamedToThoseThatWaitForIt) {
  const Actions first = Rank(0, 101, FakeRequest(1));
  Loaded(first);
  for (uint32_t rank = 1; rank < 100; ++rank) Rank(rank, 101, FakeRequest(1));
  EXPECT_EQ(ErrorOf(Rank(100, 101, FakeRequest(1))), "OVERLOADED") << "100 may wait";
  const std::vector<LoadPinAgain> again = All<LoadPinAgain>(Fire(All<ArmTimer>(first).back()));
  ASSERT_THAT(again, SizeIs(1));
  const Actions told = Do(PinLoadedAgain{again[0].scope, std::optional<Pin>()});
  ASSERT_THAT(told.answers, SizeIs(100));
  EXPECT_EQ(ErrorOf(told), "RANKS_MISSING");
  EXPECT_THAT(std::string(told.answers[0].second.status().message()),
              HasSubstr("rank 100 came and found no room"));
}

TEST_F(AgreementMachineTest, AnOverloadedBrokerIsAskedAgainIn200Milliseconds) {
  const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1)));
  const Actions refused =
      Do(PlanCame{All<AskBroker>(loaded)[0].fetch, MakeError(Reason::kOverloaded, "no room")});
  ASSERT_THAT(All<ArmTimer>(refused), SizeIs(1));
  EXPECT_EQ(All<ArmTimer>(refused)[0].at, now_ + milliseconds(200));
  EXPECT_THAT(All<AskBroker>(refused), IsEmpty());
  EXPECT_THAT(All<AskBroker>(Fire(All<ArmTimer>(refused)[0])), SizeIs(1));
}

TEST_F(AgreementMachineTest, TheRankThatHasWaitedLongestIsAskedForTheGraphAndIsThenAway) {
  const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1)));
  Rank(1, 2, FakeRequest(1));
  EXPECT_EQ(table_.waiting_ranks(), 2);
  const Actions asked =
      Do(PlanCame{All<AskBroker>(loaded)[0].fetch, PlanAnswer{PlanOutcome::kGraphRequired, {}, 7}});
  ASSERT_THAT(asked.answers, SizeIs(1));
  EXPECT_EQ(asked.answers[0].second->upload_lease_ms, 7);
  EXPECT_EQ(table_.waiting_ranks(), 1);
  EXPECT_THAT(All<AskBroker>(asked),
              SizeIs(1));  // whoever waits stays in the broker's queue
}

TEST_F(AgreementMachineTest, WhoWasAskedForTheGraphAndStaysAwayLeavesNoScopeBehind) {
  const Actions came = Rank(0, 2, FakeRequest(1));
  const Actions loaded = Loaded(came);
  Do(PlanCame{All<AskBroker>(loaded)[0].fetch, PlanAnswer{PlanOutcome::kGraphRequired, {}, 7}});
  EXPECT_EQ(table_.waiting_ranks(), 0);
  EXPECT_EQ(table_.scopes(), 1);
  Fire(All<ArmTimer>(came).back());
  EXPECT_EQ(table_.scopes(), 0);
}

TEST_F(AgreementMachineTest, NoCallLeadsAJobIntoAGenerationThatNoCountLeadsTo) {
  const auto call = [&](uint64_t generation) {
    const JobCall job{.tenant = "",
                      .id = "train",
                      .generation = generation,
                      .scope = "fw",
                      .ranks = {0},
                      .size = 1,
                      .fresh = false};
    return Do(Came(table_.NewCall(), job, FakeRequest(1), now_ + seconds(60)));
  };
  EXPECT_EQ(ErrorOf(call(1'000'001)), "JOB_INVALID");
  EXPECT_EQ(table_.jobs(), 0);
  EXPECT_THAT(call(7).answers, IsEmpty());
  for (const uint64_t far : {uint64_t{1008}, UINT64_MAX}) {
    EXPECT_EQ(ErrorOf(call(far)), "JOB_INVALID");
    EXPECT_EQ(table_.waiting_ranks(), 1) << "who waits goes on";
  }
  EXPECT_EQ(ErrorOf(call(1007)), "GENERATION_OVER") << "of the call before it";
  EXPECT_EQ(ErrorOf(call(7)), "GENERATION_OVER");
}

TEST_F(AgreementMachineTest, AGenerationThatTheStoreKnowsBetterIsRefusedOnceItIsRead) {
  JobMemory memory;
  memory.generation = 4000;
  const JobCall far{.tenant = "",
                    .id = "train",
                    .generation = 5001,
                    .scope = "fw",
                    .ranks = {0},
                    .size = 2,
                    .fresh = false};
  const Actions came = Do(Came(table_.NewCall(), far, FakeRequest(1), now_ + seconds(60)));
  const Actions told = Do(
      ScopeLoaded{All<LoadScope>(came)[0].scope, std::make_optional(memory), std::optional<Pin>()});
  EXPECT_EQ(ErrorOf(told), "JOB_INVALID");
  EXPECT_EQ(ErrorOf(Do(Came(table_.NewCall(), far, FakeRequest(1), now_ + seconds(60)))),
            "JOB_INVALID");
}

TEST_F(AgreementMachineTest, AnOperatorsReleaseEndsTheWaitOfAll) {
  Loaded(Rank(0, 2, FakeRequest(1)));
  EXPECT_THAT(Do(JobReleased{JobName("", "train"), false}).answers, IsEmpty());
  EXPECT_EQ(ErrorOf(Do(JobReleased{JobName("", "train"), true})), "OVERLOADED");
  EXPECT_EQ(table_.jobs(), 0);
  EXPECT_EQ(table_.waiting_ranks(), 0);
}

TEST_F(AgreementMachineTest, RanksThatDifferAreAskedForTheirGraphsForHalfOfTheTimeThatIsLeft) {
  Loaded(Rank(0, 2, FakeRequest(1), seconds(10)));
  world_.graphs = {FakeRequest(1)->graph_key};
  const Actions differ = Rank(1, 2, FakeRequest(2), seconds(60));
  const std::vector<ArmTimer> timers = All<ArmTimer>(differ);
  ASSERT_THAT(timers, SizeIs(1));
  EXPECT_EQ(timers[0].at, now_ + (seconds(10) - milliseconds(250) - milliseconds(0)) / 2 -
                              std::chrono::microseconds(100));
  const Actions told = Fire(timers[0]);
  EXPECT_EQ(ErrorOf(told), "RANKS_DIFFER");
}

TEST_F(AgreementMachineTest, ALateRankOfAnAgreedScopeIsRefusedAloneIfItDiffers) {
  const Pin pin{.generation = 1,
                .size = 2,
                .plan_key = FakeRequest(1)->key,
                .profile_as_asked = "p@latest",
                .plan_sha256 = Sha256("plan")};
  const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1)), pin);
  EXPECT_THAT(All<AnswerFromStore>(loaded), SizeIs(1));
  EXPECT_EQ(ErrorOf(Rank(1, 2, FakeRequest(2))), "RANKS_DIFFER");
  EXPECT_THAT(All<AnswerFromStore>(Rank(1, 2, FakeRequest(1))), SizeIs(1));
}

TEST_F(AgreementMachineTest, AFreshPlanThatTakesTooLongLeavesThePinnedOne) {
  const Pin pin = OldPin();
  world_.graphs = {FakeRequest(1)->graph_key};
  const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1, 1, 2)), pin);
  const Actions read = OldPlanCame(loaded);
  ASSERT_THAT(All<AskBroker>(read), SizeIs(1));
  ASSERT_THAT(All<ArmTimer>(read), SizeIs(1));
  EXPECT_EQ(All<ArmTimer>(read)[0].at, now_ + seconds(10));
  const Actions given_up = Fire(All<ArmTimer>(read)[0]);
  EXPECT_THAT(All<GiveUpFetch>(given_up), SizeIs(1));
  ASSERT_THAT(All<StoreAgreed>(given_up), SizeIs(1));
  EXPECT_EQ(All<StoreAgreed>(given_up)[0].pin.plan_sha256, Sha256("old"));
}

class PinnedPlanTest : public MachineTest,
                       public ::testing::WithParamInterface<std::pair<absl::Status, Tally>> {};

TEST_P(PinnedPlanTest, APinnedPlanThatCannotBeReadIsNotCalledLost) {
  const auto& [why, counted] = GetParam();
  const Pin pin = OldPin();
  const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1)), pin);
  ASSERT_THAT(All<LoadPinnedPlan>(loaded), SizeIs(1));
  const Actions read = Do(PinnedPlanCame{All<LoadPinnedPlan>(loaded)[0].fetch, why});
  ASSERT_THAT(read.counts, SizeIs(1));
  EXPECT_EQ(std::get<Tally>(read.counts[0]), counted);
  EXPECT_THAT(All<AskBroker>(read), SizeIs(1));
  const bool lost = counted == Tally::kPinLost;
  EXPECT_EQ(ReasonOf(UnreadPlanError(why)), lost ? "GENERATION_OVER" : "STORE_UNAVAILABLE");
}

TEST_P(PinnedPlanTest, OfAnotherServersPlanThatCannotBeReadRanksHearWhetherToAskAgain) {
  const auto& [why, counted] = GetParam();
  const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1)));
  const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("ours")});
  const StoreAgreed store = All<StoreAgreed>(planned)[0];
  StandingPin standing{store.pin, why};
  standing.pin.plan_sha256[0] ^= 1;
  EXPECT_EQ(ErrorOf(Do(AgreedStored{store.scope, standing})),
            counted == Tally::kPinLost ? "GENERATION_OVER" : "STORE_UNAVAILABLE");
}

INSTANTIATE_TEST_SUITE_P(
    All, PinnedPlanTest,
    ::testing::Values(std::pair(absl::UnavailableError("away"), Tally::kPinUnread),
                      std::pair(absl::ResourceExhaustedError("too much waits"), Tally::kPinUnread),
                      std::pair(absl::NotFoundError("gone"), Tally::kPinLost),
                      std::pair(absl::DataLossError("another"), Tally::kPinLost)));

TEST_F(AgreementMachineTest, AnUnplannedGenerationIsToldOnceTheStoreKnows) {
  world_.disabled = "maintenance";
  const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1)));
  EXPECT_THAT(loaded.answers, IsEmpty());
  const std::vector<StoreUnplanned> store = All<StoreUnplanned>(loaded);
  ASSERT_THAT(store, SizeIs(1));
  const Actions stored = Do(UnplannedStored{store[0].job, store[0].generation});
  ASSERT_THAT(stored.answers, SizeIs(1));
  EXPECT_EQ(stored.answers[0].second->unplanned, "maintenance");
}

TEST_F(AgreementMachineTest, AGenerationThatAnotherServerHasPlannedIsPlannedHere) {
  world_.disabled = "maintenance";
  const Actions first = Rank(0, 2, FakeRequest(1));
  const std::vector<StoreUnplanned> store = All<StoreUnplanned>(Loaded(first));
  ASSERT_THAT(store, SizeIs(1));
  const JobMemory elsewhere{
      .generation = 1, .unplanned = {}, .profiles = {{"p@latest", "p@2"}}, .last_scope = ""};
  const Actions stored = Do(UnplannedStored{store[0].job, store[0].generation, elsewhere});
  EXPECT_EQ(ErrorOf(stored), "STORE_UNAVAILABLE") << "which passes: the rank asks again";
  const Actions again = Loaded(Rank(0, 2, FakeRequest(1)));
  ASSERT_THAT(All<AskBroker>(again), SizeIs(1));
  EXPECT_EQ(All<AskBroker>(again)[0].request->profile->version, 2);
}

TEST_F(AgreementMachineTest, WhatANameStandsForIsWhatAnotherServerWasFirstToSay) {
  const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1)));
  const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
  const std::vector<StoreAgreed> store = All<StoreAgreed>(planned);
  ASSERT_THAT(store, SizeIs(1));
  const JobMemory elsewhere{
      .generation = 1, .unplanned = {}, .profiles = {{"p@latest", "p@2"}}, .last_scope = ""};
  const Actions stored =
      Do(AgreedStored{store[0].scope, absl::CancelledError("otherwise"), elsewhere});
  EXPECT_EQ(ErrorOf(stored), "STORE_UNAVAILABLE") << "and not the plan made with p@1";
  const Actions again = Loaded(Rank(0, 1, FakeRequest(1)));
  ASSERT_THAT(All<AskBroker>(again), SizeIs(1));
  EXPECT_EQ(All<AskBroker>(again)[0].request->profile->version, 2);
}

TEST_F(AgreementMachineTest, AGenerationThatAnotherServerLeftUnplannedIsUnplannedHere) {
  const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1)));
  const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
  const std::vector<StoreAgreed> store = All<StoreAgreed>(planned);
  ASSERT_THAT(store, SizeIs(1));
  const JobMemory elsewhere{
      .generation = 1, .unplanned = "maintenance", .profiles = {}, .last_scope = ""};
  const Actions stored =
      Do(AgreedStored{store[0].scope, absl::CancelledError("otherwise"), elsewhere});
  ASSERT_THAT(stored.answers, SizeIs(1));
  EXPECT_EQ(stored.answers[0].second->unplanned, "maintenance");
}

// It was made with what the name stood for here, and must not be kept as what it stands for now.
TEST_F(AgreementMachineTest, WhatIsBeingStoredWhenAnotherServerWasFirstIsNotKept) {
  std::vector<StoreAgreed> stores;
  for (const char* scope : {"fw", "bw"}) {
    const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1), seconds(60), scope));
    const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan(scope)});
    ASSERT_THAT(All<StoreAgreed>(planned), SizeIs(1));
    stores.push_back(All<StoreAgreed>(planned)[0]);
  }
  const JobMemory elsewhere{
      .generation = 1, .unplanned = {}, .profiles = {{"p@latest", "p@2"}}, .last_scope = ""};
  const Actions told =
      Do(AgreedStored{stores[0].scope, absl::CancelledError("otherwise"), elsewhere});
  EXPECT_THAT(told.answers, SizeIs(2));
  EXPECT_EQ(ErrorOf(told), "STORE_UNAVAILABLE");
  EXPECT_FALSE(table_.MemoryOf(stores[1].job, 1, stores[1].scope).ok());
}

TEST_F(AgreementMachineTest, WhatAnUnplannedJobThatIsForgottenWasToKeepIsNotSaidOfTheNextOne) {
  world_.disabled = "maintenance";
  const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1)));
  const std::vector<StoreUnplanned> store = All<StoreUnplanned>(loaded);
  ASSERT_THAT(store, SizeIs(1));
  Do(JobReleased{JobName("", "train"), true});
  Rank(0, 2, FakeRequest(1));
  EXPECT_FALSE(table_.MemoryOf(store[0].job, store[0].generation).ok()) << "it is not read yet";
}

// A job that comes back to a server that held its lease before another did.
class JobThatComesBackTest : public MachineTest {
 protected:
  // A rank of another scope, and what the store says by then.
  Actions Next(const JobMemory& memory) {
    const std::vector<LoadScope> load =
        All<LoadScope>(Rank(0, 2, FakeRequest(1), seconds(60), "bw"));
    EXPECT_THAT(load, SizeIs(1));
    return Do(ScopeLoaded{load[0].scope, std::make_optional(memory), std::optional<Pin>()});
  }

  // Of scope fw, whose only rank has its plan when this returns.
  PlanReplyPtr AgreeWithoutAPin() {
    const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1)));
    const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
    const Actions agreed =
        Do(AgreedStored{All<StoreAgreed>(planned)[0].scope, absl::UnavailableError("away")});
    EXPECT_THAT(agreed.answers, SizeIs(1));
    return agreed.answers[0].second->reply;
  }
  void ExpectThatItStands(const PlanReplyPtr& plan) {
    const Actions again = Rank(0, 1, FakeRequest(1));
    ASSERT_THAT(again.answers, SizeIs(1));
    EXPECT_EQ(again.answers[0].second->reply, plan);
    const Actions other = Rank(1, 2, FakeRequest(1), seconds(60), "bw");
    ASSERT_THAT(other.answers, SizeIs(1));
    EXPECT_EQ(other.answers[0].second->unplanned, "maintenance");
    EXPECT_EQ(table_.scopes(), 1);
  }

  const JobMemory kUnplanned{
      .generation = 1, .unplanned = "maintenance", .profiles = {}, .last_scope = ""};
};

TEST_F(JobThatComesBackTest, RunsUnplannedIfItsGenerationWasLeftUnplannedElsewhere) {
  Loaded(Rank(0, 2, FakeRequest(1)));
  const Actions told = Next(kUnplanned);
  ASSERT_THAT(told.answers, SizeIs(2)) << "who waits in another scope is told, too";
  EXPECT_EQ(told.answers[0].second->unplanned, "maintenance");
  EXPECT_EQ(told.answers[1].second->unplanned, "maintenance");
  EXPECT_THAT(All<StoreUnplanned>(told), IsEmpty());
  EXPECT_EQ(table_.scopes(), 0);
}

// While the store was away nobody could tell the server that was asked next.
TEST_F(JobThatComesBackTest, KeepsThePlanOfAScopeThoughAnotherOneFindsTheGenerationUnplanned) {
  const PlanReplyPtr plan = AgreeWithoutAPin();
  const Actions told = Next(kUnplanned);
  ASSERT_THAT(told.answers, SizeIs(1));
  EXPECT_EQ(told.answers[0].second->unplanned, "maintenance");
  ExpectThatItStands(plan);
}

TEST_F(JobThatComesBackTest, KeepsThePlanOfAScopeThoughThatOfAnotherOneCannotBeKept) {
  const PlanReplyPtr plan = AgreeWithoutAPin();
  const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1), seconds(60), "bw"));
  const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
  const Actions told = Do(AgreedStored{All<StoreAgreed>(planned)[0].scope,
                                       absl::CancelledError("otherwise"), kUnplanned});
  ASSERT_THAT(told.answers, SizeIs(1));
  EXPECT_EQ(told.answers[0].second->unplanned, "maintenance");
  ExpectThatItStands(plan);
}

TEST_F(JobThatComesBackTest, RefusesAGenerationThatIsOverElsewhere) {
  Loaded(Rank(0, 2, FakeRequest(1)));
  const Actions told =
      Next({.generation = 2, .unplanned = {}, .profiles = {{"p@latest", "p@2"}}, .last_scope = ""});
  ASSERT_THAT(told.answers, SizeIs(2));
  EXPECT_EQ(ErrorOf(told), "GENERATION_OVER");
  EXPECT_EQ(table_.scopes(), 0);
}

}  // namespace
}  // namespace bucketd
