// Cost profiles and samples on a real store in a folder of the test's own, without gRPC.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"

#include "server/base/errors.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_samples.h"
#include "server/store/sqlite_store.h"
#include "server/store/store_file.h"
#include "tests/temp_folder.h"

namespace bucketd {

class CostsOnDisk : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }

  void Stop() {
    samples_.reset();
    catalog_.reset();
    metrics_.reset();
    store_.reset();
  }

  void Restart() {
    Stop();
    SqliteStoreOptions options;
    options.directory = folder_;
    absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    registry_ = std::make_unique<prometheus::Registry>();
    metrics_ = std::make_unique<CostMetrics>(*registry_);
    catalog_ = std::make_unique<CostCatalog>(*store_, *metrics_, catalog_limits_);
    ASSERT_TRUE(catalog_->Load().ok());
    samples_ = std::make_unique<CostSamples>(*store_, *metrics_, sample_limits_,
                                             [this] { return now_ms_; });
    ASSERT_TRUE(samples_->Load().ok());
  }

  // Records whose keys begin so do not match their checksums any more.
  void Spoil(const std::string& prefix) {
    Stop();
    auto db = OpenStoreDb(folder_, /*read_only=*/false, std::chrono::milliseconds(1000));
    ASSERT_TRUE(db.ok()) << db.status();
    const absl::Status done =
        (*db)->Exec(absl::StrCat("UPDATE records SET checksum = x'00' WHERE instr(key, CAST('",
                                 prefix, "' AS BLOB)) = 1")
                        .c_str());
    ASSERT_TRUE(done.ok()) << done;
  }

  static CostProfile Named(const std::string& name, double gamma_us) {
    CostProfile profile;
    profile.name = name;
    profile.gamma_us = gamma_us;
    return profile;
  }

  ProfileInfo Add(CostProfile profile, ProfileOrigin origin = ProfileOrigin::kImported) {
    const absl::StatusOr<CostCatalog::Added> added =
        catalog_->Add(std::move(profile), origin, "test");
    EXPECT_TRUE(added.ok()) << added.status();
    return added.ok() ? added->info : ProfileInfo();
  }

  absl::Status Promote(const std::string& name, int32_t version) {
    return catalog_->Promote(name, version, PromotionKind::kPromote).status();
  }

  // "name@version" of what `spec` means now, or the reason why it means nothing.
  std::string Meaning(const std::string& spec, const std::string& device = "cuda") {
    const absl::StatusOr<CostCatalog::ProfilePtr> profile = catalog_->Resolve(spec, device);
    return profile.ok() ? ProfileId(**profile) : ReasonOf(profile.status());
  }

  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
  CostCatalogLimits catalog_limits_;
  CostSampleLimits sample_limits_;
  int64_t now_ms_ = 1'800'000'000'000;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<prometheus::Registry> registry_;
  std::unique_ptr<CostMetrics> metrics_;
  std::unique_ptr<CostCatalog> catalog_;
  std::unique_ptr<CostSamples> samples_;
};

}  // namespace bucketd
