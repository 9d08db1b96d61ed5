// gpu_steps: what an executor does on a GPU, as a trainer uses it. On simulated GPUs
// (gpu_steps_simulated) it shows that the checks themselves are right; figures are those of a GPU.
#include <cuda_runtime_api.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "gpu_agent/cuda/cuda_device.h"
#include "gpu_agent/cuda/nccl_communicator.h"
#include "gpu_agent/pack/segments.h"
#include "tests/gpu_agent/checks/line.h"
#include "tests/gpu_agent/checks/wires.h"
#include "tests/gpu_agent/trainer.h"

namespace bucketd::agent {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

double MiB(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

int64_t FreeBytes() {
  const CurrentDevice current(GpuOf(0));
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(free);
}

class Steps : public testing::Test {
 private:
  const std::shared_ptr<void> machine_ = NewMachine();
};

TEST_F(Steps, KeepTheirBytesAndNoMemory) {
  int64_t grown = 0;
  int wrong = 0;
  const int fresh = Times(100, 4), again = Times(2000, 8);
  const absl::Time begin = absl::Now();
  OnGpus(1, [&](Trainer& mine, int rank) {
    std::vector<std::unique_ptr<Trainer::StepData>> kept;
    for (int k = 0; k < 3; ++k) kept.push_back(mine.Prepare());
    const auto run = [&](int steps, bool new_tensors) {
      for (int step = 0; step < steps; ++step) {
        std::string mistake;
        if (new_tensors) {
          mistake = mine.Step();
        } else {
          Trainer::StepData& data = *kept[static_cast<size_t>(step) % kept.size()];
          mine.Upload(data);
          mine.Meet();
          mistake = mine.Enqueue(data, InOrder(), Fault::kNone);
          mine.Meet();
          if (mistake.empty()) mistake = mine.Check(data);
        }
        if (!mistake.empty() && rank == 0) ++wrong;
        EXPECT_EQ(mistake, "");
      }
    };
    run(fresh, true);
    mine.Meet();
    const int64_t before = FreeBytes();
    mine.Meet();
    run(again, false);
    run(fresh, true);
    mine.Meet();
    if (rank == 0) grown = before - FreeBytes();
    mine.Meet();
  });
  const int steps = 2 * fresh + again;
  MustHold("steps on a trainer's stream, bytes", absl::StrCat(wrong, " of ", steps, " wrong"), "0",
           wrong == 0);
  MustHold("steps on a trainer's stream, memory kept", absl::StrFormat("%.1f MiB", MiB(grown)),
           "32 MiB", grown <= 32 * kMiB);
  Line("steps on a trainer's stream, time",
       absl::StrFormat("%.0f us", 1e6 * Seconds(begin) / steps), "none", "right");
}

// A trainer goes, or aborts, while its buckets are under way. compute-sanitizer looks as well.
TEST_F(Steps, ACloseUnderWayEnds) {
  for (const bool abort : {false, true}) {
    double longest = 0;
    const int times = Times(4, 3);
    for (int k = 0; k < times; ++k) {
      OnGpus(1, [&](Trainer& mine, int rank) {
        EXPECT_EQ(mine.Step(), "");
        const auto run = mine.Prepare();
        mine.Enqueue(*run, InOrder(), Fault::kNone);
        if (abort) bucket_executor_abort(mine.executor(), "the check is over");
        const absl::Time begin = absl::Now();
        EXPECT_EQ(mine.Close(), 1);
        if (rank == 0) longest = std::max(longest, Seconds(begin));
        mine.Drain();
      });
    }
    MustHold(abort ? "close after an abort under way" : "close under way",
             absl::StrFormat("%.3f s, the longest of %d", longest, times), "10 s", longest < 10);
  }
}

// As torch's, on the trainer's own communicator and stream.
void AllReduce(Trainer& mine, std::byte* memory, size_t floats) {
  const CurrentDevice current(GpuOf(0));
  ncclResult_t state =
      Api()->AllReduce(memory, memory, floats, ncclFloat32, ncclSum, mine.parent(0), mine.stream());
  while (state == ncclInProgress || state == ncclSuccess) {
    EXPECT_EQ(Api()->CommGetAsyncError(mine.parent(0), &state), ncclSuccess);
    if (state == ncclSuccess) return;
  }
  ADD_FAILURE() << "the trainer's own all-reduce: " << Api()->GetErrorString(state);
}

// Two lanes, a collective of the trainer's own and a copy that fills the GPU, all at once.
TEST_F(Steps, LanesRunBesideATrainersOwnCollectivesAndABusyGpu) {
  const char* set = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  const int times = Times(100, 4);
  double seconds = 0;
  OnGpus(2, [&](Trainer& mine, int rank) {
    CudaDevice device(GpuOf(rank), "a trainer's GPU", Api());
    const int64_t bytes = Simulated() ? 1 << 16 : 64 * kMiB;
    const auto memory = *device.Allocate(2 * bytes), sums = *device.Allocate(4096);
    CudaStream stream(GpuOf(rank), mine.stream(), false);
    const Segment busy{memory->data(), memory->data() + bytes, bytes, Move::kBytes};
    const auto tiles = std::make_shared<const std::vector<Tile>>(*Cut({&busy, 1}));
    const Segment zero{nullptr, memory->data(), bytes, Move::kZero};
    EXPECT_TRUE(
        device.CopyTiles(stream, std::make_shared<const std::vector<Tile>>(*Cut({&zero, 1}))).ok());
    const Segment none{nullptr, sums->data(), 4096, Move::kZero};
    EXPECT_TRUE(
        device.CopyTiles(stream, std::make_shared<const std::vector<Tile>>(*Cut({&none, 1}))).ok());
    const auto run = mine.Prepare();
    const absl::Time begin = absl::Now();
    for (int k = 0; k < times; ++k) {
      std::vector<int64_t> tickets;
      mine.Upload(*run);
      mine.Meet();
      EXPECT_EQ(mine.Start(*run, InOrder(), tickets), "");
      EXPECT_TRUE(device.CopyTiles(stream, tiles).ok());
      AllReduce(mine, sums->data(), 1000);
      EXPECT_EQ(mine.Join(tickets), "");
      mine.Meet();
      EXPECT_EQ(mine.Check(*run), "");
    }
    if (rank == 0) seconds = Seconds(begin);
    mine.Drain();
  });
  MustHold(absl::StrCat("two lanes beside a busy GPU, launch order ",
                        set == nullptr ? "not set" : "implicit"),
           absl::StrFormat("%.0f us a step", 1e6 * seconds / times), "it ends", !HasFailure());
}

// A step that is captured once and replayed.
TEST_F(Steps, AGraphIsReplayed) {
  const int times = Times(100, 10);
  int right = 0;
  double seconds = 0;
  OnGpus(1, [&](Trainer& mine, int rank) {
    EXPECT_EQ(mine.Step(), "");
    const auto run = mine.Prepare();
    const CurrentDevice current(GpuOf(rank));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(mine.stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
    ASSERT_EQ(cudaStreamEndCapture(mine.stream(), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    const absl::Time begin = absl::Now();
    for (int k = 0; k < times; ++k) {
      mine.Upload(*run);
      mine.Meet();
      EXPECT_EQ(cudaGraphLaunch(executable, mine.stream()), cudaSuccess);
      mine.Meet();
      const std::string mistake = mine.Check(*run);
      EXPECT_EQ(mistake, "");
      if (rank == 0 && mistake.empty()) ++right;
    }
    if (rank == 0) seconds = Seconds(begin);
    EXPECT_EQ(mine.Step(), "");  // beside graphs
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(mine.Close(), 1);
  });
  MustHold(
      "a step as a graph",
      absl::StrFormat("%d of %d replays right, %.0f us each", right, times, 1e6 * seconds / times),
      "all", right == times);
}

// As an interpreter at its exit, which closes executors before it drops its globals. NCCL ends no
// communicator that a graph holds; one of a single rank runs no kernels that a graph could hold.
TEST_F(Steps, AGraphThatOutlivesItsExecutorHoldsNobody) {
  double seconds = 0;
  OnGpus(
      1,
      [&](Trainer& mine, int rank) {
        EXPECT_EQ(mine.Step(), "");
        const auto run = mine.Prepare();
        const CurrentDevice current(GpuOf(rank));
        cudaGraph_t graph = nullptr;
        ASSERT_EQ(cudaStreamBeginCapture(mine.stream(), cudaStreamCaptureModeThreadLocal),
                  cudaSuccess);
        EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
        ASSERT_EQ(cudaStreamEndCapture(mine.stream(), &graph), cudaSuccess);
        const absl::Time begin = absl::Now();
        EXPECT_EQ(mine.Close(), kRanks > 1 ? 0 : 1);
        if (rank == 0) seconds = Seconds(begin);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        mine.Drain();
      },
      Simulated() ? 1 : 30);
  MustHold("close before its graph is destroyed", absl::StrFormat("%.1f s", seconds), "10 s",
           seconds < 10);
}

// What a bucket takes of the host, and what its record adds.
TEST_F(Steps, ABucketCostsTheHostLittle) {
  const int times = Times(500, 5);
  double us[2] = {}, cpu[2] = {};
  for (const bool told : {false, true}) {
    char* error = nullptr;
    bucket_telemetry* telemetry = bucket_telemetry_open("/no/agent", "checks", &error);
    ASSERT_NE(telemetry, nullptr) << error;
    OnGpus(1, [&](Trainer& mine, int rank) {
      if (told && rank == 0) mine.Report(*telemetry);
      const auto run = mine.Prepare();
      std::vector<double> host;
      const double begin_cpu = CpuSeconds();
      for (int k = 0; k < times; ++k) {
        mine.Meet();
        const absl::Time begin = absl::Now();
        EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
        host.push_back(1e6 * Seconds(begin) / 4);
        mine.Drain();
      }
      if (rank != 0) return;
      us[told] = Median(host);
      cpu[told] = 1e6 * (CpuSeconds() - begin_cpu) / (4 * times);
    });
    bucket_telemetry_close(telemetry);
  }
  Goal("host time of a bucket's start and join", absl::StrFormat("%.1f us", us[0]), "50 us",
       us[0] < 50);
  Goal("the same with a record for the agent", absl::StrFormat("%.1f us more", us[1] - us[0]),
       "1 us more", us[1] - us[0] < 1);
  Line("processor time of it, all threads",
       absl::StrFormat("%.1f us, %.1f with records", cpu[0], cpu[1]), "none", "right");
}

// Ours are non-blocking, which hands each launch to a thread of NCCL's.
TEST_F(Steps, ALaunchIsNotHeldByNccl) {
  const int times = Times(200, 5);
  double ours = 0, blocking = 0;
  OnWires([&](Wires& wires, int rank) {
    std::vector<double> us;
    for (int k = 0; k < times; ++k) {
      const absl::Time begin = absl::Now();
      wires.Launch();
      us.push_back(1e6 * Seconds(begin));
    }
    EXPECT_TRUE(wires.Wait().ok());
    if (rank == 0) ours = Median(us);
  });
  std::string beside = "not simulated";
  if (!Simulated()) {
    ncclUniqueId id;
    ASSERT_EQ(Api()->GetUniqueId(&id), ncclSuccess);
    OnRanks(kRanks, [&](int rank) {
      const CurrentDevice current(GpuOf(rank));
      CudaDevice device(GpuOf(rank), "a trainer's GPU", Api());
      const auto memory = *device.Allocate(1 << 20);
      const auto stream = *device.NewStream("blocking");
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      ncclComm_t comm = nullptr;
      ASSERT_EQ(Api()->CommInitRankConfig(&comm, kRanks, id, rank, &config), ncclSuccess);
      cudaStream_t on = AsCudaStream(*stream, GpuOf(rank))->get();
      std::vector<double> us;
      for (int k = 0; k < times; ++k) {
        const absl::Time begin = absl::Now();
        EXPECT_EQ(
            Api()->AllReduce(memory->data(), memory->data(), 1024, ncclFloat32, ncclSum, comm, on),
            ncclSuccess);
        us.push_back(1e6 * Seconds(begin));
      }
      EXPECT_TRUE(stream->Record()->Wait(absl::Now() + absl::Seconds(30)).ok());
      EXPECT_EQ(Api()->CommDestroy(comm), ncclSuccess);
      if (rank == 0) blocking = Median(us);
    });
    beside = absl::StrFormat("%.1f us on a communicator that blocks", blocking);
  }
  Goal("host time of a launch of NCCL's", absl::StrFormat("%.1f us, %s", ours, beside), "100 us",
       ours < 100);
}

// What calibration measures: without the gate the host's launch is in a small collective's time.
TEST_F(Steps, AGateKeepsTheLaunchOutOfACollectivesTime) {
  const int times = Times(50, 5);
  double us[2] = {};
  OnWires([&](Wires& wires, int rank) {
    for (const bool gated : {false, true}) {
      std::vector<double> all;
      for (int k = 0; k < times; ++k) {
        std::unique_ptr<Gate> gate;
        if (gated) {
          auto shut = wires.stream().Shut();
          ASSERT_TRUE(shut.ok()) << shut.status();
          gate = *std::move(shut);
        }
        wires.Meet();
        wires.Launch();
        const auto from = wires.stream().Record();
        wires.Launch();
        const auto to = wires.stream().Record();
        gate = nullptr;
        ASSERT_TRUE(to->Wait(absl::Now() + absl::Seconds(30)).ok());
        all.push_back(static_cast<double>(*to->Since(*from)) * 1e-6);
      }
      if (rank == 0) us[gated] = Median(all);
    }
  });
  Goal("4 KiB all-reduce, gated against ungated",
       absl::StrFormat("%.1f us against %.1f us", us[1], us[0]), "less, and under 50 us",
       us[1] <= us[0] && us[1] < 50);
}

// cudaMalloc's memory is no window's. At once or late, and whether the communicator lives: it ends.
TEST_F(Steps, AWindowThatIsRefusedHangsNobody) {
  if (Api()->CommWindowRegister == nullptr) {
    GTEST_SKIP() << Api()->ToString() << " has no windows";
  }
  std::string said;
  double seconds = 0;
  OnWires([&](Wires& wires, int rank) {
    const CurrentDevice current(GpuOf(rank));
    void* plain = nullptr;
    ASSERT_EQ(cudaMalloc(&plain, 1 << 20), cudaSuccess);
    const absl::Time begin = absl::Now();
    const absl::Status known =
        wires.communicator().Register(static_cast<std::byte*>(plain), 1 << 20);
    const absl::Status lives = wires.communicator().health();
    if (rank == 0) {
      seconds = Seconds(begin);
      said = absl::StrCat(known.ok() ? "taken" : known.message(), "; the communicator ",
                          lives.ok() ? "lives" : "is lost");
    }
    if (lives.ok()) {
      wires.Launch();
      EXPECT_TRUE(wires.Wait().ok());
    }
    if (known.ok()) {
      EXPECT_TRUE(wires.communicator().Deregister(static_cast<std::byte*>(plain)).ok());
    }
    if (!lives.ok()) wires.communicator().Abort("the window is refused");
    EXPECT_EQ(cudaFree(plain), cudaSuccess);
  });
  MustHold("a window over cudaMalloc's memory", absl::StrFormat("%s, in %.1f s", said, seconds),
           "25 s", seconds < 25);
}

// As another process sees it: this program again.
int64_t FreeBytesOfAnother() {
  FILE* other = popen("/proc/self/exe --free-bytes", "r");
  long long bytes = -1;  // NOLINT(runtime/int): scanf's
  if (other == nullptr || std::fscanf(other, "%lld", &bytes) != 1) bytes = -1;
  if (other != nullptr) pclose(other);
  return bytes;
}

// As an agent that gives way to a trainer. The last check of a process: it ends its context.
TEST_F(Steps, ZLeavingAGpuGivesItsMemoryBack) {
  if (Simulated()) GTEST_SKIP() << "cudasim_test has it";
  const GpuBackend found = Gpus();
  { const auto device = *found.module->open(0); }
  FreeBytes();  // a context, if there was none
  const int64_t before = FreeBytesOfAnother();
  EXPECT_EQ(found.module->leave(0), absl::OkStatus());
  EXPECT_EQ(LeaveDevice(0), absl::OkStatus());
  const int64_t back = FreeBytesOfAnother() - before;
  const auto again = found.module->open(0);
  EXPECT_TRUE(again.ok() && (*again)->NewStream("again").ok()) << again.status();
  MustHold("memory that leaving a GPU gives back", absl::StrFormat("%.0f MiB", MiB(back)),
           "100 MiB or more", before >= 0 && back >= 100 * kMiB);
}

}  // namespace
}  // namespace bucketd::agent

int main(int argc, char** argv) {
  using namespace bucketd::agent;
  if (argc > 1 && std::string(argv[1]) == "--free-bytes") {
    std::printf("%lld\n", static_cast<long long>(FreeBytes()));
    return 0;
  }
  {
    const auto machine = NewMachine();
    const GpuBackend found = Gpus();
    std::printf("gpu_steps: %s, %d ranks\n", found.reason.c_str(), kRanks);
    if (found.module == nullptr) return 3;
  }
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  return failed != 0 ? 1 : below_a_goal && !Simulated() ? 2 : 0;
}
