// The audit log as store.h promises it, on every engine; and what older stores and damage do to it.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "server/store/audit_trim.h"
#include "server/store/store_file.h"
#include "tests/server/every_engine.h"
#include "tests/temp_folder.h"

namespace bucketd::store_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

AuditLine Line(const std::string& what, const std::string& subject = "job",
               const std::string& tenant = "team", const std::string& who = "URI:x/ops",
               const std::string& host = "ipv4:10.0.0.7") {
  return {{who, host, "team"}, tenant, what, subject, "was", "is"};
}

class AuditTest : public ConformanceTest {
 protected:
  std::vector<AuditEntry> List(const AuditSelection& selection = {}, int32_t limit = 1000) {
    absl::StatusOr<std::vector<AuditEntry>> entries = store_->ListAudit(selection, limit);
    EXPECT_TRUE(entries.ok()) << entries.status();
    return entries.ok() ? *std::move(entries) : std::vector<AuditEntry>();
  }
  std::vector<std::string> Said(const AuditSelection& selection = {}, int32_t limit = 1000) {
    std::vector<std::string> said;
    for (const AuditEntry& entry : List(selection, limit)) {
      said.push_back(absl::StrCat(entry.line.what, " ", entry.line.subject));
    }
    return said;
  }
  void Change(const AuditLine& line) {
    const absl::Status status = store_->PutRecord(Shelf::kPins, "key", line.subject, &line);
    ASSERT_TRUE(status.ok()) << status;
  }
};

INSTANTIATE_TEST_SUITE_P(Engines, AuditTest, EveryEngine(), NameOf);

TEST_P(AuditTest, AChangeAndItsLineAreThereTogetherAndAsTheyWereWritten) {
  const std::string odd("\xff\0'", 3);
  const AuditLine line{{odd, "unix", "*"}, odd, "pin", odd, std::string(), odd};
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "key", "value", &line).ok());
  if (GetParam() != Engine::kMemory) OpenAnew();
  const std::vector<AuditEntry> entries = List();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].when, now_);
  EXPECT_EQ(entries[0].line.by.who, odd);
  EXPECT_EQ(entries[0].line.by.peer, "unix");
  EXPECT_EQ(entries[0].line.by.tenant, "*");
  EXPECT_EQ(entries[0].line.tenant, odd);
  EXPECT_EQ(entries[0].line.what, "pin");
  EXPECT_EQ(entries[0].line.subject, odd);
  EXPECT_EQ(entries[0].line.before, "");
  EXPECT_EQ(entries[0].line.after, odd);
}

TEST_P(AuditTest, WhatChangesNothingLeavesNoLine) {
  const AuditLine line = Line("pin");
  ASSERT_TRUE(store_->EraseRecord(Shelf::kPins, "none", &line).ok());
  const auto replace = [&](const std::optional<std::string>& before,
                           const std::optional<absl::string_view>& after) {
    return store_->ReplaceRecord(Shelf::kPins, "key", before, after, &line);
  };
  EXPECT_EQ(replace("other", "value").code(), absl::StatusCode::kAborted);
  EXPECT_EQ(replace("other", std::nullopt).code(), absl::StatusCode::kAborted);
  PlanSelection none;
  none.tenant = "nobody";
  EXPECT_EQ(*store_->EvictPlans(none, &line), 0);
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_TRUE(replace(std::nullopt, "value").ok());
  EXPECT_EQ(List().size(), 1U);
  EXPECT_EQ(replace(std::nullopt, "again").code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(replace("value", "next").ok());
  EXPECT_EQ(List().size(), 2U);
  EXPECT_TRUE(replace("next", std::nullopt).ok());
  EXPECT_EQ(List().size(), 3U);
}

TEST_P(AuditTest, AnEvictionSaysHowManyWent) {
  for (int i = 0; i < 3; ++i) Put(KeyOf(i), "plan");
  PlanSelection all;
  const AuditLine line = Line("evict", "all plans");
  EXPECT_EQ(*store_->EvictPlans(all, &line), 3);
  const std::vector<AuditEntry> entries = List();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].line.after, "3 plans gone");
}

