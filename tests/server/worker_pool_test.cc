// Whose turn it is in a pool of workers, and who gives way where its queue is full.
#include "server/base/worker_pool.h"

#include <algorithm>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bucketd {
namespace {

using ::testing::ElementsAre;

using Share = Shares::Path;

// What has run, and what was refused, in its order. The first job holds the only thread until all
// others wait.
class TurnsTest : public ::testing::Test {
 protected:
  explicit TurnsTest(int max_queued = 1000) : pool_(1, max_queued) {
    std::promise<void> entered;
    pool_.TrySubmit([&] {
      entered.set_value();
      opened_.get_future().wait();
    });
    entered.get_future().wait();
  }
  ~TurnsTest() override {
    if (!is_open_) opened_.set_value();
    pool_.Stop();
  }

  void Submit(const Share& share, const std::string& name) {
    pool_.Submit(
        share, [this, name] { Add(ran_, name); }, [this, name] { Add(refused_, name); });
  }
  std::vector<std::string> RunAll(size_t count) {
    is_open_ = true;
    opened_.set_value();
    const auto has_all = [&] { return ran_.size() == count; };
    const absl::MutexLock lock(&mutex_, absl::Condition(&has_all));
    return ran_;
  }
  void Add(std::vector<std::string>& list, const std::string& name) {
    const absl::MutexLock lock(&mutex_);
    list.push_back(name);
  }

  absl::Mutex mutex_;
  std::vector<std::string> ran_, refused_;
  std::promise<void> opened_;
  bool is_open_ = false;
  WorkerPool pool_;
};

TEST_F(TurnsTest, ATenantsManyJobsHoldNobodyUp) {
  for (int i = 0; i < 50; ++i) Submit({"tenant b", absl::StrCat("peer ", i % 10)}, "b");
  for (const char* name : {"a1", "a2", "a3"}) Submit({"tenant a", "peer"}, name);
  Submit({"tenant c", "peer"}, "c");
  std::vector<std::string> ran = RunAll(54);
  EXPECT_TRUE(
      std::all_of(ran.begin() + 7, ran.end(), [](const auto& name) { return name == "b"; }));
  ran.resize(7);
  EXPECT_THAT(ran, ElementsAre("a1", "b", "c", "a2", "b", "a3", "b"));
}

TEST_F(TurnsTest, WhoComesWhileOthersWaitHasTheNextTurnButOne) {
  for (int i = 0; i < 50; ++i) Submit({"tenant b", "peer"}, "b");
  pool_.Submit(
      {"tenant a", "peer"},
      [&] {
        Add(ran_, "a1");
        Submit({"tenant a", "peer"}, "a2");
      },
      [] {});
  std::vector<std::string> ran = RunAll(52);
  ran.resize(4);
  EXPECT_THAT(ran, ElementsAre("a1", "b", "a2", "b"));
}

TEST_F(TurnsTest, HostsOfOneTenantTakeTurnsAndJobsOfOneKeepTheirOrder) {
  for (int i = 1; i <= 3; ++i) Submit({"tenant a", "peer 1"}, absl::StrCat("1.", i));
  for (int i = 1; i <= 2; ++i) Submit({"tenant a", "peer 2"}, absl::StrCat("2.", i));
  EXPECT_THAT(RunAll(5), ElementsAre("1.1", "2.1", "1.2", "2.2", "1.3"));
}

class FullTest : public TurnsTest {
 protected:
  FullTest() : TurnsTest(4) {}
};

TEST_F(FullTest, TheNewestOfWhoHasMostGivesWay) {
  for (int i = 1; i <= 5; ++i) Submit({"tenant b", "peer"}, absl::StrCat("b", i));
  EXPECT_THAT(refused_, ElementsAre("b5")) << "whoever has most is refused itself";
  for (int i = 1; i <= 3; ++i) Submit({"tenant a", "peer"}, absl::StrCat("a", i));
  EXPECT_THAT(refused_, ElementsAre("b5", "b4", "b3", "a3")) << "until both have as many";
  EXPECT_THAT(RunAll(4), ElementsAre("a1", "b1", "a2", "b2"));
}

TEST_F(FullTest, WhatWasTakenForNobodyStaysTaken) {
  EXPECT_TRUE(pool_.TrySubmit([this] { Add(ran_, "1"); }));
  for (const char* name : {"2", "3", "4"}) {
    EXPECT_TRUE(pool_.TrySubmit([this, name] { Add(ran_, name); }));
  }
  EXPECT_FALSE(pool_.TrySubmit([] {}));
  Submit({"tenant a", "peer"}, "a");
  EXPECT_THAT(refused_, ElementsAre("a"));
  EXPECT_THAT(RunAll(4), ElementsAre("1", "2", "3", "4"));
}

TEST(ThreadsTest, OneShareLeavesAThreadToTheOthers) {
  WorkerPool pool(2, 99, 1);
  absl::Mutex mutex;
  std::vector<std::string> ran;
  std::promise<void> entered[2], opened[2];
  const auto submit = [&](const std::string& name, int gate = -1) {
    pool.Submit(
        {name, "peer"},
        [&, name, gate] {
          if (gate >= 0) {
            entered[gate].set_value();
            opened[gate].get_future().wait();
          }
          const absl::MutexLock lock(&mutex);
          ran.push_back(name);
        },
        [] {});
  };
  const auto ran_so_far = [&](size_t count) {
    const auto has_so_many = [&] { return ran.size() >= count; };
    const absl::MutexLock lock(&mutex);
    mutex.AwaitWithTimeout(absl::Condition(&has_so_many), absl::Seconds(20));
    return ran;
  };
  submit("b", 0);
  entered[0].get_future().wait();
  submit("a", 1);
  entered[1].get_future().wait();
  submit("b");
  submit("c");
  opened[1].set_value();
  EXPECT_THAT(ran_so_far(2), ElementsAre("a", "c")) << "though it was b's turn";
  opened[0].set_value();
  EXPECT_THAT(ran_so_far(4), ElementsAre("a", "c", "b", "b"));
  pool.Stop();
}

}  // namespace
}  // namespace bucketd
