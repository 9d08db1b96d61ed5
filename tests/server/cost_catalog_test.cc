// Cost profiles: what names mean, what survives a restart, and what damage leads to.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/server/costs_on_disk.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;

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
  // An error's details that are no UTF-8 would lose the reason, too.
  std::string accents = "a";
  for (int i = 0; i < 100; ++i) accents += "\xc3\xa9";
  const absl::Status cut = catalog_->Resolve(accents, "").status();
  EXPECT_EQ(ReasonOf(ParseRpcStatus(SerializeRpcStatus(cut))), "PROFILE_UNKNOWN");
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
  CostCatalog other(*store_, *metrics_);
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

// A fleet that promotes each of its measurements does not use its name up.
TEST_F(CostsOnDisk, OfVersionsThatWereAllPromotedTheOldestMakesRoom) {
  catalog_limits_.versions = 4;
  Restart();
  for (int i = 1; i <= 9; ++i) {
    ASSERT_EQ(Add(Named("site", i)).version, i);
    ASSERT_TRUE(Promote("site", i).ok());
  }
  Restart();
  EXPECT_EQ(catalog_->List("site").size(), 4U);
  EXPECT_EQ(Meaning("site@6"), "PROFILE_UNKNOWN");
  for (const int before : {8, 7, 1}) {
    ASSERT_TRUE(catalog_->Rollback("site").ok());
    EXPECT_EQ(Meaning("site@latest"), absl::StrCat("site@", before));
  }
  EXPECT_EQ(ReasonOf(catalog_->Rollback("site").status()), "NO_EARLIER_VERSION");
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

TEST_F(CostsOnDisk, VersionsBehindADamagedOneAreRead) {
  constexpr int kEach = 60;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    for (int i = 1; i <= kEach; ++i) Add(Named(name, i));
  }
  Spoil("version/a/0000000002");
  Restart();
  EXPECT_EQ(Meaning("a@2"), "PROFILE_UNREADABLE");
  EXPECT_EQ(Meaning("a@3"), "a@3");
  EXPECT_EQ(Meaning("e@60"), "e@60");
  EXPECT_EQ(metrics_->profiles_unreadable.Value(), 1);
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

}  // namespace
}  // namespace bucketd
