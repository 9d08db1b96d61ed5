// Cost profiles and samples without gRPC: what names mean, what survives a restart, what damage
// leads to, and what one reporter can fill or move. On a real store.
#include "server/cost_catalog.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"

#include "passes/cost/device_model.h"
#include "passes/io/profile_json.h"
#include "server/cost_names.h"
#include "server/cost_proposals.h"
#include "server/cost_samples.h"
#include "server/errors.h"
#include "server/store/sqlite_store.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CostsOnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "bucketd-costs-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    Restart();
  }
  void TearDown() override {
    Stop();
    std::filesystem::remove_all(folder_);
  }

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
    catalog_ = std::make_unique<CostCatalog>(store_.get(), *metrics_, catalog_limits_);
    ASSERT_TRUE(catalog_->Load().ok());
    samples_ = std::make_unique<CostSamples>(store_.get(), *metrics_, sample_limits_,
                                             [this] { return now_ms_; });
    ASSERT_TRUE(samples_->Load().ok());
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

  std::string folder_;
  CostCatalogLimits catalog_limits_;
  CostSampleLimits sample_limits_;
  int64_t now_ms_ = 1'800'000'000'000;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<prometheus::Registry> registry_;
  std::unique_ptr<CostMetrics> metrics_;
  std::unique_ptr<CostCatalog> catalog_;
  std::unique_ptr<CostSamples> samples_;
};

TEST_F(CostsOnDisk, NamesMeanWhatTheySay) {
  EXPECT_EQ(Meaning(""), "h100_nvlink@1");
  EXPECT_EQ(Meaning("", "cpu"), "cpu_loopback@1");
  EXPECT_EQ(Meaning("latest", "cpu"), "cpu_loopback@1");
  EXPECT_EQ(Meaning("slow_network"), "slow_network@1");
  EXPECT_EQ(Meaning("slow_network@1"), "slow_network@1");
  EXPECT_EQ(Meaning("slow_network@latest"), "slow_network@1");
  for (const char* nothing :
       {"h1000", "@1", "@", "slow_network@", "slow_network@2", "slow_network@01", "slow_network@+1",
        "slow_network@ 1", "slow_network@1 ", "slow_network@-1", "slow_network@99999999999",
        "slow_network@Latest", "slow_network@1@1", "/etc/passwd", "latest@1"}) {
    EXPECT_EQ(Meaning(nothing), nothing == std::string("@1") ? "h100_nvlink@1" : "PROFILE_UNKNOWN")
        << nothing;
  }
  const absl::Status unknown = catalog_->Resolve("h1000", "").status();
  EXPECT_THAT(unknown.message(), HasSubstr("small_batch"));
  const absl::Status no_version = catalog_->Resolve("slow_network@2", "").status();
  EXPECT_THAT(no_version.message(), HasSubstr("has versions 1"));
}

TEST_F(CostsOnDisk, ANewVersionIsNotLatestUntilItIsPromoted) {
  EXPECT_EQ(Add(Named("h100_nvlink", 3.0)).version, 2);
  EXPECT_EQ(Meaning("h100_nvlink@latest"), "h100_nvlink@1");
  EXPECT_EQ(Meaning("h100_nvlink@2"), "h100_nvlink@2");
  ASSERT_TRUE(Promote("h100_nvlink", 2).ok());
  EXPECT_EQ(Meaning("h100_nvlink@latest"), "h100_nvlink@2");
  EXPECT_EQ(Meaning("latest"), "h100_nvlink@2");
  EXPECT_EQ(Meaning("h100_nvlink"), "h100_nvlink@1") << "a name alone never moves";
  EXPECT_EQ(Meaning(""), "h100_nvlink@1");
  EXPECT_EQ(metrics_->promotions(PromotionKind::kPromote).Value(), 1);
  ASSERT_TRUE(Promote("h100_nvlink", 2).ok()) << "again changes nothing";
  EXPECT_EQ(metrics_->promotions(PromotionKind::kPromote).Value(), 1);
  EXPECT_EQ(ReasonOf(Promote("h100_nvlink", 3)), "PROFILE_UNKNOWN");
}

