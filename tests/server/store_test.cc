// The embedded store, beyond what every engine promises (store_conformance_test.cc): its files, its
// bounds, and what it does without space or access.
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "server/store/checksum_vfs.h"
#include "server/store/sqlite_store.h"
#include "tests/server/store_fixture.h"

namespace bucketd::store_test {
namespace {

// ---- what is kept

TEST_F(StoreTest, PlansAndRecordsOutliveTheStoreThatWroteThem) {
  OpenStore();
  struct stat info {};
  ASSERT_EQ(stat(options_.directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U) << "plans are nobody else's business";
  const std::string plan = Bytes(50'000, 'p');
  Put(KeyOf(1), plan);
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "job/1", std::string("pin\0pin", 7)).ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kSettings, "job/1", "another shelf").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kSettings, "empty", "").ok());
  OpenStore();
  EXPECT_EQ(Get(KeyOf(1)), plan);
  EXPECT_EQ(Get(KeyOf(2)), "");
  EXPECT_EQ(GetRecord(Shelf::kPins, "job/1"), std::string("pin\0pin", 7));
  EXPECT_EQ(GetRecord(Shelf::kSettings, "job/1"), "another shelf");
  const auto empty = store_->GetRecord(Shelf::kSettings, "empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->has_value()) << "a value of no bytes is a value";
  EXPECT_EQ(GetRecord(Shelf::kProfiles, "job/1"), "");
  EXPECT_EQ(counts_.reads[StoreRead::kMiss], 2);
  EXPECT_EQ(counts_.reads[StoreRead::kDamaged] + counts_.reads[StoreRead::kError], 0);
}

TEST_F(StoreTest, AnAcknowledgedPlanSurvivesKill9) {
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto store = SqliteStore::Open(options_);
    for (int i = 1; store.ok(); ++i) {
      if (!(*store)->PutPlan(KeyOf(i % 100), "team", Bytes(3'000, static_cast<char>(i))).ok())
        break;
      const auto number = static_cast<uint8_t>(i);
      if (i > 200 || write(pipes[1], &number, 1) != 1) break;
    }
    pause();
    _exit(1);
  }
  close(pipes[1]);
  uint8_t last = 0;
  while (last < 60 && read(pipes[0], &last, 1) == 1) continue;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (uint8_t more = 0; read(pipes[0], &more, 1) == 1;) last = more;
  close(pipes[0]);
  ASSERT_GE(last, 60);
  OpenStore();
  for (int i = std::max(1, last - 50); i <= last; ++i) {
    EXPECT_EQ(Get(KeyOf(i % 100)), Bytes(3'000, static_cast<char>(i))) << i;
  }
  EXPECT_EQ(store_->lost_commits(), 0) << counts_.problems;
}

TEST_F(StoreTest, TwoProcessesShareAFolder) {
  OpenStore();
  Put(KeyOf(1), "old server");
  const auto successor = SqliteStore::Open(options_);
  ASSERT_TRUE(successor.ok()) << successor.status();
  EXPECT_EQ((*successor)->GetPlan(KeyOf(1))->value_or(""), "old server");
  Put(KeyOf(2), "written meanwhile");
  EXPECT_EQ((*successor)->GetPlan(KeyOf(2))->value_or(""), "written meanwhile");
  ASSERT_TRUE((*successor)->PutPlan(KeyOf(3), "team", "new server").ok());
  EXPECT_EQ(Get(KeyOf(3)), "new server");
  ASSERT_TRUE((*successor)->Maintain().ok());
  store_.reset();
  EXPECT_EQ((*successor)->GetPlan(KeyOf(2))->value_or(""), "written meanwhile");
}

// ---- bounds

TEST_F(StoreTest, WhatWasUsedLongestAgoMakesRoom) {
  options_.max_bytes = 4 * 10'000;
  OpenStore();
  for (int i = 1; i <= 3; ++i) {
    Put(KeyOf(i), Bytes(9'000, 'x'));
    now_ += minutes(2);
  }
  EXPECT_EQ(Get(KeyOf(1)), Bytes(9'000, 'x')) << "a use";
  now_ += minutes(2);
  store_->NoteUse(KeyOf(2));  // as a hit in memory is
  Put(KeyOf(4), Bytes(9'000, 'x'));
  EXPECT_EQ(counts_.evicted_plans, 0) << "there is room for four";
  Put(KeyOf(5), Bytes(9'000, 'x'));
  EXPECT_EQ(counts_.evicted_plans, 1);
  EXPECT_GT(counts_.evicted_bytes, 9'000);
  EXPECT_EQ(Get(KeyOf(3)), "") << "neither read nor noted since";
  EXPECT_NE(Get(KeyOf(1)), "");
  EXPECT_NE(Get(KeyOf(2)), "");
  EXPECT_LE(Stats().plan_bytes, options_.max_bytes);
}

TEST_F(StoreTest, AHeldPlanIsNotEvictedUntilItsHoldEnds) {
  options_.max_bytes = 2 * 10'000;
  OpenStore();
  Put(KeyOf(1), Bytes(9'000, 'x'));
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), "a", now_ + hours(1)).ok());
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), "b", now_ + hours(3)).ok());
  EXPECT_EQ(store_->HoldPlan(KeyOf(9), "a", now_ + hours(1)).code(), absl::StatusCode::kNotFound);
  now_ += minutes(5);
  Put(KeyOf(2), Bytes(9'000, 'x'));
  now_ += minutes(5);
  Put(KeyOf(3), Bytes(9'000, 'x'));
  EXPECT_NE(Get(KeyOf(1)), "");
  EXPECT_EQ(Get(KeyOf(2)), "");
  EXPECT_EQ(Stats().held_plans, 1);
  ASSERT_TRUE(store_->ReleaseHolds("b").ok());
  ASSERT_TRUE(store_->ReleaseHolds("nobody").ok());
  Put(KeyOf(1), Bytes(9'500, 'y'));  // a plan that is replaced stays held
  EXPECT_EQ(Stats().held_plans, 1);
  now_ += hours(2);  // the other hold runs out
  EXPECT_EQ(Stats().held_plans, 0);
  EXPECT_FALSE(store_->ListPlans({}, 9)->at(0).held);
  Put(KeyOf(4), Bytes(9'000, 'x'));
  Put(KeyOf(5), Bytes(9'000, 'x'));
  EXPECT_EQ(Get(KeyOf(1)), "");
}

TEST_F(StoreTest, PlansThatAreHeldLeaveNoRoomAndThatIsSaid) {
  options_.max_bytes = 10'000;
  OpenStore();
  Put(KeyOf(1), Bytes(9'000, 'x'));
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), "a", now_ + hours(1)).ok());
  const absl::Status full = store_->PutPlan(KeyOf(2), "team", Bytes(9'000, 'y'));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(counts_.writes[StoreWrite::kNoSpace], 1);
  EXPECT_EQ(Get(KeyOf(1)), Bytes(9'000, 'x'));
}

TEST_F(StoreTest, TheFileStaysBoundedWhilePlansComeAndGo) {
  options_.max_bytes = 200'000;
  OpenStore();
  int64_t after_warm_up = 0;
  for (int round = 0; round < 8; ++round) {
    for (int i = 0; i < 50; ++i) Put(KeyOf(i, absl::StrCat("t", round)), Bytes(9'000, 'x'));
    ASSERT_TRUE(store_->Maintain().ok());
    if (round == 1) after_warm_up = Stats().file_bytes;
  }
  EXPECT_LE(Stats().plan_bytes, options_.max_bytes);
  EXPECT_LE(Stats().file_bytes, after_warm_up * 5 / 4) << "freed pages are used again";
  EXPECT_TRUE(store_->CheckStructure(9)->empty());
}

// ---- no space, no access

TEST_F(StoreTest, AFullDatabaseRefusesWritesAndKeepsWhatItHas) {
  options_.max_pages = 60;
  OpenStore();
  Put(KeyOf(1), Bytes(20'000, 'x'));
  const absl::Status full = store_->PutPlan(KeyOf(2), "team", Bytes(60'000, 'y'));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(store_->PutRecord(Shelf::kPins, "k", Bytes(60'000, 'y')).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(counts_.writes[StoreWrite::kNoSpace], 2);
  EXPECT_EQ(Get(KeyOf(1)), Bytes(20'000, 'x'));
  EXPECT_EQ(Get(KeyOf(2)), "");
  Put(KeyOf(3), "a small one still fits");
  EXPECT_EQ(Get(KeyOf(3)), "a small one still fits");
  EXPECT_EQ(Stats().plans, 2);
}

TEST_F(StoreTest, ADiskThatTakesNoMoreIsNoCrash) {
  OpenStore();
  Put(KeyOf(1), Bytes(20'000, 'x'));
  store_.reset();
  InAnotherProcess([this] {
    signal(SIGXFSZ, SIG_IGN);
    OpenStore();
    const rlimit limit{64 << 10, 64 << 10};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    absl::Status full;
    for (int i = 2; i < 50 && full.ok(); ++i) {
      full = store_->PutPlan(KeyOf(i), "team", Bytes(20'000, 'y'));
    }
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    EXPECT_EQ(counts_.writes[StoreWrite::kNoSpace], 1);
    EXPECT_EQ(Get(KeyOf(1)), Bytes(20'000, 'x')) << "reading goes on";
    store_->Maintain().IgnoreError();
    store_.reset();
  });
  OpenStore();
  EXPECT_EQ(Get(KeyOf(1)), Bytes(20'000, 'x'));
  EXPECT_EQ(counts_.damages, 0) << counts_.problems;
}

TEST_F(StoreTest, AReadOnlyFolderIsReadByToolsAndRefusedToServers) {
  OpenStore();
  Put(KeyOf(1), "1");
  store_.reset();
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  for (const auto& entry : fs::directory_iterator(options_.directory)) {
    ASSERT_EQ(chmod(entry.path().c_str(), 0444), 0);
  }
  ASSERT_EQ(chmod(options_.directory.c_str(), 0555), 0);
  InAnotherProcess([this] {
    if (geteuid() == 0) {  // who may write everywhere
      ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
    }
    const absl::Status refused = OpenError();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), options_.directory)) << refused;
    options_.read_only = true;
    OpenStore();
    EXPECT_EQ(Get(KeyOf(1)), "1");
    EXPECT_EQ(store_->PutPlan(KeyOf(2), "", "2").code(), absl::StatusCode::kUnavailable);
    store_.reset();
  });
  ASSERT_EQ(chmod(options_.directory.c_str(), 0755), 0);
}

TEST_F(StoreTest, AWriteThatAnotherProcessHoldsUpIsUnavailable) {
  options_.busy_timeout = milliseconds(500);
  OpenStore();
  Put(KeyOf(1), "1");
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open_v2((options_.directory + "/store.db").c_str(), &other,
                            SQLITE_OPEN_READWRITE, ChecksumVfs()),
            SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_EQ(store_->PutPlan(KeyOf(2), "", "2").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(counts_.writes[StoreWrite::kError], 1);
  EXPECT_EQ(Get(KeyOf(1)), "1") << "readers do not wait for writers";
  const auto write = [&] {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(store_->PutPlan(KeyOf(2), "", "2").code(), absl::StatusCode::kUnavailable);
    return std::chrono::steady_clock::now() - begin;
  };
  for (int call = 0; call < 3; ++call) EXPECT_LT(write(), milliseconds(400)) << "the first waited";
  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  Put(KeyOf(2), "2");
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_GE(write(), milliseconds(400)) << "whoever was let in has ended that";
  sqlite3_close(other);
}

TEST_F(StoreTest, AStoreThatWasRemovedOrReplacedTakesNothingMore) {
  OpenStore();
  Put(KeyOf(1), "1");
  const std::string away = options_.directory + ".away";
  fs::rename(options_.directory, away);
  EXPECT_FALSE(store_->Maintain().ok());
  EXPECT_EQ(counts_.writes[StoreWrite::kError], 1) << "though nobody writes";
  EXPECT_EQ(store_->PutPlan(KeyOf(2), "", "2").code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(counts_.problems, "was removed or replaced")) << counts_.problems;
  fs::create_directory(options_.directory);
  fs::copy(away, options_.directory, fs::copy_options::recursive);
  EXPECT_EQ(store_->PutPlan(KeyOf(2), "", "2").code(), absl::StatusCode::kUnavailable)
      << "one that looks the same is another one";
  EXPECT_EQ(Get(KeyOf(1)), "1") << "what is read is still right";
  fs::remove_all(options_.directory);
  fs::rename(away, options_.directory);
  Put(KeyOf(2), "2");
  EXPECT_TRUE(store_->Maintain().ok());
}

TEST_F(StoreTest, WhatIsNoStoreOfThisFormatIsRefusedByName) {
  const std::string database = options_.directory + "/store.db";
  const auto refused = [&](absl::StatusCode code, const std::string& text) {
    const absl::Status status = OpenError();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), options_.directory)) << status;
  };
  options_.read_only = true;
  refused(absl::StatusCode::kNotFound, "no such file");
  options_.read_only = false;
  WriteFile(options_.directory, "a file");
  refused(absl::StatusCode::kFailedPrecondition, "is no folder");
  fs::remove(options_.directory);
  fs::create_directory(options_.directory);
  WriteFile(database, Bytes(5'000, 'n'));
  refused(absl::StatusCode::kFailedPrecondition, "is no bucketd store");
  WriteFile(database, "");
  refused(absl::StatusCode::kFailedPrecondition, "is no bucketd store");
  fs::remove(database);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(database.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "CREATE TABLE t(x)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  refused(absl::StatusCode::kFailedPrecondition, "another program");
  fs::remove(database);
  options_.directory = folder_ + "/no/such/folder";
  refused(absl::StatusCode::kUnavailable, "No such file or directory");
}

TEST_F(StoreTest, AStoreOfALaterVersionIsRefusedWithBothVersions) {
  OpenStore();
  store_.reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open_v2((options_.directory + "/store.db").c_str(), &db, SQLITE_OPEN_READWRITE,
                            ChecksumVfs()),
            SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version = 7", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const absl::Status status = OpenError();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "format 7")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "reads format 1")) << status;
}

}  // namespace
}  // namespace bucketd::store_test
