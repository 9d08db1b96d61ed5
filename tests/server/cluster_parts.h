// Replicas of one store in one process, with a clock that the tests move.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "prometheus/registry.h"

#include "server/cluster/leases.h"
#include "server/cluster/membership.h"
#include "server/store/sqlite_store.h"
#include "tests/server/forwarding_store.h"

namespace bucketd {

// One for all replicas of a test.
struct World {
  std::unique_ptr<SqliteStore> store = *SqliteStore::Open({});
  SteadyTime now{std::chrono::hours(1)};
};

// It has not said that it is up.
struct SilentReplica {
  SilentReplica(World& world, const std::string& address, uint64_t incarnation = 1)
      : SilentReplica(world, *world.store, address, incarnation) {}
  SilentReplica(World& world, Store& store, const std::string& address, uint64_t incarnation = 1)
      : world_(world),
        store_(store),
        members(store, {address, incarnation}, std::chrono::seconds(10), [this] { return Now(); }) {
  }

  SteadyTime Now() const { return world_.now; }
  void Beat() { ASSERT_TRUE(members.Beat().ok()) << members.Trouble(); }
  Lease Take(const LeaseName& name) {
    const absl::StatusOr<Lease> lease = leases.Take(name);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.value_or(Lease{});
  }

  World& world_;
  Store& store_;
  prometheus::Registry registry;
  ClusterMetrics metrics{registry};
  Membership members;
  Leases leases{store_, members, metrics, [this] { return Now(); }};
};

struct Replica : SilentReplica {
  Replica(World& world, const std::string& address, uint64_t incarnation = 1)
      : Replica(world, *world.store, address, incarnation) {}
  Replica(World& world, Store& store, const std::string& address, uint64_t incarnation = 1)
      : SilentReplica(world, store, address, incarnation) {
    Beat();
  }
};

// Refuses some records, as a store whose database is away.
class Refusing final : public ForwardingStore {
 public:
  enum class What : uint8_t { kNothing, kNew, kWritten, kErased };

  explicit Refusing(Store& store, What refuses = What::kNothing)
      : ForwardingStore(store), what(refuses) {}
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override {
    const What now = what;
    if ((now == What::kNew && !before->has_value()) ||
        (now == What::kWritten && after.has_value()) ||
        (now == What::kErased && !after.has_value())) {
      ++refused;
      return absl::UnavailableError("away");
    }
    return ForwardingStore::ChangeRecord(shelf, key, before, after, line);
  }
  std::atomic<What> what;
  std::atomic<int> refused = 0;
};

class ClusterPartsTest : public ::testing::Test {
 protected:
  // Time goes by, and who is named is well.
  void Pass(std::chrono::seconds time, const std::vector<Replica*>& well) {
    for (; time > std::chrono::seconds(0); time -= std::chrono::seconds(2)) {
      world_.now += std::chrono::seconds(2);
      for (Replica* replica : well) replica->Beat();
    }
  }

  size_t LeasesStored() {
    return world_.store->ListRecords(Shelf::kReplicas, "lease/", "", 9)->size();
  }

  World world_;
  const LeaseName job_ = JobLease("team", "train");
};

}  // namespace bucketd