TEST_F(CostsOnDisk, TheFirstVersionOfANewNameIsLatest) {
  EXPECT_TRUE(Add(Named("site", 3.0)).promoted);
  EXPECT_FALSE(Add(Named("site", 4.0)).promoted);
  EXPECT_EQ(Meaning("site@latest"), "site@1");
  EXPECT_EQ(Meaning("site@2"), "site@2");
}

TEST_F(CostsOnDisk, RollbackGoesTheWayBackOfPromotions) {
  Add(Named("site", 3.0));
  Add(Named("site", 4.0));
  Add(Named("site", 5.0));
  EXPECT_EQ(ReasonOf(catalog_->Rollback("site").status()), "NO_EARLIER_VERSION");
  ASSERT_TRUE(Promote("site", 3).ok());
  ASSERT_TRUE(Promote("site", 2).ok());
  EXPECT_EQ(catalog_->Rollback("site")->before, 2);
  EXPECT_EQ(Meaning("site@latest"), "site@3");
  Restart();
  EXPECT_EQ(catalog_->Rollback("site")->info.version, 1);
  EXPECT_EQ(ReasonOf(catalog_->Rollback("site").status()), "NO_EARLIER_VERSION");
  EXPECT_EQ(ReasonOf(catalog_->Rollback("h100_nvlink").status()), "NO_EARLIER_VERSION");
  EXPECT_EQ(ReasonOf(catalog_->Rollback("nobody").status()), "PROFILE_UNKNOWN");
}

TEST_F(CostsOnDisk, TheSameNumbersAreNoNewVersion) {
  Add(Named("site", 3.0));
  const absl::StatusOr<CostCatalog::Added> again =
      catalog_->Add(Named("site", 3.0), ProfileOrigin::kImported, "other");
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->already_there);
  EXPECT_EQ(again->info.version, 1);
  EXPECT_EQ(Add(Named("site", 3.5)).version, 2);
}

TEST_F(CostsOnDisk, EverythingSurvivesARestart) {
  CostProfile profile = Named("site", 3.0);
  profile.about = "rack 7";
  profile.links.resize(1);
  profile.links[0].of = {CollectiveKind::kAllGather, "", 8, 8, DType::kBF16};
  profile.links[0].busbw_bytes_per_s = 1e11;
  Add(profile);
  Add(Named("h100_nvlink", 7.0), ProfileOrigin::kMeasured);
  ASSERT_TRUE(Promote("h100_nvlink", 2).ok());
  const std::string fingerprint = (*catalog_->Resolve("site", ""))->Fingerprint();
  Restart();
  EXPECT_EQ(Meaning("latest"), "h100_nvlink@2");
  EXPECT_EQ((*catalog_->Resolve("site", ""))->Fingerprint(), fingerprint);
  const std::vector<ProfileInfo> site = catalog_->List("site");
  ASSERT_EQ(site.size(), 1U);
  EXPECT_EQ(site[0].about, "rack 7");
  EXPECT_EQ(site[0].by, "test");
  EXPECT_EQ(site[0].links, 1);
  EXPECT_GT(site[0].created_unix_ms, 0);
  EXPECT_EQ(catalog_->List("h100_nvlink")[1].origin, ProfileOrigin::kMeasured);
  EXPECT_EQ(Add(Named("site", 9.0)).version, 2) << "numbers go on";
}

