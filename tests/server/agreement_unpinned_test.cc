// Ranks that agree while the store is away: without a pin, which is written later, and on a replica
// only while it can be sure that nobody else has the job.
#include <chrono>
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
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The store is away when ranks agree.
class AgreedWithoutAPinTest : public MachineTest {
 protected:
  using MachineTest::MachineTest;
  Actions AgreeWithoutAPin(const absl::Status& why, const std::string& scope = "fw") {
    const Actions loaded = Loaded(Rank(0, 1, FakeRequest(1), seconds(60), scope));
    const Actions planned = Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
    store_ = All<StoreAgreed>(planned)[0];
    return Do(AgreedStored{store_.scope, why});
  }
  StoreAgreed store_;
};

TEST_F(AgreedWithoutAPinTest, GetsOneOnceTheStoreIsBack) {
  Actions told = AgreeWithoutAPin(absl::UnavailableError("away"));
  ASSERT_THAT(told.answers, SizeIs(1));
  EXPECT_FALSE(told.answers[0].second->is_kept);
  for (int i = 0; i < 3; ++i) {
    const SteadyTime before = now_;
    const std::vector<StoreAgreed> again = All<StoreAgreed>(FireNext());
    EXPECT_EQ(now_, before + seconds(2));
    ASSERT_THAT(again, SizeIs(1));
    EXPECT_TRUE(again[0].again);
    EXPECT_EQ(again[0].pin.plan_sha256, store_.pin.plan_sha256);
    EXPECT_EQ(again[0].reply, store_.reply);
    const bool is_back = i == 2;
    told = Do(AgreedStored{
        store_.scope, is_back ? absl::StatusOr<StandingPin>(StandingPin{store_.pin, store_.reply})
                              : absl::UnavailableError("away")});
    EXPECT_THAT(told.answers, IsEmpty());
  }
  EXPECT_THAT(All<ArmTimer>(told), IsEmpty());
  EXPECT_TRUE(table_.Snapshots(now_, {}, 1)[0].scopes[0].pinned);
  EXPECT_THAT(All<AnswerFromStore>(Rank(0, 1, FakeRequest(1))), SizeIs(1)) << "as any pinned one";
}

TEST_F(AgreedWithoutAPinTest, TakesTurnsWithOthersAndIsNotTriedOnceItIsOver) {
  AgreeWithoutAPin(absl::UnavailableError("away"));
  AgreeWithoutAPin(absl::UnavailableError("away"), "bw");
  AgreeWithoutAPin(absl::UnavailableError("away"), "step");
  std::vector<std::string> tried;
  Actions fired = FireNext();
  for (int i = 0; i < 4; ++i) {
    const std::vector<StoreAgreed> again = All<StoreAgreed>(fired);
    ASSERT_THAT(again, SizeIs(1));
    tried.push_back(again[0].name);
    Do(AgreedStored{again[0].scope, absl::UnavailableError("away")});
    fired = FireNext();
  }
  EXPECT_THAT(tried, ElementsAre("fw", "bw", "step", "fw"));
  const std::vector<StoreAgreed> last = All<StoreAgreed>(fired);
  ASSERT_THAT(last, SizeIs(1));
  const Actions next = Do(AgreedStored{last[0].scope, StandingPin{last[0].pin, last[0].reply}});
  ASSERT_THAT(All<StoreAgreed>(next), SizeIs(1)) << "at once: the store is back";
  Do(JobReleased{JobName("", "train"), true});
  EXPECT_THAT(All<StoreAgreed>(Do(AgreedStored{All<StoreAgreed>(next)[0].scope,
                                               StandingPin{store_.pin, store_.reply}})),
              IsEmpty());
}

TEST_F(AgreedWithoutAPinTest, StaysAsItIsThoughAnotherServerHasKeptSomethingElse) {
  const Actions told = AgreeWithoutAPin(absl::UnavailableError("away"));
  Fire(All<ArmTimer>(told)[0]);
  const JobMemory elsewhere{
      .generation = 1, .unplanned = "maintenance", .profiles = {}, .last_scope = ""};
  const Actions otherwise =
      Do(AgreedStored{store_.scope, absl::CancelledError("otherwise"), elsewhere});
  EXPECT_THAT(otherwise.answers, IsEmpty());
  EXPECT_THAT(All<ArmTimer>(otherwise), IsEmpty());
  const Actions again = Rank(0, 1, FakeRequest(1));
  ASSERT_THAT(again.answers, SizeIs(1)) << "whose process runs with it";
  EXPECT_EQ(again.answers[0].second->reply, store_.reply);
}

