// The C interface on simulated GPUs, as a trainer uses it: buckets start behind what is on the
// trainer's stream and are joined by it, and the host waits for nothing.
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "gpu_agent/library/handle.h"
#include "tests/gpu_agent/cudasim/gpus.h"

namespace bucketd::agent {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int kRanks = 2;

std::shared_ptr<const NcclApi> Api() { return sim::World::now()->nccl_api(); }

// gpu_agent/cuda/module.cc over the simulation's NCCL, as far as the library uses it.
const GpuModule& Module() {
  static const GpuModule* made = [] {
    auto* module = new GpuModule{};
    module->open = [](int index) -> absl::StatusOr<std::unique_ptr<Device>> {
      return std::make_unique<CudaDevice>(index, "cuda simulated", Api());
    };
    module->copier = [](Device& device) -> absl::StatusOr<std::unique_ptr<Copier>> {
      auto copier = CudaCopier::Create(dynamic_cast<CudaDevice&>(device).index());
      if (!copier.ok()) return copier.status();
      return std::unique_ptr<Copier>(*std::move(copier));
    };
    module->adopt = [](Device& device, void* stream) -> absl::StatusOr<std::unique_ptr<Stream>> {
      return std::make_unique<CudaStream>(dynamic_cast<CudaDevice&>(device).index(),
                                          static_cast<cudaStream_t>(stream), false);
    };
    module->takes = [](const Collective& collective) {
      return InNcclTerms(collective, Api()->version).status();
    };
    module->nccl = [](Device& device,
                      const NcclOptions& options) -> absl::StatusOr<std::unique_ptr<Communicator>> {
      auto split = NcclCommunicator::Split(Api(), dynamic_cast<CudaDevice&>(device), options);
      if (!split.ok()) return split.status();
      return std::unique_ptr<Communicator>(*std::move(split));
    };
    return module;
  }();
  return *made;
}

GpuBackend Gpus() { return {&Module(), sim::World::now()->options().devices, "simulated GPUs"}; }

std::vector<BucketSpec> Buckets(int lanes) {
  std::vector<BucketSpec> buckets = {
      Spec(CollectiveKind::kAllGather, BucketMode::kPacked, DType::kF32, kRanks, {100, 7}),
      Spec(CollectiveKind::kReduceScatter, BucketMode::kPacked, DType::kBF16, kRanks, {31, 2000}),
      Spec(CollectiveKind::kAllReduce, BucketMode::kGrouped, DType::kF32, kRanks, {55, 9}),
      Spec(CollectiveKind::kAllReduce, BucketMode::kPacked, DType::kF32, kRanks, {900})};
  for (size_t k = 0; k < buckets.size(); ++k) buckets[k].lane = static_cast<int32_t>(k) % lanes;
  return buckets;
}

// Communicators of a trainer's own, as torch has them: one id a lane.
class Parents {
 public:
  explicit Parents(int lanes) : ids_(static_cast<size_t>(lanes)) {
    for (ncclUniqueId& id : ids_) Api()->GetUniqueId(&id);
  }
  // One thread a rank.
  std::vector<ncclComm_t> Join(int rank) const {
    std::vector<ncclComm_t> comms;
    const CurrentDevice current(rank);
    for (const ncclUniqueId& id : ids_) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      Api()->CommInitRankConfig(&comms.emplace_back(), kRanks, id, rank, &config);
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) Api()->CommGetAsyncError(comms.back(), &state);
    }
    return comms;
  }

 private:
  std::vector<ncclUniqueId> ids_;
};

// What a trainer's own part of a step may get wrong.
enum class Fault { kNone, kNoEvent, kFreeBeforeJoin, kReadBeforeJoin };