TEST_F(CostsOnDisk, TwoServersOnOneStoreGiveNoNumberTwice) {
  Add(Named("site", 1.0));
  CostCatalog other(store_.get(), *metrics_);
  ASSERT_TRUE(other.Load().ok());
  EXPECT_EQ(Add(Named("site", 2.0)).version, 2);
  ASSERT_TRUE(Promote("site", 2).ok());
  const auto added = other.Add(Named("site", 3.0), ProfileOrigin::kImported, "other");
  ASSERT_TRUE(added.ok());
  EXPECT_EQ(added->info.version, 3);
  EXPECT_EQ(ProfileId(**other.Resolve("site@latest", "")), "site@2");
  EXPECT_EQ(other.Rollback("site")->before, 2);
  Restart();
  EXPECT_EQ((*catalog_->Resolve("site@2", ""))->gamma_us, 2.0);
  EXPECT_EQ((*catalog_->Resolve("site@3", ""))->gamma_us, 3.0);
  EXPECT_EQ(Meaning("site@latest"), "site@1");
}

TEST_F(CostsOnDisk, ANumberIsNeverGivenTwice) {
  catalog_limits_.versions = 3;
  Restart();
  Add(Named("site", 1.0));
  for (int i = 2; i <= 9; ++i) EXPECT_EQ(Add(Named("site", i)).version, i);
  EXPECT_EQ(Meaning("site@5"), "PROFILE_UNKNOWN") << "made room";
  EXPECT_EQ(Meaning("site@1"), "site@1") << "the first one, and promoted";
  EXPECT_EQ(Meaning("site@9"), "site@9");
  EXPECT_EQ(catalog_->List("site").size(), 3U);
  Restart();
  EXPECT_EQ(catalog_->List("site").size(), 3U);
  EXPECT_EQ(Add(Named("site", 10.0)).version, 10);
}

TEST_F(CostsOnDisk, VersionsThatWerePromotedStay) {
  catalog_limits_.versions = 3;
  catalog_limits_.names = 7;
  Restart();
  for (int i = 1; i <= 3; ++i) {
    Add(Named("site", i));
    ASSERT_TRUE(Promote("site", i).ok());
  }
  const absl::Status full =
      catalog_->Add(Named("site", 4.0), ProfileOrigin::kImported, "").status();
  EXPECT_EQ(ReasonOf(full), "PROFILE_LIMIT");
  EXPECT_EQ(Meaning("site@latest"), "site@3");
  Add(Named("other", 1.0));
  EXPECT_EQ(ReasonOf(catalog_->Add(Named("third", 1.0), ProfileOrigin::kImported, "").status()),
            "PROFILE_LIMIT")
      << "five built in and two";
}

TEST_F(CostsOnDisk, WhatMakesNoSenseIsRefused) {
  const auto reason = [&](CostProfile profile, const std::string& by = "") {
    return ReasonOf(catalog_->Add(std::move(profile), ProfileOrigin::kImported, by).status());
  };
  for (const char* name : {"", "latest", "A", "a/b", "a@1", "_a", "a b", "-"}) {
    EXPECT_EQ(reason(Named(name, 1.0)), "PROFILE_INVALID") << name;
  }
  EXPECT_EQ(reason(Named(std::string(65, 'a'), 1.0)), "PROFILE_INVALID");
  EXPECT_EQ(reason(Named("a", -1.0)), "PROFILE_INVALID");
  CostProfile wordy = Named("a", 1.0);
  wordy.about = std::string(1025, 'x');
  EXPECT_EQ(reason(wordy), "PROFILE_INVALID");
  wordy.about = "\033[2J";
  EXPECT_EQ(reason(wordy), "PROFILE_INVALID");
  EXPECT_EQ(reason(Named("a", 1.0), std::string(129, 'x')), "PROFILE_INVALID");
  EXPECT_EQ(reason(Named(std::string(64, 'a'), 1.0), std::string(128, 'x')), "");
}

// Flips a bit of each place in the store's files that holds `text`; how many places.
int Damage(const std::string& folder, const std::string& text) {
  int places = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(in), {});
    const int before = places;
    for (size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) {
      bytes[at] = static_cast<char>(bytes[at] ^ 1);
      ++places;
    }
    if (places > before) std::ofstream(entry.path(), std::ios::binary) << bytes;
  }
  return places;
}

