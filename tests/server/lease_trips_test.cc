// What leases take of the store: how many trips, and what is asked of one that takes no writes or
// does not answer.
#include <chrono>
#include <optional>
#include <string>

#include "gtest/gtest.h"

#include "tests/server/cluster_parts.h"

namespace bucketd {
namespace {

using std::chrono::seconds;

// Does not answer who writes, which takes ten seconds.
class Silent final : public ForwardingStore {
 public:
  Silent(Store& inner, World& world) : ForwardingStore(inner), world_(world) {}
  absl::StatusOr<Standing> PutIfAbsent(Shelf, absl::string_view, absl::string_view,
                                       ReadBehind*) override {
    world_.now += seconds(10);
    return absl::UnavailableError("no answer");
  }
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                       absl::string_view key) override {
    ++reads;
    return ForwardingStore::GetRecord(shelf, key);
  }
  int reads = 0;

 private:
  World& world_;
};

class CountsTrips final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                       absl::string_view key) override {
    ++trips;
    return ForwardingStore::GetRecord(shelf, key);
  }
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override {
    ++trips;
    return ForwardingStore::ChangeRecord(shelf, key, before, after, line);
  }
  absl::StatusOr<Standing> PutIfAbsent(Shelf shelf, absl::string_view key, absl::string_view value,
                                       ReadBehind* behind) override {
    const int one_more = trips + 1;
    absl::StatusOr<Standing> stands = ForwardingStore::PutIfAbsent(shelf, key, value, behind);
    trips = one_more;
    ++puts;
    return stands;
  }
  int trips = 0;
  int puts = 0;  // of them
};

using LeaseTripsTest = ClusterPartsTest;

TEST_F(LeaseTripsTest, ALeaseIsTakenOrSeenAndGivenBackInATripEach) {
  CountsTrips store(*world_.store);
  Replica a(world_, store, "a:1"), b(world_, "b:1");
  const LeaseName free = PlanLease("free"), taken = PlanLease("taken");
  b.Take(taken);
  a.Beat();  // and sees b
  store.trips = 0;
  EXPECT_TRUE(a.Take(free).mine);
  EXPECT_EQ(store.trips, 1);
  EXPECT_EQ(a.Take(taken).holder, (ReplicaId{"b:1", 1}));
  EXPECT_EQ(store.trips, 2);
  EXPECT_TRUE(a.Take(free).mine) << "it has it already";
  store.trips = store.puts = 0;
  EXPECT_EQ(a.leases.Take(taken, nullptr, true)->holder, (ReplicaId{"b:1", 1}));
  EXPECT_EQ(store.trips, 1);
  EXPECT_EQ(store.puts, 0) << "who asks again and again writes nothing";
  store.trips = 0;
  a.leases.HandOver(LeaseOf::kPlan);
  EXPECT_EQ(store.trips, 1);
  EXPECT_TRUE(b.Take(free).mine);
}

TEST_F(LeaseTripsTest, AStoreThatTakesNoWritesSaysWhoHasIt) {
  Refusing store(*world_.store);
  Replica a(world_, store, "a:1"), b(world_, "b:1");
  b.Take(job_);
  store.what = Refusing::What::kNew;
  EXPECT_EQ(a.Take(job_).holder, (ReplicaId{"b:1", 1}));
  store.refused = 0;
  EXPECT_TRUE(absl::IsUnavailable(a.leases.Take(JobLease("team", "another")).status()));
  EXPECT_EQ(store.refused, 1);
}

TEST_F(LeaseTripsTest, AStoreThatDoesNotAnswerIsNotWaitedForTwice) {
  Silent store(*world_.store, world_);
  Replica a(world_, store, "a:1");
  store.reads = 0;
  EXPECT_TRUE(absl::IsUnavailable(a.leases.Take(job_).status()));
  EXPECT_EQ(store.reads, 0);
}

// What was read before the lease was this one's says nothing: who had it may have stored the plan
// in between.
TEST_F(LeaseTripsTest, APlanIsReadBehindItsLeaseOrNotAtAll) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  ReadBehind behind;
  behind.plan_key = "key";
  EXPECT_TRUE(a.leases.Take(PlanLease("key"), &behind)->mine);
  ASSERT_TRUE(behind.plan.has_value());
  EXPECT_FALSE((*behind.plan)->has_value());
  ASSERT_TRUE(world_.store->PutPlan("key", "team", "plan").ok());
  EXPECT_FALSE(b.leases.Take(PlanLease("key"), &behind)->mine);
  EXPECT_EQ(**behind.plan, "plan");
  Pass(seconds(12), {&b});
  EXPECT_TRUE(b.leases.Take(PlanLease("key"), &behind)->mine) << "a is dead";
  EXPECT_FALSE(behind.plan.has_value());
}

TEST_F(LeaseTripsTest, RecordsAreReadBehindAJobsLeaseOrNotAtAll) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  ReadBehind behind;
  behind.names = {{Shelf::kPins, "pin"}};
  ASSERT_TRUE(world_.store->PutRecord(Shelf::kPins, "pin", "value").ok());
  EXPECT_TRUE(a.leases.Take(job_, &behind)->mine);
  ASSERT_EQ(behind.values.size(), 1u);
  EXPECT_EQ(*behind.values[0], "value");
  Pass(seconds(12), {&b});
  EXPECT_TRUE(b.leases.Take(job_, &behind)->mine) << "a is dead";
  EXPECT_TRUE(behind.values.empty());
}

TEST_F(LeaseTripsTest, ALeaseThatGoesWithItsPlanIsFree) {
  Replica a(world_, "a:1"), b(world_, "b:1");
  const LeaseName lease = PlanLease("key");
  EXPECT_FALSE(a.leases.RecordOf(lease).has_value());
  a.Take(lease);
  const std::optional<Record> record = a.leases.RecordOf(lease);
  ASSERT_TRUE(record.has_value());
  ASSERT_TRUE(world_.store->PutPlanAndErase("key", "team", "plan", Shelf::kReplicas, *record).ok());
  a.leases.GaveBack(lease);
  EXPECT_FALSE(a.leases.Holds(lease));
  EXPECT_TRUE(b.Take(lease).mine);
  a.leases.GaveBack(lease);
  EXPECT_TRUE(b.leases.Holds(lease));
}

}  // namespace
}  // namespace bucketd
