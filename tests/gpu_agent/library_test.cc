// The C interface in host memory, as a trainer that forks has it.
#include <unistd.h>

#include <array>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

#include "gpu_agent/library/bucket_executor.h"
#include "gpu_agent/library/handle.h"
#include "passes/base/types.h"
#include "tests/gpu_agent/few_threads.h"
#include "tests/gpu_agent/heard_records.h"
#include "tests/temp_folder.h"

namespace bucketd::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr unsigned kPatience = 60;  // seconds of a child

std::string Taken(char* error) {
  std::string text = error;
  bucket_free(error);
  return text;
}

// A rank of two, or of one, that have one bucket, an all-gather of one number.
class Rank {
 public:
  Rank(int rank, const std::string& folder, int ranks = 2,
       int32_t copies = static_cast<int32_t>(CopyStream::kCompute))
      : ranks_(ranks), own_(static_cast<float>(rank + 1)) {
    bucket_.copies = copies;
    channel_ = {"dp", 0, rank, ranks, ranks, "dp", nullptr};
    options_.plan = plan_.data();
    options_.buckets = &bucket_;
    options_.bucket_count = 1;
    options_.turns = turns_.data();
    options_.turn_count = 2;
    options_.channels = &channel_;
    options_.channel_count = 1;
    options_.folder = folder.c_str();
    options_.token = "a token of this test";
    options_.timeout_seconds = 60;
    options_.device = -1;
    char* error = nullptr;
    executor_ = bucket_executor_open(&options_, &error);
    if (executor_ == nullptr) said_ = Taken(error);
  }

  bucket_executor* executor() { return executor_; }
  // Why it is not open, or "".
  const std::string& said() const { return said_; }
  // What is wrong with it, or "".
  std::string Step() {
    char* error = nullptr;
    both_ = {};
    const int64_t ticket = Start(&error);
    if (ticket == 0 || bucket_executor_wait(executor_, ticket, 60, &error) == 0) {
      return Taken(error);
    }
    const bool right = both_[0] == 1 && both_[1] == (ranks_ == 2 ? 2 : 0);
    return right ? "" : absl::StrCat(both_[0], " and ", both_[1]);
  }
  int64_t Start(char** error) {
    const auto dtype = static_cast<int32_t>(DType::kF32);
    const bucket_tensor in{&own_, 1, dtype}, out{both_.data(), ranks_, dtype};
    return bucket_executor_start(executor_, 0, &in, &out, nullptr, error);
  }
  // Its buckets are records of this ring, by a group of its own for each folder and a plan of each
  // number; whether there was room for all that is to be said of them.
  bool Report(bucket_telemetry* telemetry, const std::string& folder, uint8_t plan = 0) {
    const int64_t wire = 0;
    const bucket_prediction prediction{0, 0, 0, &wire};
    plan_[0] = plan;
    options_.folder = folder.c_str();
    return bucket_executor_report(executor_, &options_, telemetry, &prediction) == 1;
  }

 private:
  const int ranks_;
  std::array<uint8_t, 32> plan_{};
  const std::array<int64_t, 1> counts_{1};
  const std::array<int32_t, 2> turns_{0, -1};
  bucket_spec bucket_{"b",
                      0,
                      static_cast<int32_t>(CollectiveKind::kAllGather),
                      static_cast<int32_t>(ReduceOp::kNone),
                      static_cast<int32_t>(DType::kF32),
                      static_cast<int32_t>(BucketMode::kPacked),
                      static_cast<int32_t>(CopyStream::kCompute),
                      1,
                      counts_.data()};
  bucket_channel channel_{};
  bucket_executor_options options_{};
  float own_;
  std::array<float, 2> both_{};
  bucket_executor* executor_ = nullptr;
  std::string said_;
};

class LibraryTest : public testing::Test {
 protected:
  LibraryTest() {
    char* error = nullptr;
    telemetry_ = bucket_telemetry_open(absl::StrCat(folder_, "/nobody").c_str(), "job", &error);
    OnBoth([this](size_t rank) {
      ranks_[rank] = std::make_unique<Rank>(static_cast<int>(rank), folder_);
      EXPECT_EQ(ranks_[rank]->said(), "");
    });
    EXPECT_TRUE(ranks_[0]->Report(telemetry_, folder_));
  }
  ~LibraryTest() override {
    OnBoth([this](size_t rank) {
      char* error = nullptr;
      EXPECT_EQ(bucket_executor_close(ranks_[rank]->executor(), &error), 1);
      bucket_free(error);
    });
    bucket_telemetry_close(telemetry_);
  }