// Large enough for pages of its own, with `mark` in the last of them.
CostProfile Large(double gamma_us, const std::string& mark) {
  CostProfile profile;
  profile.name = "site";
  profile.gamma_us = gamma_us;
  for (int32_t size = 2; size < 400; ++size) {
    MeasuredLink link;
    link.of = {CollectiveKind::kAllGather, size < 390 ? "" : mark, size, size, DType::kBF16};
    link.busbw_bytes_per_s = 1e11;
    profile.links.push_back(link);
  }
  std::sort(profile.links.begin(), profile.links.end(),
            [](const MeasuredLink& a, const MeasuredLink& b) { return a.of < b.of; });
  return profile;
}

TEST_F(CostsOnDisk, ADamagedVersionIsAnErrorAndNeverAnotherVersion) {
  Add(Large(1.0, "first-mark"));
  Add(Large(2.0, "second-mark"));
  ASSERT_TRUE(Promote("site", 2).ok());
  Stop();
  ASSERT_GT(Damage(folder_, "second-mark"), 0);
  Restart();
  EXPECT_EQ(Meaning("site@2"), "PROFILE_UNREADABLE");
  EXPECT_EQ(Meaning("site@latest"), "PROFILE_UNREADABLE");
  EXPECT_EQ(Meaning("site@1"), "site@1");
  EXPECT_EQ(Meaning("site@3"), "PROFILE_UNKNOWN");
  EXPECT_GE(metrics_->records_unreadable.Value(), 1);
  EXPECT_EQ(metrics_->profiles_unreadable.Value(), 1);
  EXPECT_FALSE(catalog_->List("site")[1].readable);
  EXPECT_EQ(ReasonOf(Promote("site", 2)), "PROFILE_UNREADABLE");
  Restart();
  EXPECT_EQ(Meaning("site@latest"), "PROFILE_UNREADABLE") << "still, after another start";
  EXPECT_EQ(catalog_->Rollback("site")->info.version, 1);
  EXPECT_EQ(Meaning("site@latest"), "site@1");
  EXPECT_EQ(Add(Large(2.0, "second-mark")).version, 3)
      << "a new version, not the lost one's number";
}

TEST_F(CostsOnDisk, RecordsThatThisVersionDoesNotReadAreNamedNotGuessed) {
  Add(Named("site", 1.0));
  Add(Named("site", 2.0));
  ASSERT_TRUE(store_->PutRecord(Shelf::kProfiles, "version/site/0000000002", "garbage").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kProfiles, "version/other/0000000001", "").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kProfiles, "name/..", "x").ok());
  Restart();
  EXPECT_EQ(Meaning("site@2"), "PROFILE_UNREADABLE");
  EXPECT_EQ(Meaning("site@latest"), "site@1");
  EXPECT_EQ(metrics_->records_unreadable.Value(), 3);
  // The record of one version under the number of another.
  const auto first = store_->GetRecord(Shelf::kProfiles, "version/site/0000000001");
  ASSERT_TRUE(first.ok() && first->has_value());
  ASSERT_TRUE(store_->PutRecord(Shelf::kProfiles, "version/site/0000000002", **first).ok());
  Restart();
  EXPECT_EQ(Meaning("site@2"), "PROFILE_UNREADABLE");
}

TEST_F(CostsOnDisk, WhereWhatWasPromotedIsLostLatestIsAnErrorUntilItIsSaid) {
  Add(Named("site", 1.0));
  Add(Named("site", 2.0));
  ASSERT_TRUE(Promote("site", 2).ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kProfiles, "name/site", "garbage").ok());
  Restart();
  EXPECT_EQ(Meaning("site@latest"), "PROFILE_UNREADABLE");
  EXPECT_EQ(Meaning("site@2"), "site@2");
  ASSERT_TRUE(Promote("site", 1).ok());
  Restart();
  EXPECT_EQ(Meaning("site@latest"), "site@1");
}

// Samples.

