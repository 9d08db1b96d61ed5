// Damage of every byte of a store: no crash, never a wrong value, never "there is none" for a value
// that was stored.
#include <sqlite3.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "server/store/acknowledged.h"
#include "server/store/checksum_vfs.h"
#include "server/store/sqlite_store.h"
#include "tests/server/full_disk.h"
#include "tests/server/store_fixture.h"

namespace bucketd::store_test {
namespace {

using ::testing::HasSubstr;

struct Tally {
  int right = 0, damaged = 0, unavailable = 0, refused = 0;
};

class StoreDamageTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    options_.page_size = 512;  // a small file, since every byte of it has its turn
    options_.busy_timeout = milliseconds(0);
  }

  // Some merged into the database, some in the log alone, among them values that were replaced and
  // a record that was erased. In memory: the files by name.
  void MakeSample(bool leave_log) {
    OpenStore();
    for (int i = 1; i <= 3; ++i) PutExpected(i, Bytes(200 * static_cast<size_t>(i), 'a'));
    PutRecordExpected("pin/1", "old");
    PutRecordExpected("pin/2", Bytes(600, 'r'));
    ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "pin/erased", "x").ok());
    ASSERT_TRUE(store_->Maintain().ok());
    if (leave_log) {
      OpenStore();  // and with it a new log, without what is merged
      PutExpected(1, "replaced");
      PutExpected(4, Bytes(40, 'd'));
      PutRecordExpected("pin/1", "new");
      ASSERT_TRUE(store_->EraseRecord(Shelf::kPins, "pin/erased").ok());
      CopyFilesTo(folder_ + "/sample");
      store_.reset();
    } else {
      store_.reset();
      CopyFilesTo(folder_ + "/sample");
    }
    for (const auto& entry : fs::directory_iterator(folder_ + "/sample")) {
      files_[entry.path().filename().string()] = ReadFile(entry.path().string());
    }
    fs::create_directory(options_.directory);
  }

  void PutExpected(int graph, const std::string& plan) {
    Put(KeyOf(graph), plan);
    plans_[KeyOf(graph)] = plan;
  }
  void PutRecordExpected(const std::string& key, const std::string& value) {
    ASSERT_TRUE(store_->PutRecord(Shelf::kPins, key, value).ok());
    records_[key] = value;
  }

  void WriteSampleWith(const std::string& name, const std::string& bytes) {
    for (const char* old : {"store.db", "store.db-wal", "store.db-shm", "acknowledged"}) {
      unlink(absl::StrCat(options_.directory, "/", old).c_str());
    }
    for (const auto& [file, whole] : files_) {
      WriteFile(absl::StrCat(options_.directory, "/", file), file == name ? bytes : whole);
    }
  }

  void Check(const absl::StatusOr<std::optional<std::string>>& got, const std::string& expected,
             const std::string& where) {
    if (got.ok()) {
      ++tally_.right;
      ASSERT_TRUE(got->has_value()) << where << ": passed for a value that was never stored";
      ASSERT_TRUE(**got == expected) << where << ": a wrong value";
    } else if (got.status().code() == absl::StatusCode::kDataLoss) {
      ++tally_.damaged;
    } else {
      ASSERT_EQ(got.status().code(), absl::StatusCode::kUnavailable) << where << got.status();
      ++tally_.unavailable;
    }
  }

  // Opens what lies in the folder and reads all of it.
  void CheckAll(const std::string& where) {
    counts_ = Counts();
    absl::StatusOr<std::unique_ptr<SqliteStore>> opened = SqliteStore::Open(options_);
    if (!opened.ok()) {
      ++tally_.refused;
      ASSERT_NE(opened.status().code(), absl::StatusCode::kNotFound) << where;
      return;
    }
    SqliteStore& store = **opened;
    for (const auto& [key, plan] : plans_) Check(store.GetPlan(key), plan, where);
    for (const auto& [key, value] : records_) {
      Check(store.GetRecord(Shelf::kPins, key), value, where + key);
    }
    const auto none = store.GetPlan(KeyOf(9));
    ASSERT_TRUE(!none.ok() || !none->has_value()) << where;
    const auto erased = store.GetRecord(Shelf::kPins, "pin/erased");
    ASSERT_TRUE(!erased_ || !erased.ok() || !erased->has_value()) << where << ": erased, and back";
    const auto list = store.ListRecords(Shelf::kPins, "", "", 100);
    if (list.ok()) {
      for (const Record& record : *list) {
        if (record.key == "pin/erased" && !erased_) continue;
        ASSERT_TRUE(records_.count(record.key) == 1 && records_[record.key] == record.value)
            << where;
      }
    }
    // What was damaged has been taken away; what can be written again is right again.
    const auto again = store.GetPlan(KeyOf(1));
    if (again.ok() && !again->has_value() &&
        store.PutPlan(KeyOf(1), "team", plans_[KeyOf(1)]).ok()) {
      Check(store.GetPlan(KeyOf(1)), plans_[KeyOf(1)], where);
    }
  }

  void DamageEveryByteOf(const std::string& name) {
    const std::string whole = files_.at(name);
    ASSERT_FALSE(whole.empty());
    // Reading alone is what is quick enough for all of them.
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      const bool zero = at % 3 == 2 && whole[at] != '\0';
      damaged[at] = static_cast<char>(zero ? 0 : damaged[at] ^ (1 << (at % 8)));
      options_.read_only = at % 32 != 5;
      WriteSampleWith(name, damaged);
      CheckAll(absl::StrCat(name, zero ? ": zero at " : ": flip at ", at, " "));
      if (HasFatalFailure()) return;
    }
    std::printf("%s, %zu bytes: %d right, %d damaged, %d unavailable, %d opens refused\n",
                name.c_str(), whole.size(), tally_.right, tally_.damaged, tally_.unavailable,
                tally_.refused);
  }

  std::map<std::string, std::string> files_, plans_, records_;
  bool erased_ = true;
  Tally tally_;
};

