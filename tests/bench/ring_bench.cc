// The socket ring with all of its ranks in this process: microseconds a collective and bus
// bandwidth by nccl-tests' definition, back to back on one stream.
#include <algorithm>
#include <cstddef>
#include <future>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"

#include "gpu_agent/device/host_device.h"
#include "tests/gpu_agent/ring_group.h"

namespace bucketd::agent {
namespace {

constexpr int kRanks = 4;
constexpr int kBatch = 20;

struct Rank {
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Buffer> in;
  std::unique_ptr<Buffer> out;
};

std::vector<Rank> NewRing(bool tcp, int64_t bytes) {
  RingGroup group(GroupOptions{.size = kRanks, .max_segment = RingOptions().max_segment}, tcp);
  std::vector<std::future<absl::StatusOr<std::unique_ptr<Communicator>>>> made;
  for (int rank = 0; rank < kRanks; ++rank) {
    made.push_back(std::async(std::launch::async, [&group, rank] { return group.Make(rank); }));
  }
  HostDevice device;
  std::vector<Rank> ranks;
  for (auto& one : made) {
    ranks.push_back({*one.get(), *device.NewStream("ring bench"), *device.Allocate(bytes),
                     *device.Allocate(bytes)});
    for (Buffer* buffer : {ranks.back().in.get(), ranks.back().out.get()}) {
      std::fill(buffer->data(), buffer->data() + bytes, std::byte{0});
    }
  }
  return ranks;
}

// Arguments: transport, kind, dtype, bytes of the whole tensor.
void BM_Ring(benchmark::State& state) {
  const auto kind = static_cast<CollectiveKind>(state.range(1));
  const auto dtype = static_cast<DType>(state.range(2));
  const int64_t bytes = state.range(3);
  std::vector<Rank> ranks = NewRing(state.range(0) != 0, bytes);
  double seconds = 0;
  for (auto _ : state) {
    std::vector<std::shared_ptr<Event>> begins;
    std::vector<std::shared_ptr<Event>> ends;
    for (Rank& rank : ranks) {
      const int64_t all = bytes / ItemSize(dtype);
      const Collective collective{
          .kind = kind,
          .in = rank.in->data(),
          .out = rank.out->data(),
          .count = kind == CollectiveKind::kAllReduce ? all : all / kRanks,
          .dtype = dtype,
          .op = kind == CollectiveKind::kAllGather ? ReduceOp::kNone : ReduceOp::kSum};
      // The first one brings the ranks together.
      if (!rank.communicator->Launch(*rank.stream, {collective}).ok()) state.SkipWithError("ring");
      begins.push_back(rank.stream->Record());
      for (int i = 0; i < kBatch; ++i) {
        if (!rank.communicator->Launch(*rank.stream, {collective}).ok())
          state.SkipWithError("ring");
      }
      ends.push_back(rank.stream->Record());
    }
    for (const auto& end : ends) {
      if (!end->Wait(absl::InfiniteFuture()).ok()) state.SkipWithError("ring");
    }
    const double once = static_cast<double>(*ends[0]->Since(*begins[0])) * 1e-12 / kBatch;
    state.SetIterationTime(once);
    seconds += once;
  }
  const double factor = kind == CollectiveKind::kAllReduce ? 2.0 : 1.0;
  state.counters["busbw_GB/s"] = factor * (kRanks - 1) / kRanks * static_cast<double>(bytes) *
                                 static_cast<double>(state.iterations()) / seconds * 1e-9;
  state.SetLabel(
      absl::StrCat(state.range(0) != 0 ? "tcp " : "unix ", Name(kind), " ", Name(dtype)));
}

void Arguments(benchmark::internal::Benchmark* benchmark) {
  for (const bool tcp : {false, true}) {
    for (const CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
      for (const int64_t kib : {4, 256, 2048, 16384}) {
        benchmark->Args({tcp, static_cast<int>(kind), static_cast<int>(DType::kF32), kib << 10});
      }
      benchmark->Args({tcp, static_cast<int>(kind), static_cast<int>(DType::kBF16), 16 << 20});
    }
  }
}

BENCHMARK(BM_Ring)->Apply(Arguments)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace bucketd::agent

BENCHMARK_MAIN();
