// Membership and leases of replicas over one store, with a clock that the tests move: who is up,
// who holds what, and what happens when the store or a replica is away for a while.
#include "tests/server/cluster_parts.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::SizeIs;

// Writes what it is told to, and says so no more as long as it `loses`.
class LosesAnswers final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override {
    const absl::Status wrote = ForwardingStore::ChangeRecord(shelf, key, before, after, line);
    return wrote.ok() && loses ? absl::UnavailableError("lost") : wrote;
  }
  bool loses = false;
};

// Lets something happen once, before it writes over a record.
class Interrupted final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override {
    if (before_it != nullptr && before->has_value() && absl::StartsWith(key, "lease/")) {
      std::exchange(before_it, nullptr)();
    }
    return ForwardingStore::ChangeRecord(shelf, key, before, after, line);
  }
  std::function<void()> before_it;
};

TEST_F(ClusterPartsTest, ReplicasSeeEachOther) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Beat();
  for (const Replica* replica : {&a, &b}) {
    const std::vector<ReplicaView> all = replica->members.List();
    ASSERT_THAT(all, SizeIs(2));
    EXPECT_EQ(all[0].id, (ReplicaId{"a:1", 1}));
    EXPECT_EQ(all[0].self, replica == &a);
    EXPECT_EQ(all[1].state, ReplicaState::kServing);
  }
}

TEST_F(ClusterPartsTest, OneHoldsALeaseAndTheOtherIsToldWho) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  EXPECT_TRUE(a.Take(job_).mine);
  const Lease other = b.Take(job_);
  EXPECT_FALSE(other.mine);
  EXPECT_EQ(other.holder, (ReplicaId{"a:1", 1}));
  EXPECT_EQ(other.term, 1U);
  EXPECT_TRUE(a.leases.Holds(job_));
  EXPECT_FALSE(b.leases.Holds(job_));
}

// As where the flight of a caller that was asked for the graph ends, and the caller is back at
// once.
TEST_F(ClusterPartsTest, WhatIsTakenOnceMoreIsNotGivenBackForTheTimeBefore) {
  Interrupted store(*world_.store);
  Replica a(world_, store, "a:1"), b(world_, "b:1");
  const LeaseName first = PlanLease("first"), plan = PlanLease("plan"), last = PlanLease("last");
  for (const LeaseName& name : {first, plan, last}) a.Take(name);
  const auto until_gone = [&a](const LeaseName& name) {
    while (a.leases.Holds(name)) std::this_thread::sleep_for(milliseconds(1));
  };
  absl::Notification go_on;  // of the thread that gives back one after the other
  store.before_it = [&] { go_on.WaitForNotification(); };
  a.leases.ReleaseSoon(first);
  a.leases.ReleaseSoon(plan);
  a.Take(plan);
  a.leases.ReleaseSoon(last);
  go_on.Notify();
  until_gone(last);
  EXPECT_TRUE(a.leases.Holds(plan));
  EXPECT_FALSE(b.Take(plan).mine);
  a.leases.ReleaseSoon(plan);
  until_gone(plan);
}

// As where a plan could not be saved: its lease cannot be given back either, and others wait for
// who has it.
TEST_F(ClusterPartsTest, WhatTheStoreDidNotTakeBackIsGivenBackWhenItIsBack) {
  Refusing store(*world_.store, Refusing::What::kErased);
  Replica a(world_, store, "a:1"), b(world_, "b:1");
  const LeaseName plan = PlanLease("plan"), other = PlanLease("other");
  for (const LeaseName& name : {plan, other}) {
    a.Take(name);
    a.leases.ReleaseSoon(name);
  }
  while (store.refused < 2) std::this_thread::sleep_for(milliseconds(1));
  a.leases.GiveBackOwed();
  EXPECT_EQ(store.refused, 3) << "one is enough to know";
  EXPECT_FALSE(b.Take(plan).mine);
  store.what = Refusing::What::kNothing;
  a.Take(other);
  a.leases.GiveBackOwed();
  EXPECT_TRUE(b.Take(plan).mine);
  EXPECT_FALSE(b.Take(other).mine) << "it is needed again";
}