TEST_F(StoreDamageTest, ASampleWithoutDamageIsReadWhole) {
  MakeSample(/*leave_log=*/true);
  WriteSampleWith("", "");
  CheckAll("whole");
  EXPECT_EQ(tally_.right, 6);
  EXPECT_EQ(tally_.damaged + tally_.unavailable + tally_.refused, 0);
  EXPECT_EQ(counts_.damages, 0) << counts_.problems;
}

TEST_F(StoreDamageTest, EveryByteOfTheDatabase) {
  erased_ = false;
  MakeSample(/*leave_log=*/false);
  DamageEveryByteOf("store.db");
  EXPECT_GT(tally_.right, 0);
  EXPECT_GT(tally_.damaged, 0) << "values";
  EXPECT_GT(tally_.unavailable, 0) << "indexes";
  EXPECT_GT(tally_.refused, 0) << "the first page";
}

TEST_F(StoreDamageTest, EveryByteOfTheLog) {
  MakeSample(/*leave_log=*/true);
  DamageEveryByteOf("store.db-wal");
  EXPECT_GT(tally_.right, 0);
  EXPECT_GT(tally_.damaged, 0);
}

TEST_F(StoreDamageTest, EveryByteOfTheAcknowledgements) {
  MakeSample(/*leave_log=*/true);
  DamageEveryByteOf("acknowledged");
  EXPECT_EQ(tally_.damaged + tally_.unavailable + tally_.refused, 0) << "the values are whole";
}

TEST_F(StoreDamageTest, ALogThatWasCutShortOrRemoved) {
  MakeSample(/*leave_log=*/true);
  const std::string log = files_.at("store.db-wal");
  int noticed = 0;
  for (size_t left = 0; left < log.size(); left += 40) {
    WriteSampleWith("store.db-wal", log.substr(0, left));
    CheckAll(absl::StrCat("log cut at ", left, " "));
    if (HasFatalFailure()) return;
    noticed += counts_.damages > 0 ? 1 : 0;
  }
  EXPECT_GT(noticed, 100);
  options_.read_only = true;
  WriteSampleWith("store.db-wal", "");
  CheckAll("log emptied, read by a tool ");
  EXPECT_GT(tally_.damaged, 0);
}

TEST_F(StoreDamageTest, ADatabaseThatWasCutShort) {
  MakeSample(/*leave_log=*/false);
  erased_ = false;
  const std::string database = files_.at("store.db");
  for (size_t left = 0; left < database.size(); left += 64) {
    WriteSampleWith("store.db", database.substr(0, left));
    CheckAll(absl::StrCat("database cut at ", left, " "));
    if (HasFatalFailure()) return;
  }
}

TEST_F(StoreDamageTest, ADatabaseOlderThanWhatWasAcknowledgedIsNoticed) {
  MakeSample(/*leave_log=*/false);
  WriteSampleWith("", "");
  OpenStore();
  Put(KeyOf(7), "newer");
  ASSERT_TRUE(store_->Maintain().ok());
  store_.reset();
  WriteFile(options_.directory + "/store.db", files_.at("store.db"));  // a backup
  counts_ = Counts();
  OpenStore();
  EXPECT_EQ(counts_.damages, 1) << counts_.problems;
  EXPECT_GT(store_->lost_commits(), 0);
  OpenStore();
  EXPECT_EQ(counts_.damages, 1) << "said once";
}