CostReport Report(const std::string& reporter, double factor, int rounds = 4,
                  const std::string& profile = "h100_nvlink") {
  CostReport report;
  report.profile = profile;
  report.by = {reporter, "job-1", "probe", "H100"};
  CollectiveSample sample;
  sample.of = {CollectiveKind::kAllGather, "", 8, 8, DType::kBF16};
  const StatedCosts::Link link = LinkUnder(CostProfile(), sample.of);
  for (sample.bytes = 4096; sample.bytes <= int64_t{64} << 20; sample.bytes *= 4) {
    const double us = link.alpha_us + WireFactor(sample.of.kind, 8) *
                                          static_cast<double>(sample.bytes) /
                                          link.busbw_bytes_per_s * 1e6;
    sample.picoseconds = static_cast<int64_t>(us * factor * 1e6);
    for (int i = 0; i < rounds; ++i) report.samples.push_back(sample);
  }
  return report;
}

TEST_F(CostsOnDisk, SamplesSurviveARestartWithWhoMeasuredThem) {
  const CostReport report = Report("node1", 1.5);
  const auto taken = samples_->Add(report, "host:node1");
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->accepted, static_cast<int32_t>(report.samples.size()));
  const auto before = samples_->Get("h100_nvlink");
  Restart();
  const auto after = samples_->Get("h100_nvlink");
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].of, before[0].of);
  ASSERT_EQ(after[0].samples.size(), report.samples.size());
  EXPECT_EQ(after[0].samples[0].reporter, "host:node1");
  EXPECT_EQ(after[0].samples[0].picoseconds, before[0].samples[0].picoseconds);
  EXPECT_TRUE(samples_->Get("slow_network").empty());
  const std::vector<HeldClass> held = samples_->List("");
  ASSERT_EQ(held.size(), 1U);
  EXPECT_EQ(held[0].voters, 1);
  EXPECT_EQ(held[0].newest_unix_ms, now_ms_);
}

TEST_F(CostsOnDisk, OldSamplesAreForgotten) {
  ASSERT_TRUE(samples_->Add(Report("a", 1.5), "host:a").ok());
  now_ms_ += sample_limits_.max_age_ms / 2;
  ASSERT_TRUE(samples_->Add(Report("b", 1.5), "host:b").ok());
  now_ms_ += sample_limits_.max_age_ms / 2 + 1;
  ASSERT_EQ(samples_->List("").size(), 1U);
  EXPECT_EQ(samples_->List("")[0].voters, 1);
  now_ms_ += sample_limits_.max_age_ms;
  EXPECT_TRUE(samples_->List("").empty());
  EXPECT_EQ(metrics_->samples_held.Value(), 0);
  Restart();
  EXPECT_TRUE(samples_->List("").empty());
  EXPECT_TRUE(store_->ListRecords(Shelf::kCostSamples, "", "", 10)->empty());
}

TEST_F(CostsOnDisk, AFloodPushesOutItsOwnSamplesFirst) {
  ASSERT_TRUE(samples_->Add(Report("honest", 1.5), "ipv4:10.0.0.1").ok());
  const auto of_honest = [&] {
    const auto held = samples_->Get("h100_nvlink");
    return std::count_if(held[0].samples.begin(), held[0].samples.end(),
                         [](const MeasuredSample& s) { return s.reporter == "ipv4:10.0.0.1"; });
  };
  const auto before = of_honest();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(samples_->Add(Report(absl::StrCat("fake", i), 9.0, 1000), "ipv4:10.0.0.66").ok());
  }
  EXPECT_EQ(of_honest(), before);
  EXPECT_EQ(samples_->List("")[0].voters, 2) << "one address, one voter, whatever hosts it names";
  EXPECT_EQ(samples_->List("")[0].samples, before + 8 * 8) << "eight of each of eight sizes";
}

