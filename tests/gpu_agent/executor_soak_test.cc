// What an executor keeps over 100,000 buckets: nothing.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "tests/gpu_agent/executor_fixture.h"

namespace bucketd::agent {
namespace {

// A sanitizer's allocator keeps what was freed, and takes ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kBuckets = kSanitized ? 3'000 : 100'000;  // on each rank
constexpr int kWarmUp = kBuckets / 10;
constexpr int64_t kSlackBytes = 1 << 20;

int64_t ResidentBytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t Entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

class Rank {
 public:
  Rank(const Program& program, int rank, std::unique_ptr<Communicator> communicator)
      : rank_(rank), executor_(*OpenExecutor(program, std::move(communicator))) {
    for (const BucketSpec& spec : program.plan.buckets) {
      const DType dtype = spec.mode == BucketMode::kPacked ? DType::kF32 : spec.dtype;
      for (auto* data : {&first_, &second_}) data->push_back(MakeData(spec, rank, dtype));
    }
  }

  // Buckets in turn, with other tensors every other round, and a Finish every third. Two are in
  // flight.
  void Run(int count) {
    TicketPtr before;
    for (int i = 0; i < count; ++i) {
      const int buckets = static_cast<int>(first_.size());
      const auto k = static_cast<size_t>(i % buckets);
      const int round = i / buckets;
      BucketData& data = (round % 2 == 0 ? first_ : second_)[k];
      const std::vector<Tensor> in = data.ins(), out = data.outs();
      const bool packed = executor_->program().plan.buckets[k].mode == BucketMode::kPacked;
      const bool finish = packed && round % 3 == 0;
      const auto ticket = executor_->Start(
          static_cast<int32_t>(k),
          {in, finish ? absl::Span<const Tensor>() : absl::MakeConstSpan(out), nullptr});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      if (finish) {
        ASSERT_TRUE(executor_->Finish(*ticket, out).ok());
      }
      if (before != nullptr) {
        ASSERT_TRUE(Wait(before).ok());
      }
      before = *ticket;
    }
    ASSERT_TRUE(Wait(before).ok());
  }

  void Check() const {
    for (const auto* all : {&first_, &second_}) {
      for (size_t k = 0; k < all->size(); ++k) {
        EXPECT_EQ(Mistake(executor_->program().plan.buckets[k], rank_, (*all)[k]), "");
      }
    }
  }

 private:
  absl::Status Wait(const TicketPtr& ticket) {
    return executor_->Wait(ticket, Phase::kDone, absl::InfiniteFuture());
  }

  const int rank_;
  const std::unique_ptr<Executor> executor_;
  std::vector<BucketData> first_, second_;
};

TEST(ExecutorSoakTest, MemoryAndDescriptorsStayFlatOverAHundredThousandBuckets) {
  constexpr int kRanks = 2;
  const Program program = ProgramOf(
      {Spec(CollectiveKind::kAllGather, BucketMode::kPacked, DType::kF32, kRanks, {100, 7}),
       Spec(CollectiveKind::kReduceScatter, BucketMode::kPacked, DType::kBF16, kRanks, {31, 2000}),
       Spec(CollectiveKind::kAllReduce, BucketMode::kGrouped, DType::kF32, kRanks, {55, 9}),
       Spec(CollectiveKind::kAllReduce, BucketMode::kPacked, DType::kF32, kRanks, {9000})});
  auto group = RingOfThreads(kRanks);
  std::vector<std::unique_ptr<Rank>> ranks(kRanks);
  OnRanks(kRanks, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    ranks[r] = std::make_unique<Rank>(program, rank, std::move(group[r]));
  });
  const auto run = [&](int count) {
    OnRanks(kRanks, [&](int rank) { ranks[static_cast<size_t>(rank)]->Run(count); });
  };
  run(kWarmUp);
  const int64_t bytes = ResidentBytes();
  const int64_t descriptors = Entries("/proc/self/fd"), threads = Entries("/proc/self/task");
  run(kBuckets);
  const int64_t grown = ResidentBytes() - bytes;
  RecordProperty("grown_bytes", static_cast<int>(grown));
  EXPECT_LT(grown, kSanitized ? INT64_MAX : kSlackBytes);
  EXPECT_EQ(Entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(Entries("/proc/self/task"), threads);
  for (const auto& rank : ranks) rank->Check();
}

}  // namespace
}  // namespace bucketd::agent