TEST_F(StoreDamageTest, AnEntryThatAFullDiskCutShortHidesNoneThatComesLater) {
  const std::string path = folder_ + "/entries";
  const std::unique_ptr<Acknowledged> entries = *Acknowledged::Open(path);
  entries->Reset(1);
  entries->Add(0, 2, "before");
  {
    const FullDisk full(fs::file_size(path) + 10);
    entries->Add(0, 3, "cut short");
  }
  entries->Add(0, 4, "later");
  const Acknowledged::Content content = *Acknowledged::Read(path);
  ASSERT_EQ(content.entries.size(), 2u);
  EXPECT_EQ(content.entries[0].key, "before");
  EXPECT_EQ(content.entries[1].key, "later");
  EXPECT_EQ(content.last_commit, 4);
}

// ---- one value

TEST_F(StoreTest, ADamagedValueIsReportedOnceThenAbsent) {
  OpenStore();
  const std::string marker = "find me in the file";
  Put(KeyOf(1), Bytes(5'000, 'a') + marker + Bytes(5'000, 'b'));
  Put(KeyOf(2), "untouched");
  store_.reset();
  const std::string database = options_.directory + "/store.db";
  std::string bytes = ReadFile(database);
  ASSERT_NE(bytes.find(marker), std::string::npos);
  bytes[bytes.find(marker)] = 'F';
  WriteFile(database, bytes);
  OpenStore();
  EXPECT_EQ(Get(KeyOf(1)), "DATA_LOSS");
  EXPECT_EQ(Get(KeyOf(1)), "");
  EXPECT_EQ(Get(KeyOf(2)), "untouched");
  EXPECT_EQ(counts_.reads[StoreRead::kDamaged], 1);
  EXPECT_EQ(counts_.reads[StoreRead::kMiss], 1);
  EXPECT_EQ(Stats().plans, 1);
  Put(KeyOf(1), "computed again");
  EXPECT_EQ(Get(KeyOf(1)), "computed again");
  OpenStore();
  EXPECT_EQ(Get(KeyOf(1)), "computed again");
}

TEST_F(StoreTest, AValueUnderAWrongKeyIsDamage) {
  OpenStore();
  Put(KeyOf(1), "one");
  Put(KeyOf(2), "two");
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "a", "one").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "b", "two").ok());
  store_.reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open_v2((options_.directory + "/store.db").c_str(), &db, SQLITE_OPEN_READWRITE,
                            ChecksumVfs()),
            SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db,
                         "UPDATE plans SET value = (SELECT max(value) FROM plans), checksum = "
                         "(SELECT checksum FROM plans ORDER BY value DESC LIMIT 1);"
                         "UPDATE records SET value = (SELECT max(value) FROM records), checksum = "
                         "(SELECT checksum FROM records ORDER BY value DESC LIMIT 1)",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  OpenStore();
  std::multimap<std::string, int> plans = {{Get(KeyOf(1)), 0}, {Get(KeyOf(2)), 0}};
  EXPECT_EQ(plans.count("DATA_LOSS"), 1U);
  EXPECT_EQ(plans.count("one") + plans.count("two"), 1U);
  const auto list = store_->ListRecords(Shelf::kPins, "", "", 9);
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 1U) << "the damaged one is left out";
  EXPECT_EQ((*list)[0].value, (*list)[0].key == "a" ? "one" : "two");
  EXPECT_EQ(counts_.reads[StoreRead::kDamaged], 2) << "and counted";
}