// A rank of a trainer: its GPU, its stream, its communicators, and an executor of the library's.
class Trainer {
 public:
  Trainer(sim::World& world, const Parents& parents, int rank, int lanes, double timeout = 30,
          const std::vector<int32_t>& order = {0, 1, 2, 3}, int64_t arena_bytes = 0)
      : rank_(rank),
        specs_(Buckets(lanes)),
        device_(rank, "cuda simulated", world.nccl_api()),
        stream_(OfATrainers(rank)),
        other_(OfATrainers(rank)),
        comms_(parents.Join(rank)) {
    for (const BucketSpec& spec : specs_) {
      buckets_.push_back({spec.name.c_str(), spec.lane, static_cast<int32_t>(spec.kind),
                          static_cast<int32_t>(spec.op), static_cast<int32_t>(spec.dtype),
                          static_cast<int32_t>(spec.mode), static_cast<int32_t>(spec.counts.size()),
                          spec.counts.data()});
    }
    for (const int32_t bucket : order) turns_.push_back(bucket);
    for (const int32_t bucket : order) turns_.push_back(-1 - bucket);
    for (int lane = 0; lane < lanes; ++lane) {
      channels_.push_back(
          {"dp", lane, rank, kRanks, kRanks, "dp", comms_[static_cast<size_t>(lane)]});
    }
    options_.plan = plan_;
    options_.buckets = buckets_.data();
    options_.bucket_count = static_cast<int32_t>(buckets_.size());
    options_.turns = turns_.data();
    options_.turn_count = static_cast<int32_t>(turns_.size());
    options_.channels = channels_.data();
    options_.channel_count = lanes;
    options_.timeout_seconds = timeout;
    options_.device = rank;
    char* error = nullptr;
    options_.arena_bytes = bucket_executor_plan_bytes(&options_, &error);
    if (arena_bytes > 0) options_.arena_bytes = arena_bytes;
    arena_ = *device_.Allocate(options_.arena_bytes);
    options_.arena = arena_->data();
    auto opened = OpenExecutor(options_, Gpus);
    opened_ = opened.status();
    if (opened.ok()) executor_ = opened->release();
  }
  ~Trainer() {
    EXPECT_TRUE(executor_ == nullptr || Close() == 1);
    Drain();
    for (ncclComm_t comm : comms_) Api()->CommAbort(comm);
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const absl::Status& opened() const { return opened_; }
  bucket_executor* executor() { return executor_; }
  // Its own streams, before what they use is freed.
  void Drain() {
    for (const auto& stream : {stream_.get(), other_.get()}) {
      EXPECT_TRUE(stream->Drain(absl::Now() + absl::Minutes(1)).ok());
    }
  }
  int Close() { return bucket_executor_close(std::exchange(executor_, nullptr)); }

  // All buckets in the order that is given, compute beside them, all joined; what is wrong with
  // what came out, or an error. `Enqueue` is the part of it in which the host waits for nothing.
  std::string Step(std::vector<int32_t> order = {0, 1, 2, 3}, Fault fault = Fault::kNone) {
    auto run = Prepare();
    const std::string error = Enqueue(*run, order, fault);
    if (!error.empty()) return kept_.push_back(std::move(run)), error;
    if (fault == Fault::kFreeBeforeJoin) return kept_.push_back(std::move(run)), "";
    for (const auto& out : run->out) out->Download(*stream_);
    const absl::Status down = stream_->Record()->Wait(absl::Now() + absl::Seconds(20));
    if (!down.ok()) return kept_.push_back(std::move(run)), down.ToString();
    for (size_t k = 0; k < specs_.size(); ++k) {
      const std::string mistake = Mistake(specs_[k], rank_, *run->data[k]);
      if (!mistake.empty()) return mistake;
    }
    return "";
  }

  struct StepData {
    std::vector<std::unique_ptr<BucketData>> data;
    std::vector<std::unique_ptr<OnGpu>> in, out;
  };

  std::unique_ptr<StepData> Prepare() {
    auto run = std::make_unique<StepData>();
    for (const BucketSpec& spec : specs_) {
      auto& data =
          run->data.emplace_back(std::make_unique<BucketData>(MakeData(spec, rank_, spec.dtype)));
      run->in.push_back(std::make_unique<OnGpu>(device_, data->in));
      run->out.push_back(std::make_unique<OnGpu>(device_, data->out));
      run->in.back()->Upload(*stream_);
      run->out.back()->Upload(*stream_);
    }
    return run;
  }

  std::string Enqueue(StepData& run, const std::vector<int32_t>& order, Fault fault) {
    char* error = nullptr;
    std::vector<int64_t> tickets(specs_.size());
    for (const int32_t bucket : order) {
      const auto k = static_cast<size_t>(bucket);
      const auto in = Tensors(*run.in[k]), out = Tensors(*run.out[k]);
      CudaStream& behind = fault == Fault::kNoEvent ? *other_ : *stream_;
      tickets[k] =
          bucket_executor_start(executor_, bucket, in.data(), out.data(), behind.get(), &error);
      if (tickets[k] == 0) return Taken(error);
      Compute();
    }
    if (fault == Fault::kFreeBeforeJoin) run.out[0]->Free();
    if (fault == Fault::kReadBeforeJoin) run.out[0]->Download(*stream_);
    for (const int64_t ticket : tickets) {
      if (bucket_executor_join(executor_, ticket, stream_->get(), &error) == 0) return Taken(error);
    }
    return "";
  }

 private:
  static std::unique_ptr<CudaStream> OfATrainers(int gpu) {
    const CurrentDevice current(gpu);
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return std::make_unique<CudaStream>(gpu, stream);
  }
  static std::string Taken(char* error) {
    std::string text = error;
    bucket_free(error);
    return text;
  }
  static std::vector<bucket_tensor> Tensors(OnGpu& tensors) {
    std::vector<bucket_tensor> all;
    for (const Tensor& t : tensors.tensors()) {
      all.push_back({t.data, t.elements, static_cast<int32_t>(t.dtype)});
    }
    return all;
  }
  // Work of the trainer's own beside the buckets.
  void Compute() {
    if (scratch_ == nullptr) scratch_ = *device_.Allocate(128);
    const auto half = scratch_->bytes() / 2;
    EXPECT_EQ(cudaMemcpyAsync(scratch_->data() + half, scratch_->data(), static_cast<size_t>(half),
                              cudaMemcpyDeviceToDevice, stream_->get()),
              cudaSuccess);
  }

  const int rank_;
  const std::vector<BucketSpec> specs_;
  CudaDevice device_;
  const std::unique_ptr<CudaStream> stream_, other_;
  const std::vector<ncclComm_t> comms_;
  std::unique_ptr<Buffer> arena_, scratch_;
  const uint8_t plan_[32] = {};
  std::vector<bucket_spec> buckets_;
  std::vector<int32_t> turns_;
  std::vector<bucket_channel> channels_;
  bucket_executor_options options_{};
  absl::Status opened_;
  std::vector<std::unique_ptr<StepData>> kept_;  // of steps that failed, until all is closed
  bucket_executor* executor_ = nullptr;
};

void OnGpus(sim::World& world, int lanes, const std::function<void(Trainer&, int)>& run,
            double timeout = 30) {
  const Parents parents(lanes);
  OnRanks(kRanks, [&](int rank) {
    Trainer mine(world, parents, rank, lanes, timeout);
    ASSERT_TRUE(mine.opened().ok()) << mine.opened();
    run(mine, rank);
  });
  world.Drain();
}

TEST(LibraryOnGpusTest, StepsOnATrainersStreamGiveTheirBytesUnderEverySeed) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1 + static_cast<int>(seed % 2), [&](Trainer& mine, int) {
      for (int step = 0; step < 3; ++step) EXPECT_EQ(mine.Step(), "") << "seed " << seed;
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
    EXPECT_EQ(world.allocations(), 0u) << "seed " << seed;
  }
}