TEST_F(ClusterPartsTest, WhatIsReleasedWhereTooMuchIsToBeReleasedDoesNotStayHeld) {
  Interrupted store(*world_.store);
  Replica a(world_, store, "a:1"), b(world_, "b:1");
  const LeaseName first = PlanLease("first"), plan = PlanLease("plan");
  for (const LeaseName& name : {first, plan}) a.Take(name);
  absl::Notification is_busy, go_on;
  store.before_it = [&] {
    is_busy.Notify();
    go_on.WaitForNotification();
  };
  a.leases.ReleaseSoon(first);
  is_busy.WaitForNotification();
  for (int i = 0; i <= 1 << 16; ++i) a.leases.ReleaseSoon(PlanLease("nobody's"));
  a.leases.ReleaseSoon(plan);
  go_on.Notify();
  a.leases.GiveBackOwed();
  EXPECT_TRUE(b.Take(plan).mine);
}

TEST_F(ClusterPartsTest, WhoMayTakeNothingIsToldWhoHasIt) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  b.Take(job_);
  a.leases.HandOver(LeaseOf::kJob);
  EXPECT_EQ(a.Take(job_).holder, (ReplicaId{"b:1", 1}));
}

TEST_F(ClusterPartsTest, WhatIsHandedOverIsFreeAtOnceAndNotTakenBack) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Take(job_);
  a.leases.HandOver(LeaseOf::kJob);
  EXPECT_FALSE(a.leases.Holds(job_));
  EXPECT_EQ(a.leases.Take(job_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(b.Take(job_).mine);
  EXPECT_FALSE(a.Take(job_).mine) << "and it hears who has it now";
  EXPECT_TRUE(a.Take(PlanLease("key")).mine) << "computations go on";
}

TEST_F(ClusterPartsTest, ADeadHolderLosesItsLeaseAfterTenSecondsAndNotBefore) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Take(job_);
  Pass(seconds(10), {&b});
  EXPECT_FALSE(b.Take(job_).mine);
  Pass(seconds(2), {&b});
  const Lease lease = b.Take(job_);
  EXPECT_TRUE(lease.mine);
  EXPECT_EQ(lease.term, 2U);
  EXPECT_EQ(b.metrics.taken_over(LeaseOf::kJob).Value(), 1);
}

TEST_F(ClusterPartsTest, APausedHolderKnowsThatItMayHaveBeenEndedBeforeItAsksAnybody) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Take(job_);
  world_.now += seconds(8);
  EXPECT_TRUE(a.leases.Holds(job_));
  world_.now += milliseconds(1);
  EXPECT_FALSE(a.leases.Holds(job_)) << "two seconds before anybody may take it";
  EXPECT_EQ(a.leases.Take(PlanLease("key")).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClusterPartsTest, WhoWasPausedButNotEndedHasLostNothing) {
  Replica a(world_, "a:1");
  a.Take(job_);
  world_.now += seconds(60);
  a.Beat();
  EXPECT_TRUE(a.leases.Holds(job_));
}

TEST_F(ClusterPartsTest, WhoWakesAfterItsEndHoldsNothingAndFindsWhatStands) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Take(job_);
  a.Take(JobLease("team", "another"));
  Pass(seconds(12), {&b});
  EXPECT_TRUE(b.Take(job_).mine);
  a.Beat();  // it wakes
  EXPECT_FALSE(a.leases.Holds(job_));
  EXPECT_FALSE(a.Take(job_).mine);
  EXPECT_FALSE(a.leases.Holds(JobLease("team", "another"))) << "somebody could have taken it";
  EXPECT_TRUE(a.Take(JobLease("team", "another")).mine);
}

TEST_F(ClusterPartsTest, WhoComesBackWhileItsLeaseIsTakenOverHoldsItAlone) {
  Interrupted store(*world_.store);
  Replica a(world_, "a:1"), b(world_, store, "b:1");
  EXPECT_TRUE(a.Take(job_).mine);
  Pass(seconds(14), {&b});
  store.before_it = [&] {  // b has found a gone
    a.Beat();
    EXPECT_TRUE(a.Take(job_).mine);
  };
  EXPECT_FALSE(b.Take(job_).mine);
  EXPECT_EQ(store.before_it, nullptr);
  EXPECT_TRUE(a.leases.Holds(job_));
  EXPECT_FALSE(b.leases.Holds(job_));
}