TEST_F(StoreTest, ADamagedPlanDoesNotStopEviction) {
  options_.max_bytes = 30'000;
  OpenStore();
  const std::string marker = "find me in the file";
  Put(KeyOf(1), Bytes(5'000, 'a') + marker + Bytes(5'000, 'b'));
  store_.reset();
  const std::string database = options_.directory + "/store.db";
  std::string bytes = ReadFile(database);
  bytes[bytes.find(marker)] = 'F';
  WriteFile(database, bytes);
  OpenStore();
  for (int i = 2; i < 9; ++i) {
    now_ += minutes(2);
    Put(KeyOf(i), Bytes(9'000, 'x'));
  }
  EXPECT_EQ(Get(KeyOf(1)), "");
  EXPECT_EQ(Get(KeyOf(8)), Bytes(9'000, 'x'));
  EXPECT_LE(Stats().plan_bytes, options_.max_bytes);
}

TEST_F(StoreTest, AScanNamesWhatIsDamagedAndGoesOn) {
  OpenStore();
  const std::string marker = "find me in the file";
  for (int i = 1; i <= 300; ++i) Put(KeyOf(i % 256, absl::StrCat(i)), i == 7 ? marker : "plan");
  ASSERT_TRUE(store_->PutRecord(Shelf::kProfiles, "p", "v").ok());
  store_.reset();
  const std::string database = options_.directory + "/store.db";
  const std::string whole = ReadFile(database);
  std::string bytes = whole;
  bytes[bytes.find(marker)] = 'F';
  WriteFile(database, bytes);
  options_.read_only = true;
  OpenStore();
  std::vector<std::string> damaged;
  const auto result = store_->ScanPlans([&](const ScannedValue& value) {
    if (!value.status.ok()) damaged.push_back(value.name);
    return absl::OkStatus();
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->values, 300);
  EXPECT_EQ(result->damaged, static_cast<int64_t>(damaged.size()));
  EXPECT_GE(damaged.size(), 1U);
  EXPECT_LE(damaged.size(), 10U) << "those of one page";
  const std::string name = ToHex(Sha256(KeyOf(7, "7")));
  EXPECT_EQ(std::count(damaged.begin(), damaged.end(), name), 1);
  EXPECT_FALSE(store_->CheckStructure(9)->empty());
  EXPECT_EQ(store_->ScanRecords([](const ScannedValue&) { return absl::OkStatus(); })->values, 1);

  // A leaf of the index: a stretch is unreadable, the rest is there.
  const std::string inside(AsBytes(Sha256(KeyOf(9, "9"))));
  bytes = whole;
  for (size_t at = 0; (at = bytes.find(inside, at)) != std::string::npos;) bytes[at] ^= 1;
  store_.reset();
  WriteFile(database, bytes);
  OpenStore();
  const auto rest = store_->ScanPlans([](const ScannedValue&) { return absl::OkStatus(); });
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_GE(rest->unreadable_regions, 1);
  EXPECT_GT(rest->values, 250);
  EXPECT_LT(rest->values, 300);
}

// ---- formats

// The sample of format 1 was written by a test below:
//   BUCKETD_WRITE_STORE_SAMPLE=tests/data/store/format1/store.db server_store_test
// It is written once for a format and never again: it is what an older program left.
void FillSample(SqliteStore& store) {
  ASSERT_TRUE(store.PutPlan(KeyOf(1), "team", Bytes(3'000, 'p')).ok());
  ASSERT_TRUE(store.PutPlan(KeyOf(2, "other"), "other", "small").ok());
  ASSERT_TRUE(store.HoldPlan(KeyOf(1), "job", WallTime(hours(24 * 365 * 100))).ok());
  ASSERT_TRUE(store.PutRecord(Shelf::kPins, "job/scope", "pin").ok());
  ASSERT_TRUE(store.PutRecord(Shelf::kSettings, "disabled", "").ok());
}

TEST_F(StoreTest, TheSampleOfThisFormatIsReadBack) {
  OpenStore();
  FillSample(*store_);
  store_.reset();
  const char* to = getenv("BUCKETD_WRITE_STORE_SAMPLE");
  if (to != nullptr) fs::copy_file(options_.directory + "/store.db", to);
  OpenStore();
  EXPECT_EQ(Get(KeyOf(1)), Bytes(3'000, 'p'));
  EXPECT_EQ(Get(KeyOf(2, "other")), "small");
}

TEST_F(StoreTest, AStoreOfFormat1IsRead) {
  fs::create_directory(options_.directory);
  fs::copy_file(fs::path(getenv("BUCKETD_TEST_DATA")) / "store/format1/store.db",
                options_.directory + "/store.db");
  OpenStore();
  EXPECT_EQ(Get(KeyOf(1)), Bytes(3'000, 'p'));
  EXPECT_EQ(Get(KeyOf(2, "other")), "small");
  EXPECT_EQ(GetRecord(Shelf::kPins, "job/scope"), "pin");
  EXPECT_EQ(store_->GetRecord(Shelf::kSettings, "disabled")->value_or("absent"), "");
  const auto plans = store_->ListPlans({}, 9);
  ASSERT_TRUE(plans.ok());
  ASSERT_EQ(plans->size(), 2U);
  EXPECT_EQ(Stats().held_plans, 1);
  EXPECT_EQ(store_->ListPlans({.tenant = "other"}, 9)->size(), 1U);
  EXPECT_TRUE(store_->CheckStructure(9)->empty());
  Put(KeyOf(3), "new");
  EXPECT_EQ(Get(KeyOf(3)), "new");
}

}  // namespace
}  // namespace bucketd::store_test