TEST_P(AuditTest, LinesAreSelectedByTenantWhoWhatAndTimeInPagesTheNewestFirst) {
  Change(Line("pin", "1"));
  now_ += minutes(1);
  Change(Line("release", "2", "other", "URI:x/train"));
  now_ += minutes(1);
  Change(Line("pin", "3", ""));
  EXPECT_THAT(Said(), ElementsAre("pin 3", "release 2", "pin 1"));
  EXPECT_THAT(Said({}, 2), ElementsAre("pin 3", "release 2"));
  AuditSelection selection;
  selection.before_number = List({}, 2)[1].number;
  EXPECT_THAT(Said(selection), ElementsAre("pin 1"));
  selection = {};
  selection.tenant = "";
  EXPECT_THAT(Said(selection), ElementsAre("pin 3"));
  selection.tenant = "other";
  EXPECT_THAT(Said(selection), ElementsAre("release 2"));
  selection = {};
  selection.who = "/ops";
  EXPECT_THAT(Said(selection), ElementsAre("pin 3", "pin 1"));
  selection.what = "release";
  EXPECT_THAT(Said(selection), IsEmpty());
  selection = {};
  Change(Line("enable", "planning", "*", "", "unix:"));
  selection.who = "unix";
  EXPECT_THAT(Said(selection), ElementsAre("enable planning"))
      << "callers without a name are shown by their host";
  selection = {};
  selection.since = now_ - minutes(1);
  EXPECT_THAT(Said(selection), ElementsAre("enable planning", "pin 3", "release 2"));
}

TEST_P(AuditTest, LinesBeyondTheirNumberAndAgeGoWithMaintenanceTheOldestFirst) {
  audit_ = {.lines = 3, .age = minutes(30)};
  OpenAnew();
  for (int i = 1; i <= 5; ++i) Change(Line("pin", absl::StrCat(i)));
  Maintain();
  EXPECT_THAT(Said(), ElementsAre("pin 5", "pin 4", "pin 3"));
  now_ += minutes(30) + milliseconds(1);
  Change(Line("pin", "6"));
  Maintain();
  EXPECT_THAT(Said(), ElementsAre("pin 6"));
}

TEST_P(AuditTest, LinesThatCallsCauseTakeNoLineOfOperatorsAway) {
  audit_ = {.lines = 3, .age = hours(1)};
  OpenAnew();
  for (const char* what : {"disable", "evict", "release"}) Change(Line(what, "1", "other"));
  for (int i = 1; i <= 4; ++i) {
    for (const char* what : {"generation", "pin", "finish", "displace", "report", "epochs"}) {
      Change(Line(what, absl::StrCat(i)));
    }
  }
  Maintain();
  EXPECT_THAT(Said(), ElementsAre("epochs 4", "report 4", "displace 4", "release 1", "evict 1",
                                  "disable 1"));
  for (const char* what : {"enable", "keep"}) Change(Line(what, "2", "other"));
  Maintain();
  EXPECT_THAT(Said(),
              ElementsAre("keep 2", "enable 2", "epochs 4", "report 4", "displace 4", "release 1"))
      << "they have a bound of their own";
  now_ += hours(1) + milliseconds(1);
  Change(Line("pin", "5"));
  Maintain();
  EXPECT_THAT(Said(), ElementsAre("pin 5")) << "age is the same for all";
}

TEST_P(AuditTest, ATenantOfManyLinesLosesItsOwn) {
  audit_ = {.lines = 6, .age = hours(1)};
  OpenAnew();
  for (int i = 1; i <= 3; ++i) {
    Change(Line("pin", absl::StrCat("a", i), "team-a"));
    Change(Line("evict", absl::StrCat("a", i), "team-a"));
  }
  for (int i = 1; i <= 9; ++i) {
    Change(Line("pin", absl::StrCat("b", i), "team-b"));
    Change(Line("evict", absl::StrCat("b", i), "team-b"));
  }
  Maintain();
  for (const std::string what : {"pin", "evict"}) {
    AuditSelection of;
    of.what = what;
    EXPECT_THAT(Said(of), ElementsAre(what + " b9", what + " b8", what + " b7", what + " a3",
                                      what + " a2", what + " a1"));
  }
}

TEST_P(AuditTest, AFewLinesMoreAreNotWorthALook) {
  audit_ = {.lines = 32, .age = hours(1)};
  OpenAnew();
  for (int i = 1; i <= 34; ++i) Change(Line("pin", absl::StrCat(i)));
  Maintain();
  EXPECT_EQ(List().size(), 34U);
  Change(Line("pin", "35"));
  Maintain();
  EXPECT_EQ(List().size(), 32U);
  EXPECT_EQ(Said().back(), "pin 4");
}

