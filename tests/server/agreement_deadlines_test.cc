// How scopes end at their deadlines, and what their ranks are told: in the machine's own time.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/machine_world.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class AgreementDeadlineTest : public MachineTest {
 protected:
  // All ranks come, and agree.
  void Agree(const std::string& scope, uint32_t size) {
    const Actions loaded = Loaded(Rank(0, size, FakeRequest(1), seconds(60), scope));
    Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
    Actions complete;
    for (uint32_t rank = 1; rank < size; ++rank) {
      complete = Rank(rank, size, FakeRequest(1), seconds(60), scope);
    }
    const std::vector<StoreAgreed> store = All<StoreAgreed>(complete);
    ASSERT_THAT(store, SizeIs(1));
    const Actions told =
        Do(AgreedStored{store[0].scope, StandingPin{store[0].pin, store[0].reply}});
    ASSERT_THAT(told.answers, SizeIs(size));
  }
  static std::vector<AgreementOutcome> OutcomesOf(const Actions& actions) {
    std::vector<AgreementOutcome> outcomes;
    for (const Count& count : actions.counts) {
      if (const auto* ended = std::get_if<ScopeEnded>(&count)) outcomes.push_back(ended->outcome);
    }
    return outcomes;
  }
};

TEST_F(AgreementDeadlineTest, MissingRanksAreNamedAtTheEarliestDeadlineAndALateOneIsToldAtOnce) {
  const SteadyTime begin = now_;
  Loaded(Rank(0, 8, FakeRequest(1)));
  for (const uint32_t rank : {1U, 2U, 3U, 6U}) Rank(rank, 8, FakeRequest(1));
  Rank(4, 8, FakeRequest(1), seconds(2));
  const Actions told = FireDeadlineOfAllServers();
  EXPECT_EQ(now_, begin + seconds(2) - milliseconds(250) - std::chrono::microseconds(800));
  ASSERT_THAT(told.answers, SizeIs(6));
  EXPECT_EQ(ErrorOf(told), "RANKS_MISSING");
  EXPECT_THAT(TextOf(told), HasSubstr("ranks 5 and 7 of 8 did not present scope fw within 1.7 s"));
  EXPECT_EQ(OutcomesOf(told), std::vector{AgreementOutcome::kMissing});
  EXPECT_EQ(TextOf(Rank(5, 8, FakeRequest(1))), TextOf(told));
  EXPECT_EQ(TextOf(Rank(7, 8, FakeRequest(1))), TextOf(told));
  // Now that the last one knows, they may try again, all together.
  const Actions again = Rank(0, 8, FakeRequest(1));
  EXPECT_THAT(again.answers, IsEmpty());
  EXPECT_THAT(All<LoadScope>(again), SizeIs(1));
}

TEST_F(AgreementDeadlineTest, SaysThatOnlyOneRankRecompiled) {
  Agree("0/0/bw", 4);
  Loaded(Rank(3, 4, FakeRequest(1), seconds(60), "0/1/fw"));
  const Actions told = FireDeadlineOfAllServers();
  EXPECT_EQ(ErrorOf(told), "RANKS_MISSING");
  EXPECT_THAT(TextOf(told), HasSubstr("only rank 3 came; the others last presented scope 0/0/bw: "
                                      "did only rank 3 recompile?"));
}

TEST_F(AgreementDeadlineTest, SaysWhereTheOtherRanksAreWaiting) {
  Loaded(Rank(0, 4, FakeRequest(1), seconds(60), "0/1/fw"));
  for (const uint32_t rank : {1U, 2U}) Rank(rank, 4, FakeRequest(1), seconds(60), "0/1/fw");
  Loaded(Rank(3, 4, FakeRequest(1), seconds(10), "0/2/fw"));
  const Actions told = FireDeadlineOfAllServers();
  ASSERT_THAT(told.answers, SizeIs(1));
  EXPECT_THAT(TextOf(told), HasSubstr("others wait in scope 0/1/fw"));
  EXPECT_EQ(table_.waiting_ranks(), 3) << "who wait on";
}

TEST_F(AgreementDeadlineTest, ARankThatWasAskedForTheGraphAndDidNotComeBackIsNamed) {
  const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1)));
  Do(PlanCame{All<AskBroker>(loaded)[0].fetch, PlanAnswer{PlanOutcome::kGraphRequired, {}, 7}});
  Rank(1, 2, FakeRequest(1), seconds(10));
  const Actions told = FireDeadlineOfAllServers();
  EXPECT_EQ(ErrorOf(told), "RANKS_MISSING");
  EXPECT_THAT(TextOf(told),
              HasSubstr("rank 0 came, was asked for the graph, and has not come back"));
}

TEST_F(AgreementDeadlineTest, ARankThatLeftIsMissing) {
  Loaded(Rank(0, 3, FakeRequest(1)));
  const CallId left = last_call_;
  Rank(1, 3, FakeRequest(1));
  Do(CallerLeft{left});
  const Actions told = FireDeadlineOfAllServers();
  ASSERT_THAT(told.answers, SizeIs(1));
  EXPECT_THAT(TextOf(told), HasSubstr("ranks 0 and 2 of 3 did not present"));
}

TEST_F(AgreementDeadlineTest, WhatAnotherServersRanksAgreedOnMeanwhileIsFoundThere) {
  Loaded(Rank(0, 2, FakeRequest(1)));
  const std::vector<LoadPinAgain> again = All<LoadPinAgain>(FireNext());
  ASSERT_THAT(again, SizeIs(1));
  const Pin pin{.generation = 1,
                .size = 2,
                .plan_key = FakeRequest(1)->key,
                .profile_as_asked = "p@latest",
                .plan_sha256 = Sha256("plan")};
  const Actions found = Do(PinLoadedAgain{again[0].scope, std::make_optional(pin)});
  EXPECT_THAT(found.answers, IsEmpty());
  EXPECT_THAT(All<AnswerFromStore>(found), SizeIs(1));
}

