// What a bucket through the executor costs the host beyond calling the communicator: processor time
// of the whole process (CLOCK_PROCESS_CPUTIME_ID, so other load does not count), both in turns in
// one run, a bucket and rank, medians of the turns. Payloads of 2 KiB: what is left is threads,
// locks and bookkeeping.
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"

#include "tests/gpu_agent/executor_fixture.h"

namespace bucketd::agent {
namespace {

constexpr int kBuckets = 400;  // in one turn

enum Kind { kPacked, kGrouped };
constexpr const char* kNames[] = {"packed", "grouped"};

int64_t CpuNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// One rank, both ways: buckets that are all started and then all waited for.
class Rank {
 public:
  Rank(const Program& program, Kind kind, int rank, std::unique_ptr<Communicator> direct,
       std::unique_ptr<Communicator> below)
      : direct_(std::move(direct)), stream_(*device_.NewStream("direct")) {
    auto opened = OpenExecutor(program, std::move(below));
    if (opened.ok()) executor_ = *std::move(opened);
    for (size_t k = 0; k < program.buckets.size(); ++k) {
      const BucketSpec& spec = program.plan.buckets[k];
      Bucket& bucket = buckets_.emplace_back();
      bucket.data = MakeData(spec, rank, spec.dtype);
      bucket.in = bucket.data.ins();
      bucket.out = bucket.data.outs();
      bucket.payload = {bucket.in, bucket.out, nullptr};
      if (kind == kGrouped) {
        for (size_t m = 0; m < bucket.in.size(); ++m) {
          bucket.group.push_back({spec.kind, bucket.in[m].data, bucket.out[m].data, spec.counts[m],
                                  spec.dtype, spec.op});
        }
        continue;
      }
      const int64_t bytes = program.buckets[k].slice_bytes;
      bucket.memory = *device_.Allocate(bytes);
      std::fill(bucket.memory->data(), bucket.memory->data() + bytes, std::byte{0});
      bucket.group = {{spec.kind, bucket.memory->data(), bucket.memory->data(),
                       bytes / ItemSize(spec.dtype), spec.dtype, spec.op}};
    }
  }

  bool Directly() {
    std::vector<std::shared_ptr<Event>> events(buckets_.size());
    for (int round = 0; round < Rounds(); ++round) {
      for (size_t k = 0; k < buckets_.size(); ++k) {
        if (!direct_->Launch(*stream_, buckets_[k].group).ok()) return false;
        events[k] = stream_->Record();
      }
      for (const auto& event : events) {
        if (!event->Wait(absl::InfiniteFuture()).ok()) return false;
      }
    }
    return true;
  }

  bool Through() {
    std::vector<TicketPtr> tickets(buckets_.size());
    for (int round = 0; round < Rounds() && executor_ != nullptr; ++round) {
      for (size_t k = 0; k < buckets_.size(); ++k) {
        auto ticket = executor_->Start(static_cast<int32_t>(k), buckets_[k].payload);
        if (!ticket.ok()) return false;
        tickets[k] = *std::move(ticket);
      }
      for (const TicketPtr& ticket : tickets) {
        if (!executor_->Wait(ticket, Phase::kDone, absl::InfiniteFuture()).ok()) return false;
      }
    }
    return executor_ != nullptr;
  }

 private:
  int Rounds() const { return kBuckets / static_cast<int>(buckets_.size()); }

  struct Bucket {
    BucketData data;
    std::vector<Tensor> in, out;
    std::unique_ptr<Buffer> memory;
    Payload payload;
    std::vector<Collective> group;
  };

  HostDevice device_;
  std::unique_ptr<Communicator> direct_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Executor> executor_;
  std::vector<Bucket> buckets_;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Arguments: ranks, kind, buckets in flight.
void BM_Executor(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const auto kind = static_cast<Kind>(state.range(1));
  const auto in_flight = static_cast<size_t>(state.range(2));
  const BucketSpec spec = Spec(CollectiveKind::kAllReduce,
                               kind == kGrouped ? BucketMode::kGrouped : BucketMode::kPacked,
                               DType::kF32, ranks, {256, 256});
  const Program program = ProgramOf(std::vector<BucketSpec>(in_flight, spec));
  auto direct = RingOfThreads(ranks), below = RingOfThreads(ranks);
  std::vector<std::unique_ptr<Rank>> all(static_cast<size_t>(ranks));
  OnRanks(ranks, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    all[r] = std::make_unique<Rank>(program, kind, rank, std::move(direct[r]), std::move(below[r]));
  });
  const auto microseconds = [&](bool (Rank::*run)()) {
    const int64_t before = CpuNanoseconds();
    OnRanks(ranks, [&](int rank) {
      if (!(*all[static_cast<size_t>(rank)].*run)()) state.SkipWithError("a bucket failed");
    });
    return static_cast<double>(CpuNanoseconds() - before) * 1e-3 / (kBuckets * ranks);
  };
  std::vector<double> direct_us, executor_us, over_us;
  for (auto _ : state) {
    direct_us.push_back(microseconds(&Rank::Directly));
    executor_us.push_back(microseconds(&Rank::Through));
    over_us.push_back(executor_us.back() - direct_us.back());
    state.SetIterationTime(executor_us.back() * 1e-6);
  }
  state.counters["direct_us"] = Median(direct_us);
  state.counters["executor_us"] = Median(executor_us);
  state.counters["over_us"] = Median(over_us);
  state.SetLabel(
      absl::StrCat("ring of ", ranks, ", ", kNames[kind], ", ", in_flight, " in flight"));
}

BENCHMARK(BM_Executor)
    ->ArgsProduct({{1, 2}, {kPacked, kGrouped}, {1, 8}})
    ->Iterations(61)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace bucketd::agent

BENCHMARK_MAIN();