  template <typename What>
  static void OnBoth(const What& what) {
    std::thread other([&] { what(1); });
    what(0);
    other.join();
  }
  void Step() {
    OnBoth([this](size_t rank) { EXPECT_EQ(ranks_[rank]->Step(), ""); });
  }
  // What the child's function returned, unless it did not end.
  template <typename What>
  static int InChild(const What& what) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kPatience);
      _exit(what());
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  const TempFolder private_;
  const std::string folder_ = private_.path();
  bucket_telemetry* telemetry_ = nullptr;
  std::array<std::unique_ptr<Rank>, 2> ranks_;
};

TEST_F(LibraryTest, AForkedChildEndsAnExecutorAtOnceAndTheParentGoesOn) {
  Step();
  EXPECT_EQ(InChild([this] {
              char* error = nullptr;
              const int closed = bucket_executor_close(ranks_[0]->executor(), &error);
              bucket_telemetry_close(telemetry_);
              return closed;
            }),
            1);
  Step();
}

TEST_F(LibraryTest, AnAbortInAForkedChildIsNoneOfTheParents) {
  EXPECT_EQ(InChild([this] {
              bucket_executor_abort(ranks_[0]->executor(), "the child wants to end");
              return 0;
            }),
            0);
  Step();
}

TEST_F(LibraryTest, AForkedChildIsToldToOpenItsOwn) {
  Step();
  EXPECT_EQ(InChild([this] {
              char* error = nullptr;
              if (ranks_[0]->Start(&error) != 0) return 1;
              const std::string start = Taken(error);
              if (bucket_executor_wait(ranks_[0]->executor(), 1, 1, &error) != 0) return 2;
              const std::string wait = Taken(error);
              if (bucket_executor_health(ranks_[0]->executor(), &error) != 0) return 3;
              const std::string health = Taken(error);
              const auto told = testing::Matches(HasSubstr("before a fork: the child needs one"));
              return told(start) && told(wait) && told(health) ? 0 : 4;
            }),
            0);
  Step();
}

// Here results are waited for, so none is undefined, but nobody may have called since.
TEST_F(LibraryTest, AnExecutorThatHasEndedSaysSoWhenItIsAskedAndWhenItIsClosed) {
  Rank alone(0, folder_, 1);
  char* error = nullptr;
  EXPECT_EQ(alone.Step(), "");
  EXPECT_EQ(bucket_executor_health(alone.executor(), &error), 1);
  bucket_executor_abort(alone.executor(), "no more");
  EXPECT_EQ(bucket_executor_health(alone.executor(), &error), 0);
  EXPECT_EQ(Taken(error), "ABORTED: no more");
  EXPECT_EQ(bucket_executor_close(alone.executor(), &error), 1);
  EXPECT_EQ(Taken(error), "ABORTED: no more");

  Rank well(0, folder_, 1);
  EXPECT_EQ(well.Step(), "");
  EXPECT_EQ(bucket_executor_close(well.executor(), &error), 1);
  EXPECT_EQ(error, nullptr);
}

// An event of a stream that has joined a bucket: whether the lock that starts and joins want is
// free while it is asked.
class AskedEvent : public Event {
 public:
  explicit AskedEvent(std::mutex& mutex) : mutex_(mutex) {}
  bool done() const override {
    free_.set_value(std::async(std::launch::async, [this] {
                      return std::unique_lock(mutex_, std::try_to_lock).owns_lock();
                    }).get());
    return true;
  }
  absl::Status Wait(absl::Time) const override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Since(const Event&) const override { return 0; }
  bool free() const { return free_.get_future().get(); }

 private:
  std::mutex& mutex_;
  mutable std::promise<bool> free_;
};

TEST_F(LibraryTest, ATrainerDoesNotWaitWhileADeviceIsAskedForTimes) {
  Rank alone(0, folder_, 1);
  char* error = nullptr;
  const int64_t ticket = alone.Start(&error);
  ASSERT_NE(ticket, 0) << error;
  const TicketPtr run = alone.executor()->runs.at(ticket).ticket;
  EXPECT_EQ(bucket_executor_wait(alone.executor(), ticket, 60, &error), 1);
  const auto event = std::make_shared<AskedEvent>(alone.executor()->mutex);
  alone.executor()->NoteWhenDone({0, run, nullptr, event});
  EXPECT_TRUE(event->free());
  EXPECT_EQ(bucket_executor_close(alone.executor(), &error), 1);
}