TEST_F(AgreementDeadlineTest, WhenThePlanIsLateAllRanksAreToldWhatItWaitedFor) {
  const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1), seconds(10)));
  Rank(1, 2, FakeRequest(1));
  const Actions late = FireNext();
  EXPECT_THAT(late.answers, IsEmpty());
  ASSERT_THAT(All<HurryFetch>(late), SizeIs(1));
  const Actions told = Do(PlanCame{All<AskBroker>(loaded)[0].fetch,
                                   MakeError(Reason::kDeadline, "it is being computed")});
  ASSERT_THAT(told.answers, SizeIs(2));
  EXPECT_EQ(ErrorOf(told), "DEADLINE");
  EXPECT_THAT(TextOf(told), HasSubstr("being computed"));
  EXPECT_EQ(OutcomesOf(told), std::vector{AgreementOutcome::kFailed});
  EXPECT_THAT(All<LoadScope>(Rank(0, 2, FakeRequest(1))), SizeIs(1)) << "they may ask again";
}

TEST_F(AgreementDeadlineTest, ABrokerThatDoesNotSayWhatItWaitedForHoldsNobody) {
  Loaded(Rank(0, 2, FakeRequest(1), seconds(10)));
  Rank(1, 2, FakeRequest(1));
  const SteadyTime deadline = now_ + seconds(10) - milliseconds(250);
  FireNext();
  const Actions told = FireNext();
  EXPECT_LT(now_, deadline + milliseconds(25));
  ASSERT_THAT(told.answers, SizeIs(2));
  EXPECT_EQ(ErrorOf(told), "DEADLINE");
  EXPECT_THAT(TextOf(told), HasSubstr("all 2 ranks of scope fw agree; their plan was not there"));
}

// Else its ranks would be told nothing before the last of their deadlines.
TEST_F(AgreementDeadlineTest, AWeighingThatBeginsAnewHasALimitOfItsOwn) {
  const Pin pin = OldPin();
  world_.graphs = {FakeRequest(1)->graph_key};
  const std::vector<ArmTimer> first =
      All<ArmTimer>(OldPlanCame(Loaded(Rank(0, 1, FakeRequest(1, 1, 2)), pin)));
  ASSERT_THAT(first, SizeIs(1));
  std::shared_ptr<PlanRequest> with_graph = FakeRequest(1, 1, 2);
  with_graph->graph = std::make_unique<InlineGraph>();
  const Actions again = Rank(0, 1, std::move(with_graph));
  Fire(first[0]);
  const Actions weighs = OldPlanCame(again);
  EXPECT_THAT(All<AskBroker>(weighs), SizeIs(1));
  EXPECT_THAT(All<ArmTimer>(weighs), SizeIs(1));
}

TEST_F(AgreementDeadlineTest, WhereComputeSlotsStayFullAllRanksHearOfTheSameOverload) {
  Actions actions = Loaded(Rank(0, 2, FakeRequest(1), seconds(2)));
  Rank(1, 2, FakeRequest(1));
  int asked = 0;
  while (actions.answers.empty() && asked < 100) {
    const std::vector<AskBroker> ask = All<AskBroker>(actions);
    if (!ask.empty()) {
      ++asked;
      Do(PlanCame{ask[0].fetch, MakeError(Reason::kOverloaded, "all compute slots are taken")});
    }
    actions = FireNext();
  }
  EXPECT_EQ(asked, 9) << "each 200 ms of 1.75 s";
  ASSERT_THAT(actions.answers, SizeIs(2));
  EXPECT_EQ(ErrorOf(actions), "OVERLOADED");
  EXPECT_THAT(TextOf(actions), HasSubstr("compute slots"));
  EXPECT_EQ(OutcomesOf(actions), std::vector{AgreementOutcome::kFailed});
  EXPECT_THAT(All<LoadScope>(Rank(0, 2, FakeRequest(1))), SizeIs(1)) << "they may ask again";
}

TEST_F(AgreementDeadlineTest, ADifferenceIsReportedThoughARankIsMissing) {
  Loaded(Rank(0, 3, FakeRequest(1), seconds(10)));
  Rank(2, 3, FakeRequest(2));
  const Actions told = FireNext();
  ASSERT_THAT(told.answers, SizeIs(2));
  EXPECT_EQ(ErrorOf(told), "RANKS_DIFFER");
  EXPECT_THAT(TextOf(told), HasSubstr("rank 1 did not come"));
}

TEST_F(AgreementDeadlineTest, ADifferenceWhoseGraphDoesNotComeIsReportedWithoutItsNode) {
  Loaded(Rank(0, 2, FakeRequest(1)));
  world_.graphs = {FakeRequest(1)->graph_key};
  const Actions asked = Rank(1, 2, FakeRequest(2));
  ASSERT_THAT(asked.answers, SizeIs(1));
  EXPECT_EQ(asked.answers[0].second->outcome, PlanOutcome::kGraphRequired);
  const Actions told = Rank(1, 2, FakeRequest(2));  // back, and without it
  ASSERT_THAT(told.answers, SizeIs(2));
  EXPECT_EQ(ErrorOf(told), "RANKS_DIFFER");
  EXPECT_THAT(TextOf(told), Not(HasSubstr("first differ at")));
}

}  // namespace
}  // namespace bucketd