// Of a replica, whose jobs others take over when it has not been heard of for long.
class ReplicaWithoutAStoreTest : public AgreedWithoutAPinTest {
 protected:
  ReplicaWithoutAStoreTest() : AgreedWithoutAPinTest(seconds(8)) {}

  // All ranks of a scope of two are here, and what they agree on is to be stored.
  StoreAgreed Complete() {
    const Actions loaded = Loaded(Rank(0, 2, FakeRequest(1)));
    first_call_ = last_call_;
    Do(PlanCame{All<AskBroker>(loaded)[0].fetch, FakePlan("plan")});
    return All<StoreAgreed>(Rank(1, 2, FakeRequest(1)))[0];
  }
  CallId first_call_ = 0;
};

TEST_F(ReplicaWithoutAStoreTest, AgreesAloneHoweverSlowTheStoreIsButNotAfterAStop) {
  const StoreAgreed slow = Complete();
  for (int i = 0; i < 20; ++i) FireNext();
  EXPECT_THAT(Do(AgreedStored{slow.scope, absl::UnavailableError("away")}).answers, SizeIs(2));
  Do(JobReleased{JobName("", "train"), true});
  const StoreAgreed late = Complete();
  now_ += seconds(3);
  const Actions told = Do(AgreedStored{late.scope, absl::UnavailableError("away")});
  EXPECT_THAT(told.answers, SizeIs(2));
  EXPECT_EQ(ErrorOf(told), "STORE_UNAVAILABLE");
  EXPECT_EQ(table_.scopes(), 0) << "all may come again";
}

TEST_F(ReplicaWithoutAStoreTest, AgreesAloneOnlyWhileAllRanksAreHere) {
  const StoreAgreed store = Complete();
  Do(CallerLeft{first_call_});
  const Actions told = Do(AgreedStored{store.scope, absl::UnavailableError("away")});
  EXPECT_THAT(told.answers, SizeIs(1));
  EXPECT_EQ(ErrorOf(told), "STORE_UNAVAILABLE");
}

TEST_F(ReplicaWithoutAStoreTest, ThatWasStoppedAnswersNobodyUntilTheStoreHasSpoken) {
  for (const bool has_another : {false, true}) {
    now_ += milliseconds(1);
    ASSERT_THAT(AgreeWithoutAPin(absl::UnavailableError("away")).answers, SizeIs(1));
    now_ += seconds(7);
    EXPECT_TRUE(Rank(0, 1, FakeRequest(1)).answers[0].second.ok());
    now_ += seconds(2);
    EXPECT_EQ(ErrorOf(Rank(0, 1, FakeRequest(1))), "STORE_UNAVAILABLE");
    std::vector<StoreAgreed> again;
    for (int i = 0; i < 5 && again.empty(); ++i) again = All<StoreAgreed>(FireNext());
    ASSERT_THAT(again, SizeIs(1));
    StandingPin standing{store_.pin, store_.reply};
    if (has_another) standing.pin.plan_sha256[0] ^= 1;
    Do(AgreedStored{store_.scope, standing});
    const Actions asked = Rank(0, 1, FakeRequest(1));
    EXPECT_THAT(All<AnswerFromStore>(asked), SizeIs(has_another ? 0 : 1));
    EXPECT_THAT(All<LoadScope>(asked), SizeIs(has_another ? 1 : 0)) << "to be told what stands";
    Do(JobReleased{JobName("", "train"), true});
  }
}

TEST_F(ReplicaWithoutAStoreTest, CountsAStopFromWhenItIsKnownToHaveRun) {
  AgreeWithoutAPin(absl::UnavailableError("away"));
  now_ += seconds(8);
  EXPECT_EQ(ErrorOf(Rank(0, 1, FakeRequest(1))), "STORE_UNAVAILABLE");
}

class ReplicaThatIsSoonTakenForDeadTest : public AgreedWithoutAPinTest {
 protected:
  ReplicaThatIsSoonTakenForDeadTest() : AgreedWithoutAPinTest(milliseconds(800)) {}
};

TEST_F(ReplicaThatIsSoonTakenForDeadTest, NoticesShorterStops) {
  AgreeWithoutAPin(absl::UnavailableError("away"));
  now_ += milliseconds(800);
  EXPECT_EQ(ErrorOf(Rank(0, 1, FakeRequest(1))), "STORE_UNAVAILABLE");
}

TEST_F(AgreedWithoutAPinTest, IsNotTriedAgainWhereTheQuotaIsUsedUp) {
  const Actions told = AgreeWithoutAPin(MakeError(Reason::kQuotaUsedUp, "pins"));
  EXPECT_THAT(told.answers, SizeIs(1));
  EXPECT_THAT(All<ArmTimer>(told), IsEmpty());
}

}  // namespace
}  // namespace bucketd