TEST_F(ClusterPartsTest, WhoFindsItsEndAndCannotWriteAtOnceHoldsNothingEither) {
  Refusing store(*world_.store);
  Replica a(world_, store, "a:1"), b(world_, "b:1");
  EXPECT_TRUE(a.Take(job_).mine);
  Pass(seconds(12), {&b});
  EXPECT_TRUE(b.Take(job_).mine) << "a was stopped, and has been ended";
  store.what = Refusing::What::kNew;  // a wakes, sees that, and cannot say that it is back
  EXPECT_FALSE(a.members.Beat().ok());
  store.what = Refusing::What::kNothing;
  a.Beat();
  EXPECT_FALSE(a.members.lapsed());
  EXPECT_FALSE(a.leases.Holds(job_));
  EXPECT_FALSE(a.Take(job_).mine);
}

TEST_F(ClusterPartsTest, WhoFindsItsEndAndGetsNoWordOfItsRecordsHoldsNothingEither) {
  LosesAnswers store(*world_.store);
  Replica a(world_, store, "a:1"), b(world_, "b:1");
  EXPECT_TRUE(a.Take(job_).mine);
  Pass(seconds(12), {&b});
  EXPECT_TRUE(b.Take(job_).mine);
  store.loses = true;
  for (int beat = 0; beat < 3; ++beat) EXPECT_FALSE(a.members.Beat().ok());
  store.loses = false;
  a.Beat();
  EXPECT_FALSE(a.members.lapsed());
  EXPECT_FALSE(a.leases.Holds(job_));
}

TEST_F(ClusterPartsTest, AServerThatIsStartedAnewHasEndedTheOneBefore) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Take(job_);
  Replica again(world_, "a:1", 2);
  EXPECT_FALSE(b.Take(job_).mine) << "b has not looked";
  b.Beat();
  EXPECT_TRUE(b.Take(job_).mine);
  EXPECT_EQ(a.members.Beat().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(a.members.Trouble(), ::testing::HasSubstr("has taken the address a:1"));
  EXPECT_TRUE(a.members.superseded());
  EXPECT_FALSE(again.members.superseded());
  a.members.BeginDrain();
  EXPECT_FALSE(a.members.superseded()) << "it leaves the address to others";
  a.members.Leave();
  EXPECT_TRUE(world_.store->GetRecord(Shelf::kReplicas, "replica/a:1")->has_value())
      << "the record is the later one's";
  EXPECT_FALSE(again.members.lapsed());
}

TEST_F(ClusterPartsTest, WhoNeverCameTakesNobodysRecordAway) {
  Refusing store(*world_.store, Refusing::What::kWritten);
  Replica a(world_, "a:1");
  SilentReplica again(world_, store, "a:1", 2);
  EXPECT_FALSE(again.members.Beat().ok());
  again.members.Leave();
  EXPECT_TRUE(world_.store->GetRecord(Shelf::kReplicas, "replica/a:1")->has_value());
}

TEST_F(ClusterPartsTest, WhoHasTheAddressAfterThisOneKeepsItsLeases) {
  Replica a(world_, "a:1");
  SilentReplica again(world_, "a:1", 2);
  const LeaseName another = JobLease("team", "another");
  a.Take(another);
  again.leases.Sweep(seconds(60));
  EXPECT_EQ(LeasesStored(), 1U) << "nobody has ended a yet";
  EXPECT_TRUE(absl::IsFailedPrecondition(again.leases.Take(another).status()));
  again.Beat();
  EXPECT_TRUE(again.Take(job_).mine);
  EXPECT_EQ(a.Take(job_).holder, again.members.self()) << "a has not looked";
  a.leases.Sweep(seconds(60));
  EXPECT_EQ(LeasesStored(), 2U);
  EXPECT_TRUE(absl::IsAlreadyExists(a.members.Beat()));
  EXPECT_EQ(a.Take(job_).holder, again.members.self());
  a.leases.Sweep(seconds(60));
  EXPECT_EQ(LeasesStored(), 2U);
  again.leases.Sweep(seconds(60));
  EXPECT_EQ(LeasesStored(), 1U) << "a has ended";
}

