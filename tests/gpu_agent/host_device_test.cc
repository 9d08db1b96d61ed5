// Streams, events and buffers of host memory.
#include "gpu_agent/device/host_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/gpu_agent/set_clocks.h"

namespace bucketd::agent {
namespace {

class HostStreamTest : public testing::Test {
 protected:
  // Keeps `stream` busy until the promise is kept.
  std::shared_ptr<std::promise<void>> Block(HostStream& stream) {
    auto gate = std::make_shared<std::promise<void>>();
    stream.Enqueue([gate, open = gate->get_future().share()] {
      open.wait();
      return absl::OkStatus();
    });
    return gate;
  }

  std::unique_ptr<HostStream> stream_ = *HostStream::Start("first");
  std::unique_ptr<HostStream> other_ = *HostStream::Start("a name of more than 15 characters");
};

TEST_F(HostStreamTest, RunsInTheOrderOfEnqueueing) {
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) {
    stream_->Enqueue([&ran, i] {
      ran.push_back(i);
      return absl::OkStatus();
    });
  }
  ASSERT_TRUE(stream_->Record()->Wait(absl::InfiniteFuture()).ok());
  ASSERT_EQ(ran.size(), 100u);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
}

TEST_F(HostStreamTest, AnEventIsDoneWhenWhatWasBeforeItHasEnded) {
  const auto gate = Block(*stream_);
  const auto event = stream_->Record();
  EXPECT_FALSE(event->done());
  EXPECT_EQ(event->Wait(absl::InfinitePast()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(event->Since(*event).status().code(), absl::StatusCode::kFailedPrecondition);
  gate->set_value();
  EXPECT_TRUE(event->Wait(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(event->done());
  EXPECT_TRUE(event->Wait(absl::InfinitePast()).ok());
}

TEST_F(HostStreamTest, AWaitLastsAsLongWhateverTheWallClockSays) {
  const auto gate = Block(*stream_);
  const auto event = stream_->Record();
  const ClockIsOff clock(CLOCK_REALTIME, -absl::Hours(1));
  std::thread waiter([&] { EXPECT_TRUE(event->Wait(absl::Now() + absl::Minutes(1)).ok()); });
  absl::SleepFor(absl::Milliseconds(100));
  clock.Set(absl::Hours(1));
  gate->set_value();
  waiter.join();
}

TEST_F(HostStreamTest, EventsTellThePicosecondsBetweenThem) {
  const auto before = std::chrono::steady_clock::now();
  const auto first = stream_->Record();
  ASSERT_TRUE(first->Wait(absl::InfiniteFuture()).ok());
  other_->After(first);
  const auto second = other_->Record();
  ASSERT_TRUE(second->Wait(absl::InfiniteFuture()).ok());
  const std::chrono::nanoseconds most = std::chrono::steady_clock::now() - before;
  EXPECT_GT(*second->Since(*first), 0);
  EXPECT_LE(*second->Since(*first), most.count() * 1000);
  EXPECT_EQ(*second->Since(*first), -*first->Since(*second));
}

TEST_F(HostStreamTest, AfterItsFirstErrorItRunsNothingMore) {
  std::atomic<bool> ran = false;
  const auto fine = stream_->Record();
  stream_->Enqueue([] { return absl::DataLossError("first"); });
  stream_->Enqueue([&ran] {
    ran = true;
    return absl::InternalError("second");
  });
  EXPECT_EQ(stream_->Record()->Wait(absl::InfiniteFuture()), absl::DataLossError("first"));
  EXPECT_EQ(stream_->Record()->Wait(absl::InfiniteFuture()), absl::DataLossError("first"));
  EXPECT_TRUE(fine->Wait(absl::InfiniteFuture()).ok());
  EXPECT_FALSE(ran);
}

TEST_F(HostStreamTest, WaitsForAnotherStreamsEvent) {
  const auto gate = Block(*stream_);
  int value = 0;
  stream_->Enqueue([&value] {
    value = 1;
    return absl::OkStatus();
  });
  other_->After(stream_->Record());
  int seen = -1;
  other_->Enqueue([&value, &seen] {
    seen = value;
    return absl::OkStatus();
  });
  const auto end = other_->Record();
  EXPECT_FALSE(end->done());
  gate->set_value();
  ASSERT_TRUE(end->Wait(absl::InfiniteFuture()).ok());
  EXPECT_EQ(seen, 1);
}

TEST_F(HostStreamTest, TakesTheErrorOfTheEventThatItWaitsFor) {
  stream_->Enqueue([] { return absl::DataLossError("elsewhere"); });
  other_->After(stream_->Record());
  EXPECT_EQ(other_->Record()->Wait(absl::InfiniteFuture()), absl::DataLossError("elsewhere"));
}

TEST_F(HostStreamTest, AForeignEventIsAnErrorOfTheStream) {
  other_->After(nullptr);
  EXPECT_EQ(other_->Record()->Wait(absl::InfiniteFuture()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(HostStreamTest, DestructionDropsWhatIsPending) {
  std::atomic<bool> ran = false;
  const auto gate = Block(*other_);
  stream_->After(other_->Record());  // never reached while the stream lives
  stream_->Enqueue([&ran] {
    ran = true;
    return absl::OkStatus();
  });
  const auto event = stream_->Record();
  stream_.reset();
  EXPECT_TRUE(event->done());
  EXPECT_EQ(event->Wait(absl::InfiniteFuture()).code(), absl::StatusCode::kCancelled);
  gate->set_value();
  EXPECT_TRUE(other_->Record()->Wait(absl::InfiniteFuture()).ok());
  EXPECT_FALSE(ran);
}

TEST_F(HostStreamTest, AWaitForAStreamThatIsDestroyedEnds) {
  auto gate = Block(*other_);
  const auto event = other_->Record();
  stream_->After(event);
  const auto end = stream_->Record();
  auto destroyed = std::async(std::launch::async, [this] { other_.reset(); });
  gate->set_value();
  destroyed.wait();
  const absl::Status status = end->Wait(absl::InfiniteFuture());
  EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
}

TEST_F(HostStreamTest, BlockedWorkKeepsNoOtherStreamFromRunning) {
  const auto third = *HostStream::Start("third");
  const auto gate = Block(*stream_);
  const auto reached = stream_->Record();
  const auto after = Block(*stream_);
  other_->After(reached);
  third->After(reached);
  const auto another = Block(*other_);
  std::atomic<bool> ran = false;
  third->Enqueue([&ran] {
    ran = true;
    return absl::OkStatus();
  });
  const auto end = third->Record();
  gate->set_value();
  EXPECT_TRUE(end->Wait(absl::Now() + absl::Minutes(1)).ok());
  EXPECT_TRUE(ran);
  another->set_value();
  after->set_value();
}

TEST_F(HostStreamTest, ManyStreamsPassWorkOnInEveryOrder) {
  constexpr int kStreams = 6, kRounds = 500;
  std::vector<std::unique_ptr<HostStream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(*HostStream::Start("many"));
  }
  int64_t value = 0;  // by one stream at a time, as the events have it
  std::shared_ptr<Event> last;
  for (int i = 0; i < kStreams * kRounds; ++i) {
    HostStream& stream = *streams[static_cast<size_t>(i * 5 + i / 7) % kStreams];
    if (last != nullptr) stream.After(last);
    stream.Enqueue([&value, i]() -> absl::Status {
      return value++ == i ? absl::OkStatus() : absl::DataLossError("out of order");
    });
    last = stream.Record();
  }
  EXPECT_EQ(last->Wait(absl::InfiniteFuture()), absl::OkStatus());
  EXPECT_EQ(value, kStreams * kRounds);
}

TEST(HostDevice, BuffersAreAlignedAndMayBeEmpty) {
  HostDevice device;
  for (const int64_t bytes : {0, 1, 4095, 1 << 20}) {
    const auto buffer = *device.Allocate(bytes);
    EXPECT_EQ(buffer->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 4096, 0u);
  }
  EXPECT_EQ(device.Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

// A sanitizer's allocator ends the program instead.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(HostDevice, MoreMemoryThanThereIsIsAnError) {
  EXPECT_EQ(HostDevice().Allocate(INT64_MAX / 2).status().code(),
            absl::StatusCode::kResourceExhausted);
}
#endif

TEST(HostDevice, CopiesInStreamOrder) {
  HostDevice device;
  const auto stream = *device.NewStream("copies");
  const int from[3] = {1, 2, 3};
  int middle[3] = {};
  int to[3] = {};
  ASSERT_TRUE(device.Copy(*stream, from, middle, sizeof(from)).ok());
  ASSERT_TRUE(device.Copy(*stream, middle, to, sizeof(to)).ok());
  ASSERT_TRUE(device.Copy(*stream, nullptr, nullptr, 0).ok());
  EXPECT_EQ(device.Copy(*stream, nullptr, to, 1).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(stream->Record()->Wait(absl::InfiniteFuture()).ok());
  EXPECT_THAT(to, testing::ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace bucketd::agent