TEST_P(AuditTest, OfMoreTenantsThanLinesTheNewestHaveOneEach) {
  audit_ = {.lines = 3, .age = hours(1)};
  OpenAnew();
  for (int i = 1; i <= 5; ++i) {
    for (const char* subject : {"a", "b"}) Change(Line("pin", subject, absl::StrCat("t", i)));
  }
  Maintain();
  std::vector<std::string> tenants;
  for (const AuditEntry& entry : List()) tenants.push_back(entry.line.tenant);
  EXPECT_THAT(tenants, ElementsAre("t5", "t4", "t3"));
  EXPECT_THAT(Said(), ElementsAre("pin b", "pin b", "pin b"));
}

TEST_P(AuditTest, ManyOldLinesGoAtOnce) {
  audit_ = {.lines = 5'000, .age = hours(1)};
  OpenAnew();
  std::vector<AuditEntry> entries;
  for (int i = 1; i <= 2'500; ++i) entries.push_back({i, 0, now_ - hours(2), Line("pin")});
  for (int i = 2'501; i <= 2'503; ++i) entries.push_back({i, 0, now_, Line("keep")});
  ASSERT_EQ(*store_->AddAudit(entries), 2'503);
  Maintain();
  EXPECT_THAT(Said({}, 10'000), ElementsAre("keep job", "keep job", "keep job"));
}

// More than are looked at in one go.
TEST_P(AuditTest, ManyLinesGoAtOnceAndThoseAmongThemStay) {
  audit_ = {.lines = 300, .age = hours(1)};
  OpenAnew();
  std::vector<AuditEntry> entries;
  for (int i = 1; i <= 5'000; ++i) {
    const bool kept = i % 50 == 0;  // 100 of them
    entries.push_back({i, 0, now_, kept ? Line("keep") : Line("pin", absl::StrCat(i), "flood")});
  }
  ASSERT_EQ(*store_->AddAudit(entries), 5'000);
  Maintain();
  const std::vector<std::string> said = Said({}, 10'000);
  EXPECT_EQ(std::count(said.begin(), said.end(), "keep job"), 100);
  EXPECT_EQ(said.size(), 400U);
  AuditSelection pins;
  pins.what = "pin";
  EXPECT_EQ(Said(pins, 10'000).back(), "pin 4694") << "the oldest went";
}

TEST_P(AuditTest, LongTextsAreCut) {
  AuditLine line = Line("pin");
  line.after = std::string(100'000, 'x');
  Change(line);
  EXPECT_EQ(List()[0].line.after.size(), kAuditTextBytes);
}

TEST_P(AuditTest, CopiedLinesKeepTheirTimesAndComeOnce) {
  std::vector<AuditEntry> entries;
  for (int i = 1; i <= 3; ++i) {
    entries.push_back({i, 0, now_ - hours(i), Line("pin", absl::StrCat(i))});
  }
  EXPECT_EQ(*store_->AddAudit(entries), 3);
  entries.push_back({4, 0, now_, Line("pin", "4")});
  EXPECT_EQ(*store_->AddAudit(entries), 1);
  EXPECT_THAT(Said(), ElementsAre("pin 4", "pin 3", "pin 2", "pin 1"));
  EXPECT_EQ(List()[3].when, now_ - hours(1));
}

// One looks at the lines, and another has taken away what is too much before it does so itself.
TEST(AuditTrim, OfServersThatTrimAtOnceEachTakesTheSame) {
  std::map<int64_t, AuditLineAt, std::greater<>> lines;
  for (int64_t i = 1; i <= 2'500; ++i) lines[i] = {i, i % 2 == 0 ? "a" : "b", "pin"};
  AuditTable table;
  table.count = [&] {
    return std::vector<AuditCount>{{"a", "pin", static_cast<int64_t>(lines.size() / 2)},
                                   {"b", "pin", static_cast<int64_t>(lines.size() / 2)}};
  };
  table.list = [&](int64_t before, int32_t limit) {
    std::vector<AuditLineAt> page;
    for (auto line = lines.upper_bound(before); line != lines.end(); ++line) {
      if (page.size() < static_cast<size_t>(limit)) page.push_back(line->second);
    }
    return page;
  };
  table.erase = [&](const std::vector<int64_t>& numbers) {
    for (const int64_t number : numbers) lines.erase(number);
    return absl::OkStatus();
  };
  AuditTable slower = table;
  slower.count = [&]() -> absl::StatusOr<std::vector<AuditCount>> {
    std::vector<AuditCount> counts = *table.count();
    EXPECT_TRUE(TrimAuditTable(table, 100).ok());
    EXPECT_EQ(lines.size(), 100U);
    return counts;
  };
  EXPECT_TRUE(TrimAuditTable(slower, 100).ok());
  EXPECT_EQ(lines.size(), 100U);
  EXPECT_EQ(lines.rbegin()->first, 2'401);
}

class OlderStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.directory = folder_.path();
    options_.observer = &counts_;
  }
  std::unique_ptr<SqliteStore> Open() {
    auto made = SqliteStore::Open(options_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  void Sql(const std::string& sql) {
    auto db = OpenStoreDb(options_.directory, false, milliseconds(1000));
    ASSERT_TRUE(db.ok()) << db.status();
    const absl::Status done = (*db)->Exec(sql.c_str());
    ASSERT_TRUE(done.ok()) << done;
  }

  const TempFolder folder_{Scratch()};
  SqliteStoreOptions options_;
  Counts counts_;
};

TEST_F(OlderStoreTest, IsReadWithoutALogAndGetsOneWhenItIsWritten) {
  ASSERT_TRUE(Open()->PutRecord(Shelf::kPins, "key", "value").ok());
  Sql("DROP TABLE audit");
  options_.read_only = true;
  EXPECT_THAT(*Open()->ListAudit({}, 10), IsEmpty());
  options_.read_only = false;
  const auto store = Open();
  EXPECT_EQ(**store->GetRecord(Shelf::kPins, "key"), "value");
  const AuditLine line = Line("pin");
  ASSERT_TRUE(store->PutRecord(Shelf::kPins, "key", "next", &line).ok());
  EXPECT_EQ(store->ListAudit({}, 10)->size(), 1U);
}

// What an older program does with a store that has a log: it knows nothing of it.
TEST_F(OlderStoreTest, AStoreWithALogHasTheFormatThatOlderProgramsRead) {
  Open();
  auto db = OpenStoreDb(options_.directory, true, milliseconds(1000));
  ASSERT_TRUE(db.ok());
  const absl::MutexLock lock(&(*db)->mutex());
  Statement format = (*db)->Query("SELECT user_version FROM pragma_user_version");
  ASSERT_TRUE(*format.Step());
  EXPECT_EQ(format.Int(0), 1);
}

TEST_F(OlderStoreTest, ADamagedLogKeepsNothingFromChanging) {
  options_.page_size = 512;
  options_.max_age = hours(1);
  WallTime now{milliseconds(1'800'000'000'000)};
  options_.clock = [&] { return now; };
  auto store = Open();
  ASSERT_TRUE(store->PutPlan(KeyOf(1), "team", "plan").ok());
  const AuditLine line = Line("pin", std::string(200, 's'));
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(store->PutRecord(Shelf::kPins, "key", absl::StrCat(i), &line).ok());
  }
  store.reset();  // merges its log into the file
  const std::string path = options_.directory + "/store.db";
  std::string bytes = ReadFile(path);
  // Every page of the log's has the subject in it.
  size_t damaged = 0;
  for (size_t page = 512; page < bytes.size(); page += 512) {
    const size_t at = bytes.substr(page, 512).find("ssss");
    if (at == std::string::npos) continue;
    bytes[page + at] = 'S';
    ++damaged;
  }
  ASSERT_GT(damaged, 10U);
  WriteFile(path, bytes);

  store = Open();
  ASSERT_TRUE(store->PutRecord(Shelf::kSettings, kPlanningOffSetting, "1 why", &line).ok());
  EXPECT_EQ(**store->GetRecord(Shelf::kSettings, kPlanningOffSetting), "1 why");
  EXPECT_THAT(counts_.problems, HasSubstr("the audit log is damaged, so that this has no line"));
  EXPECT_EQ(store->ListAudit({}, 100).status().code(), absl::StatusCode::kUnavailable);
  now += hours(2);
  EXPECT_FALSE(store->Maintain().ok());
  EXPECT_EQ(store->Stats()->plans, 0) << "what is old goes all the same";
}

}  // namespace
}  // namespace bucketd::store_test