TEST_F(LibraryTest, ABucketSaysOnWhichStreamItCopies) {
  EXPECT_EQ(Rank(0, folder_, 1, 0).said(),
            "INVALID_ARGUMENT: bucket 0: copies 0, expected compute or comm");
}

// An agent takes no ring with a link of one rank: nothing of the trainer would be heard.
TEST_F(LibraryTest, AGroupOfOneRankIsReportedWithoutALink) {
  HeardRecords heard;
  char* error = nullptr;
  bucket_telemetry* telemetry = bucket_telemetry_open(heard.socket().c_str(), "job", &error);
  ASSERT_NE(telemetry, nullptr) << error;
  Rank alone(0, folder_, 1);
  EXPECT_TRUE(alone.Report(telemetry, folder_));
  EXPECT_EQ(alone.Step(), "");
  const std::vector<RunRecord> records = heard.Wait(1);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].link, kNoLink);
  EXPECT_THAT(heard.links(), IsEmpty());
  EXPECT_EQ(bucket_executor_close(alone.executor(), &error), 1);
  bucket_telemetry_close(telemetry);
}

TEST_F(LibraryTest, AnExecutorThatIsOpenedAnewTakesItsPlansPlaceAndAClosedOnesArenaIsGone) {
  HeardRecords heard;
  char* error = nullptr;
  bucket_telemetry* telemetry = bucket_telemetry_open(heard.socket().c_str(), "job", &error);
  ASSERT_NE(telemetry, nullptr) << error;
  const auto arena = [&](size_t records) {
    heard.Wait(records);
    const std::vector<RingPlan> plans = heard.plans();
    return plans.size() == 1 ? plans[0].arena_bytes : -1;
  };
  Rank before(0, folder_, 1), after(0, folder_, 1);
  EXPECT_TRUE(before.Report(telemetry, folder_));
  EXPECT_EQ(before.Step(), "");
  const int64_t one = arena(1);
  EXPECT_GT(one, 0);
  EXPECT_TRUE(after.Report(telemetry, folder_));
  EXPECT_EQ(after.Step(), "");
  EXPECT_EQ(arena(2), 2 * one);
  EXPECT_EQ(bucket_executor_close(before.executor(), &error), 1);
  EXPECT_EQ(after.Step(), "");
  EXPECT_EQ(arena(3), one);
  EXPECT_EQ(bucket_executor_close(after.executor(), &error), 1);
  bucket_telemetry_close(telemetry);
}

TEST_F(LibraryTest, ATrainerIsToldThatItsRingHasNoRoomForMoreGroupsOrPlans) {
  const auto report = [&](const std::string& folder, uint8_t plan) {
    return ranks_[0]->Report(telemetry_, folder, plan);
  };
  for (uint32_t groups = 1; groups < kRingLinks; ++groups) {
    EXPECT_TRUE(report(absl::StrCat(folder_, groups), 0));
  }
  EXPECT_FALSE(report("one more", 0));
  for (uint8_t plan = 1; plan < kRingPlans; ++plan) EXPECT_TRUE(report(folder_, plan));
  EXPECT_FALSE(report(folder_, kRingPlans));
  EXPECT_TRUE(report(folder_, 1)) << "an equal plan has its place";
  Step();
}

// Behind a C interface nobody catches what the constructor of a thread throws.
TEST(ThreadlessTest, ATrainerThatHasTooFewThreadsIsToldWhatToRaise) {
  const TempFolder folder;
  int threads = 0;
  for (bool open = false; !open; ++threads) {
    const FewThreads few(threads);
    Rank rank(0, folder.path(), 1);
    open = rank.said().empty();
    if (open) {
      char* error = nullptr;
      EXPECT_EQ(bucket_executor_close(rank.executor(), &error), 1);
      bucket_free(error);
    } else {
      ASSERT_THAT(rank.said(), testing::StartsWith("RESOURCE_EXHAUSTED: "));
      ASSERT_THAT(rank.said(), HasSubstr("raise what bounds them: ulimit -u"));
    }
  }
  EXPECT_GT(threads, 4);  // streams of wire, pack and unpack, and the watchdog's
}

}  // namespace
}  // namespace bucketd::agent