TEST_F(ClusterPartsTest, WhoFindsOthersDeadAtAnotherTimeIsNamed) {
  const auto now = [] { return SteadyTime(); };
  Membership a(*world_.store, {"a:1", 1}, seconds(1), now);
  Membership b(*world_.store, {"b:1", 1}, seconds(60), now);
  Membership c(*world_.store, {"c:1", 1}, seconds(60), now);
  for (Membership* member : {&b, &c, &b}) ASSERT_TRUE(member->Beat().ok());
  EXPECT_EQ(b.Mismatch(), "");
  for (Membership* member : {&a, &b}) ASSERT_TRUE(member->Beat().ok());
  EXPECT_EQ(b.Mismatch(),
            "--cluster-dead-ms is 60000 here and 1000 at a:1; give all replicas the same");
  EXPECT_THAT(a.Mismatch(), ::testing::HasSubstr("is 1000 here and 60000 at b:1"));
}

TEST_F(ClusterPartsTest, WhoLeavesIsGoneAtOnce) {
  Replica b(world_, "b:1");
  {
    Replica a(world_, "a:1");
    a.Take(job_);
    a.members.Leave();
    EXPECT_FALSE(a.members.Beat().ok()) << "it would be back";
  }
  EXPECT_TRUE(b.Take(job_).mine);
}

TEST_F(ClusterPartsTest, AReplicaThatCameSinceOneLookedIsAlive) {
  Replica b(world_, "b:1"), a(world_, "a:1");
  a.Take(job_);
  EXPECT_FALSE(b.Take(job_).mine) << "b has not seen a yet, and asks";
}

TEST_F(ClusterPartsTest, TimeInWhichNobodyCouldLookEndsNobody) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Take(job_);
  world_.now += seconds(60);  // the store was away
  b.Beat();
  EXPECT_FALSE(b.Take(job_).mine);
  Pass(seconds(8), {&b, &a});
  EXPECT_TRUE(a.leases.Holds(job_));
}

TEST_F(ClusterPartsTest, LeasesOfJobsThatRestAreGivenBackAndThoseOfTheDeadGo) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Take(job_);
  b.Take(JobLease("team", "b's"));
  EXPECT_EQ(LeasesStored(), 2U);
  Pass(seconds(14), {&a});  // it sees b after two of them
  a.leases.Sweep(seconds(60));
  EXPECT_EQ(LeasesStored(), 1U) << "b is dead";
  Pass(seconds(40), {&a});
  EXPECT_TRUE(a.leases.Use(job_));
  Pass(seconds(50), {&a});
  a.leases.Sweep(seconds(60));
  EXPECT_EQ(LeasesStored(), 1U) << "it was used";
  Pass(seconds(20), {&a});
  a.leases.Sweep(seconds(60));
  EXPECT_EQ(LeasesStored(), 0U);
  EXPECT_FALSE(a.leases.Holds(job_));
}

TEST_F(ClusterPartsTest, WhatOneHeldBeforeItsEndIsSweptToo) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  a.Take(job_);
  Pass(seconds(12), {&b});
  a.Beat();
  a.leases.Sweep(seconds(60));
  EXPECT_EQ(LeasesStored(), 0U);
  EXPECT_EQ(a.leases.held(LeaseOf::kJob), 0U);
}

TEST_F(ClusterPartsTest, WithoutTheStoreAllReplicasNameTheSameOwner) {
  Replica a(world_, "a:1"), b(world_, "b:1"), c(world_, "c:1");
  for (Replica* replica : {&a, &b, &c}) replica->Beat();
  int of_a = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string name = std::to_string(i);
    const ReplicaId owner = a.members.HashedOwner(name);
    EXPECT_EQ(owner, b.members.HashedOwner(name));
    EXPECT_EQ(owner, c.members.HashedOwner(name));
    of_a += owner == a.members.self() ? 1 : 0;
  }
  EXPECT_GT(of_a, 60);
  EXPECT_LT(of_a, 140);
  a.members.BeginDrain();
  a.Beat();
  b.Beat();
  EXPECT_NE(a.members.HashedOwner("x"), a.members.self());
  EXPECT_EQ(a.members.HashedOwner("x"), b.members.HashedOwner("x"));
}

}  // namespace
}  // namespace bucketd