// The host runs ahead, and tensors have other addresses in each step: tables of copies come and go
// while copies are under way.
TEST(LibraryOnGpusTest, StepsAreEnqueuedOneBehindTheOther) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1, [&](Trainer& mine, int) {
      std::vector<std::unique_ptr<Trainer::StepData>> runs;
      for (int step = 0; step < 3; ++step) {
        runs.push_back(mine.Prepare());
        EXPECT_EQ(mine.Enqueue(*runs.back(), {0, 1, 2, 3}, Fault::kNone), "");
      }
      EXPECT_EQ(mine.Step(), "");
      EXPECT_EQ(mine.Close(), 1);
      mine.Drain();
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// Graphs of streams can be captured only where nobody asks.
TEST(LibraryOnGpusTest, NeitherStartNorJoinAsksWhatIsDone) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    std::barrier together(kRanks);
    OnGpus(world, 2, [&](Trainer& mine, int) {
      EXPECT_EQ(mine.Step(), "");
      const auto run = mine.Prepare();
      together.arrive_and_wait();
      world.Capture(true);
      EXPECT_EQ(mine.Enqueue(*run, {0, 1, 2, 3}, Fault::kNone), "");
      together.arrive_and_wait();
      world.Capture(false);
      EXPECT_EQ(mine.Close(), 1);
      mine.Drain();
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// The executor's watchdog, every quarter of its timeout, and what notes the times of joined runs.
TEST(LibraryOnGpusTest, ThreadsThatLookDisturbNoCapture) {
  sim::World world({.devices = kRanks});
  std::barrier together(kRanks);
  OnGpus(
      world, 1,
      [&](Trainer& mine, int) {
        EXPECT_EQ(mine.Step(), "");
        const auto run = mine.Prepare();
        together.arrive_and_wait();
        world.Capture(true);
        EXPECT_EQ(mine.Enqueue(*run, {0, 1, 2, 3}, Fault::kNone), "");
        const absl::Time begin = absl::Now();
        int64_t times[3] = {};
        while (absl::Now() < begin + absl::Milliseconds(600) ||
               bucket_executor_times(mine.executor(), 0, times) == 0) {
          absl::SleepFor(absl::Milliseconds(10));
        }
        EXPECT_GT(times[1], 0);
        together.arrive_and_wait();
        world.Capture(false);
        EXPECT_EQ(mine.Close(), 1);
        mine.Drain();
      },
      2);
  EXPECT_THAT(world.findings(), IsEmpty());
}

// A trainer's compute is of the default priority, 0.
TEST(LibraryOnGpusTest, BucketsGoBeforeComputeThatWaitsForRoom) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 2, [&](Trainer& mine, int) { EXPECT_EQ(mine.Step(), ""); });
  EXPECT_THAT(world.priorities(), UnorderedElementsAre(0, -5));
}

TEST(LibraryOnGpusTest, ARankThatStartsInAnotherOrderLaunchesInThePlans) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks, .resident = 1});
    OnGpus(world, 2, [&](Trainer& mine, int rank) {
      const std::vector<int32_t> order =
          rank == 0 ? std::vector{0, 1, 2, 3} : std::vector{3, 1, 0, 2};
      EXPECT_EQ(mine.Step(order), "") << "seed " << seed;
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

TEST(LibraryOnGpusTest, RanksOfDifferentPlansGetNoCommunicator) {
  sim::World world({.devices = kRanks});
  const Parents parents(1);
  OnRanks(kRanks, [&](int rank) {
    const std::vector<int32_t> order =
        rank == 0 ? std::vector{0, 1, 2, 3} : std::vector{1, 0, 2, 3};
    const Trainer mine(world, parents, rank, 1, 30, order);
    EXPECT_THAT(mine.opened().ToString(), HasSubstr("1 of 2 ranks hold this plan"));
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

TEST(LibraryOnGpusTest, AnNcclThatIsNotTheTrainersIsRefused) {
  sim::World world({.devices = kRanks, .foreign_nccl = true});
  const Parents parents(1);
  OnRanks(kRanks, [&](int rank) {
    const Trainer mine(world, parents, rank, 1);
    EXPECT_THAT(mine.opened().ToString(), HasSubstr("not the NCCL that the trainer's"));
  });
}

TEST(LibraryOnGpusTest, WhatNcclDoesNotReduceIsSaid) {
  sim::World world({.devices = kRanks});
  const int64_t counts[] = {8};
  const auto takes = [&](CollectiveKind kind, ReduceOp op, DType dtype) {
    const bucket_spec spec{"b",
                           0,
                           static_cast<int32_t>(kind),
                           static_cast<int32_t>(op),
                           static_cast<int32_t>(dtype),
                           1,
                           1,
                           counts};
    return Takes(0, spec, kRanks, Gpus).ToString();
  };
  EXPECT_EQ(takes(CollectiveKind::kAllGather, ReduceOp::kNone, DType::kI16), "OK");
  EXPECT_THAT(takes(CollectiveKind::kAllReduce, ReduceOp::kSum, DType::kI16),
              HasSubstr("NCCL does not reduce i16"));
  EXPECT_THAT(takes(CollectiveKind::kReduceScatter, ReduceOp::kAvg, DType::kF8E4M3),
              HasSubstr("NCCL has no avg of"));
}

TEST(LibraryOnGpusTest, AnArenaThatIsTooSmallIsRefused) {
  sim::World world({.devices = kRanks});
  const Parents parents(1);
  OnRanks(kRanks, [&](int rank) {
    const Trainer mine(world, parents, rank, 1, 30, {0, 1, 2, 3}, 4096);
    EXPECT_THAT(mine.opened().ToString(), HasSubstr("bytes, got 4096"));
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

TEST(LibraryOnGpusTest, ARankThatDoesNotOpenIsWaitedForToTheTimeout) {
  sim::World world({.devices = kRanks});
  const Parents parents(1);
  OnRanks(kRanks, [&](int rank) {
    const absl::Time begin = absl::Now();
    if (rank == 1) {
      for (ncclComm_t comm : parents.Join(rank)) Api()->CommAbort(comm);
      return;
    }
    const Trainer mine(world, parents, rank, 1, 0.5);
    EXPECT_TRUE(absl::IsDeadlineExceeded(mine.opened())) << mine.opened();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

TEST(LibraryOnGpusTest, ADeadPeerIsAnErrorAndNothingIsFreedInUse) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    const absl::Time begin = absl::Now();
    OnGpus(world, 1, [&](Trainer& mine, int rank) {
      EXPECT_EQ(mine.Step(), "");
      if (rank == 1) return world.KillRank(1, true);
      std::string error;
      // Joins that came before the error are of results that nobody may use.
      std::vector<std::unique_ptr<Trainer::StepData>> runs;
      while (error.empty()) {
        runs.push_back(mine.Prepare());
        error = mine.Enqueue(*runs.back(), {0, 1, 2, 3}, Fault::kNone);
      }
      EXPECT_THAT(error, HasSubstr("remote error"));
      EXPECT_EQ(mine.Close(), 1);
      mine.Drain();
    });
    EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

TEST(LibraryOnGpusTest, AnAbortOrACloseUnderWayFreesNothingInUse) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1, [&](Trainer& mine, int) {
      EXPECT_EQ(mine.Step(), "");
      const auto run = mine.Prepare();
      mine.Enqueue(*run, {0, 1, 2, 3}, Fault::kNone);
      if (seed % 2 == 0) bucket_executor_abort(mine.executor(), "no more");
      EXPECT_EQ(mine.Close(), 1);
      mine.Drain();
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// Planted faults of trainers.

std::vector<std::string> With(Fault fault) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int) { mine.Step({0, 1, 2, 3}, fault); });
  return world.findings();
}

TEST(LibraryOnGpusTest, AStartBehindAnotherStreamIsARace) {
  EXPECT_THAT(With(Fault::kNoEvent), Contains(HasSubstr("a race: nothing orders a copy")));
}

TEST(LibraryOnGpusTest, ResultsThatAreReadBeforeTheJoinAreARace) {
  EXPECT_THAT(With(Fault::kReadBeforeJoin), Contains(HasSubstr("a race: nothing orders")));
}

TEST(LibraryOnGpusTest, ResultsThatAreFreedBeforeTheJoinAreFound) {
  EXPECT_THAT(With(Fault::kFreeBeforeJoin), Contains(HasSubstr("after its free")));
}

}  // namespace
}  // namespace bucketd::agent