TEST_F(CostsOnDisk, AllBoundsHoldAtTheLimitAndOneBeyond) {
  sample_limits_.total = 8;
  sample_limits_.classes = 2;
  sample_limits_.voters = 2;
  Restart();
  const auto one = [](int32_t group, int64_t bytes) {
    CostReport report;
    report.profile = "h100_nvlink";
    report.by.reporter = "r";
    CollectiveSample sample;
    sample.of = {CollectiveKind::kAllReduce, "", group, group, DType::kF32};
    sample.bytes = bytes;
    sample.picoseconds = 1'000'000;
    report.samples = {sample};
    return report;
  };
  const auto accepted = [&](const CostReport& report, const std::string& voter) {
    const auto taken = samples_->Add(report, voter);
    EXPECT_TRUE(taken.ok());
    EXPECT_EQ(taken->accepted + taken->limited, static_cast<int32_t>(report.samples.size()));
    return taken->accepted;
  };
  EXPECT_EQ(accepted(one(2, 1), "a"), 1);
  EXPECT_EQ(accepted(one(4, 1), "a"), 1);
  EXPECT_EQ(accepted(one(8, 1), "a"), 0) << "a third class";
  now_ms_ += 1;
  EXPECT_EQ(accepted(one(2, 1), "b"), 1);
  now_ms_ += 1;
  EXPECT_EQ(accepted(one(2, 1), "c"), 1);
  EXPECT_EQ(samples_->List("")[0].voters, 2) << "the quietest one went";
  for (int64_t bytes = 2; bytes <= 32; bytes *= 2) {
    EXPECT_EQ(accepted(one(2, bytes), "b"), 1) << bytes;
  }
  EXPECT_EQ(metrics_->samples_held.Value(), 8);
  EXPECT_EQ(accepted(one(2, 64), "b"), 0) << "a ninth sample";
  EXPECT_EQ(metrics_->samples(SampleResult::kLimited).Value(), 2);
}

TEST_F(CostsOnDisk, RecordsOfSamplesThatMakeNoSenseAreCountedAndLeftOut) {
  ASSERT_TRUE(samples_->Add(Report("a", 1.5), "host:a").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kCostSamples, "h100_nvlink/x", "garbage").ok());
  Restart();
  EXPECT_EQ(samples_->List("").size(), 1U);
  EXPECT_EQ(metrics_->records_unreadable.Value(), 1);
}

TEST(Voters, AreAddressesAndOnAUnixSocketHosts) {
  EXPECT_EQ(VoterOf("ipv4:10.0.0.3:5123", "a"), VoterOf("ipv4:10.0.0.3:9", "b"));
  EXPECT_NE(VoterOf("ipv4:10.0.0.3:5123", "a"), VoterOf("ipv4:10.0.0.4:5123", "a"));
  EXPECT_NE(VoterOf("ipv6:[fe80::1]:7", "a"), VoterOf("ipv6:[fe80::2]:7", "a"));
  for (const char* own : {"ipv4:127.0.0.1:80", "ipv4:127.1.2.3:80", "ipv6:[::1]:80",
                          "ipv6:%5B::1%5D:80", "ipv6:[::ffff:127.0.0.1]:80"}) {
    EXPECT_EQ(VoterOf(own, "a"), "loopback") << own;
  }
  EXPECT_EQ(VoterOf("unix:/run/x", "a"), "host:a");
  EXPECT_EQ(VoterOf("unix:", "b"), "host:b");
}

// Proposals.

