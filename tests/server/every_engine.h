// Every engine behind store.h: SQLite in memory and in a folder, PostgreSQL, and PostgreSQL behind
// a pooler that hands out transactions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "gtest/gtest.h"

#include "server/store/postgres/postgres_store.h"
#include "tests/server/postgres_cluster.h"
#include "tests/server/store_fixture.h"
#include "tests/temp_folder.h"

namespace bucketd::store_test {

enum class Engine { kMemory, kFolder, kPostgres, kPooled };

class ConformanceTest : public ::testing::TestWithParam<Engine> {
 protected:
  void SetUp() override {
    if (IsPostgres()) database_ = PostgresCluster::Get().NewDatabase();
    store_ = Open();
  }

  bool IsPostgres() const {
    return GetParam() == Engine::kPostgres || GetParam() == Engine::kPooled;
  }
  // Of what is in memory, another one.
  std::unique_ptr<Store> Open() {
    if (!IsPostgres()) return OpenSqlite();
    PostgresCluster& cluster = PostgresCluster::Get();
    PostgresStoreOptions options;
    options.url =
        GetParam() == Engine::kPooled ? cluster.PoolerUrl(database_) : cluster.Url(database_);
    options.max_bytes = max_bytes_;
    options.max_age = max_age_;
    options.audit = audit_;
    options.clock = [this] { return now_; };
    options.observer = observer_;
    auto made = PostgresStore::Open(options);
    EXPECT_TRUE(made.ok()) << made.status();
    maintain_ = [store = made->get()] { return store->Maintain(); };
    return *std::move(made);
  }
  std::unique_ptr<Store> OpenSqlite() {
    SqliteStoreOptions options;
    if (GetParam() == Engine::kFolder) options.directory = folder_ + "/store";
    options.max_bytes = max_bytes_;
    options.max_age = max_age_;
    options.audit = audit_;
    options.busy_timeout = std::chrono::seconds(20);
    options.clock = [this] { return now_; };
    options.observer = observer_;
    auto made = SqliteStore::Open(options);
    EXPECT_TRUE(made.ok()) << made.status();
    maintain_ = [store = made->get()] { return store->Maintain(); };
    return *std::move(made);
  }
  void OpenAnew() {
    if (GetParam() == Engine::kMemory) store_.reset();
    store_ = Open();
  }
  void Maintain() {
    const absl::Status status = maintain_();
    ASSERT_TRUE(status.ok()) << status;
  }

  void Put(const std::string& key, const std::string& plan, const std::string& tenant = "team") {
    const absl::Status status = store_->PutPlan(key, tenant, plan);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::string Get(const std::string& key) {
    const absl::StatusOr<std::optional<std::string>> plan = store_->GetPlan(key);
    return plan.ok() ? plan->value_or("") : plan.status().ToString();
  }
  std::string GetRecord(Shelf shelf, const std::string& key) {
    const absl::StatusOr<std::optional<std::string>> value = store_->GetRecord(shelf, key);
    return value.ok() ? value->value_or("") : value.status().ToString();
  }
  absl::StatusCode Replace(const std::string& key, const std::optional<std::string>& before,
                           const std::optional<std::string>& after, Store* by = nullptr) {
    Store& store = by == nullptr ? *store_ : *by;
    std::optional<absl::string_view> to;
    if (after.has_value()) to = *after;
    return store.ReplaceRecord(Shelf::kPins, key, before, to).code();
  }
  StoreStats Stats() {
    const absl::StatusOr<StoreStats> stats = store_->Stats();
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.ok() ? *stats : StoreStats();
  }

  const TempFolder temp_{Scratch()};
  const std::string& folder_ = temp_.path();
  std::string database_;
  int64_t max_bytes_ = int64_t{1} << 30;
  milliseconds max_age_{0};
  AuditRetention audit_;
  WallTime now_{milliseconds(1'800'000'000'000)};
  Counts counts_;
  StoreObserver* observer_ = &counts_;
  std::unique_ptr<Store> store_;
  std::function<absl::Status()> maintain_;
};

inline std::string NameOf(const ::testing::TestParamInfo<Engine>& engine) {
  switch (engine.param) {
    case Engine::kMemory:
      return "Memory";
    case Engine::kFolder:
      return "Folder";
    case Engine::kPostgres:
      return "Postgres";
    case Engine::kPooled:
      return "Pooled";
  }
  return "";
}

inline auto EveryEngine() {
  return ::testing::Values(Engine::kMemory, Engine::kFolder, Engine::kPostgres, Engine::kPooled);
}

}  // namespace bucketd::store_test
