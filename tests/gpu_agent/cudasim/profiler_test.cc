// The profiler plugin under the simulated NCCL: the time of every collective, the executor's and
// the trainer's own, is the simulation's own to the nanosecond.
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"

#include "gpu_agent/comm/nccl_name.h"
#include "tests/gpu_agent/cudasim/steps.h"
#include "tests/gpu_agent/heard_records.h"
#include "tests/gpu_agent/played_nccl.h"

namespace bucketd::agent {
namespace {

using ::testing::IsEmpty;

// The executor's or not, kind, sequence, time, whether it is a cost sample.
using OfRun = std::tuple<uint64_t, int, uint32_t, uint32_t, bool>;

int KindOf(const std::string& what) {
  if (what == "AllGather") return static_cast<int>(CollectiveKind::kAllGather);
  return static_cast<int>(what == "AllReduce" ? CollectiveKind::kAllReduce
                                              : CollectiveKind::kReduceScatter);
}

std::vector<OfRun> Simulated(sim::World& world) {
  std::vector<OfRun> all;
  for (const sim::KernelRun& run : world.kernels()) {
    const bool own = absl::StartsWith(run.comm, kOwnCommunicators);
    all.emplace_back(own ? kKernelsOfBuckets : kTorchsOwn, KindOf(run.what),
                     static_cast<uint32_t>(run.sequence),
                     static_cast<uint32_t>(run.end_ns - run.begin_ns), !own && run.together == 1);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<OfRun> Heard(const std::vector<RunRecord>& records, size_t from) {
  std::vector<OfRun> all;
  for (size_t k = from; k < records.size(); ++k) {
    const RunRecord& record = records[k];
    all.emplace_back(record.plan, record.kind, record.step, record.wire_ns, record.link != kNoLink);
  }
  std::sort(all.begin(), all.end());
  return all;
}

// What torch.distributed does beside: two all-reduces, each alone, then an all-gather with another.
void Own(const Trainer& mine, float* memory) {
  const ncclComm_t comm = mine.parent(0);
  const auto end = [comm](ncclResult_t state) {
    while (state == ncclInProgress) Api()->CommGetAsyncError(comm, &state);
    EXPECT_EQ(state, ncclSuccess);
  };
  for (int k = 0; k < 2; ++k) {
    end(Api()->AllReduce(memory, memory, 8, ncclFloat32, ncclSum, comm, mine.stream()));
  }
  Api()->GroupStart();
  Api()->AllReduce(memory, memory, 8, ncclFloat32, ncclSum, comm, mine.stream());
  Api()->AllGather(memory, memory + 16, 8, ncclFloat32, comm, mine.stream());
  end(Api()->GroupEnd());
}

void Train(sim::World& world, int steps) {
  OnGpus(world, 1, [&](Trainer& mine, int rank) {
    CudaDevice device(GpuOf(rank), "a trainer's GPU", Api());
    const auto memory = *device.Allocate(256);
    for (int step = 0; step < steps; ++step) {
      EXPECT_EQ(mine.Step(), "");
      Own(mine, reinterpret_cast<float*>(memory->data()));
    }
    mine.Drain();
  });
}

TEST(ProfilerOnGpusTest, EveryCollectiveIsToldWithTheSimulationsOwnTime) {
  constexpr int kSteps = 2;
  HeardRecords heard;
  setenv("BUCKETD_AGENT", heard.socket().c_str(), 1);
  setenv("NCCL_PROFILER_PLUGIN", ProfilerLibrary().c_str(), 1);
  size_t before = 0;
  for (uint64_t seed = 0; seed < Seeds(500); ++seed) {
    for (const int interface : {4, 5}) {
      sim::World world(
          {.seed = seed, .devices = kRanks, .resident = 2, .profiler_interface = interface});
      Train(world, kSteps);
      ASSERT_THAT(world.findings(), IsEmpty()) << seed;
      const std::vector<OfRun> all = Simulated(world);
      ASSERT_GE(all.size(), static_cast<size_t>(kSteps * kRanks) * (4 + 4));
      const std::vector<RunRecord> records = heard.Wait(before + all.size());
      ASSERT_EQ(Heard(records, before), all) << "seed " << seed << ", interface " << interface;
      before = records.size();
    }
  }
  EXPECT_EQ(heard.dropped(), 0u);
  unsetenv("NCCL_PROFILER_PLUGIN");
  unsetenv("BUCKETD_AGENT");
}

}  // namespace
}  // namespace bucketd::agent