TEST_F(CostsOnDisk, AProposalIsACandidateThatAPersonPromotes) {
  EXPECT_EQ(ReasonOf(ProposeProfile("h100_nvlink", *catalog_, *samples_, {}, *metrics_).status()),
            "NO_SAMPLES");
  for (const char* host : {"a", "b", "c"}) {
    ASSERT_TRUE(samples_->Add(Report(host, 1.5), absl::StrCat("host:", host)).ok());
  }
  const auto proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, {}, *metrics_);
  ASSERT_TRUE(proposal.ok()) << proposal.status();
  ASSERT_TRUE(proposal->version.has_value());
  EXPECT_EQ(proposal->version->version, 2);
  EXPECT_FALSE(proposal->promoted);
  EXPECT_THAT(proposal->version->about, HasSubstr("h100_nvlink@1"));
  EXPECT_EQ(Meaning("h100_nvlink@latest"), "h100_nvlink@1");
  const auto candidate = *catalog_->Resolve("h100_nvlink@2", "");
  ASSERT_EQ(candidate->links.size(), 1U);
  EXPECT_NEAR(
      candidate->links[0].alpha_us / LinkUnder(CostProfile(), candidate->links[0].of).alpha_us, 1.5,
      0.01);
  const auto again = ProposeProfile("h100_nvlink", *catalog_, *samples_, {}, *metrics_);
  EXPECT_EQ(again->version->version, 2) << "the same samples, the same version";
  ASSERT_TRUE(Promote("h100_nvlink", 2).ok());
  const auto settled = ProposeProfile("h100_nvlink", *catalog_, *samples_, {}, *metrics_);
  ASSERT_TRUE(settled.ok());
  EXPECT_FALSE(settled->version.has_value()) << "it says what they say";
}

TEST_F(CostsOnDisk, WithAutomaticPromotionAQuorumIsEnoughAndALoneVoiceIsNot) {
  CostOptions options;
  options.auto_promote = true;
  ASSERT_TRUE(samples_->Add(Report("a", 1.2), "host:a").ok());
  auto proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, options, *metrics_);
  ASSERT_TRUE(proposal.ok());
  EXPECT_FALSE(proposal->promoted);
  for (const char* host : {"b", "c"}) {
    ASSERT_TRUE(samples_->Add(Report(host, 1.2), absl::StrCat("host:", host)).ok());
  }
  proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, options, *metrics_);
  ASSERT_TRUE(proposal.ok());
  EXPECT_TRUE(proposal->promoted);
  EXPECT_EQ(Meaning("latest"), ProfileId(**catalog_->Resolve("h100_nvlink@latest", "")));
  EXPECT_EQ(metrics_->promotions(PromotionKind::kAutomatic).Value(), 1);
  // Beyond what one version may move nothing goes out by itself.
  for (const char* host : {"a", "b", "c"}) {
    ASSERT_TRUE(samples_->Add(Report(host, 50.0, 8), absl::StrCat("host:", host)).ok());
  }
  proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, options, *metrics_);
  ASSERT_TRUE(proposal.ok() && proposal->version.has_value());
  EXPECT_FALSE(proposal->promoted);
}

TEST_F(CostsOnDisk, AHostileReporterMovesACandidateNoFurtherThanItsBound) {
  CostOptions options;
  for (const double lie : {1e-3, 1e3}) {
    ASSERT_TRUE(samples_->Add(Report("liar", lie, 100), "ipv4:10.0.0.66").ok());
    const auto proposal = ProposeProfile("h100_nvlink", *catalog_, *samples_, options, *metrics_);
    ASSERT_TRUE(proposal.ok() && proposal->version.has_value());
    const LinkClass of = proposal->fit.classes[0].of;
    const StatedCosts::Link link = LinkUnder(proposal->fit.profile, of);
    const StatedCosts::Link was = LinkUnder(CostProfile(), of);
    EXPECT_LE(link.alpha_us, was.alpha_us * 1.25 * (1 + 1e-9));
    EXPECT_GE(link.alpha_us, was.alpha_us / 1.25 * (1 - 1e-9));
    EXPECT_LE(link.busbw_bytes_per_s, was.busbw_bytes_per_s * 1.25 * (1 + 1e-9));
    EXPECT_GE(link.busbw_bytes_per_s, was.busbw_bytes_per_s / 1.25 * (1 - 1e-9));
    EXPECT_TRUE(proposal->fit.classes[0].clamped);
  }
  // However often it reports: what counts is the promoted version, and that did not move.
  EXPECT_EQ(Meaning("latest"), "h100_nvlink@1");
}

}  // namespace
}  // namespace bucketd
