// NCCL held to the contract of every communicator, on one GPU: gpu_agent/gpu_checks.sh runs it.
// GPU_CHECKS_RANKS says how many ranks one GPU may have.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "gpu_agent/cuda/nccl_communicator.h"
#include "gpu_agent/device/module_loader.h"
#include "tests/gpu_agent/communicator_factory.h"

namespace bucketd::agent {
namespace {

const GpuBackend& Backend() {
  static const GpuBackend backend = LoadGpuBackend();
  return backend;
}

int MaxRanks() {
  const char* ranks = std::getenv("GPU_CHECKS_RANKS");
  return ranks == nullptr ? 1 : std::atoi(ranks);
}

std::unique_ptr<Device> NewGpu() { return *Backend().module->open(0); }

// Ranks are threads: kernels of several processes do not run at once on one GPU.
class NcclGroup final : public CommunicatorGroup {
 public:
  explicit NcclGroup(const GroupOptions& options)
      : options_(options), id_(*Backend().module->nccl_id()), device_(NewGpu()) {}
  absl::StatusOr<std::unique_ptr<Communicator>> Make(int rank) override {
    return Backend().module->nccl(
        *device_, NcclOptions{id_, rank, options_.size, "check", options_.timeout, nullptr});
  }

 private:
  const GroupOptions options_;
  const std::string id_;
  const std::unique_ptr<Device> device_;
};

// An average is a sum of parts: exact for sizes that are powers of two.
bool NcclTakes(const Collective& collective, int size) {
  if (collective.op == ReduceOp::kAvg && (size & (size - 1)) != 0) return false;
  return InNcclTerms(collective, NCCL_VERSION(2, 24, 0)).ok();
}

TEST(Nccl, AStartWhosePeerNeverComesEndsAtTheTimeout) {
  NcclGroup group({.size = 2, .timeout = absl::Seconds(3)});
  const absl::Time begin = absl::Now();
  EXPECT_EQ(group.Make(0).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

TEST(Nccl, RegisteredMemoryGivesTheSameBytes) {
  const std::unique_ptr<Device> device = NewGpu();
  NcclGroup group({.size = 1});
  const auto communicator = group.Make(0);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  const auto memory = device->Allocate(1 << 22);
  const auto stream = device->NewStream("registered");
  ASSERT_TRUE(memory.ok() && stream.ok());
  const absl::Status known = (*communicator)->Register((*memory)->data(), (*memory)->bytes());
  ASSERT_TRUE(known.ok()) << known;
  std::vector<float> in(1000), out(1000);
  for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<float>(k);
  std::byte* at = (*memory)->data();
  ASSERT_TRUE(device->Copy(**stream, in.data(), at, 4000).ok());
  const Collective collective{
      CollectiveKind::kAllReduce, at, at + 4096, 1000, DType::kF32, ReduceOp::kSum};
  ASSERT_TRUE((*communicator)->Launch(**stream, {&collective, 1}).ok());
  ASSERT_TRUE(device->Copy(**stream, at + 4096, out.data(), 4000).ok());
  EXPECT_EQ((*stream)->Record()->Wait(absl::Now() + absl::Minutes(1)), absl::OkStatus());
  EXPECT_EQ(in, out);
}

// With two ranks on the GPU: one that waits for the other can be ended, and says so.
TEST(Nccl, AnAbortEndsACollectiveThatOthersDoNotJoin) {
  if (MaxRanks() < 2) GTEST_SKIP() << "this NCCL has one rank a GPU";
  NcclGroup group({.size = 2});
  auto made = std::async(std::launch::async, [&group] { return group.Make(1); });
  const auto first = group.Make(0);
  const auto second = made.get();
  ASSERT_TRUE(first.ok() && second.ok());
  const std::unique_ptr<Device> device = NewGpu();
  const auto memory = device->Allocate(4096);
  const auto stream = device->NewStream("alone");
  ASSERT_TRUE(memory.ok() && stream.ok());
  const Collective alone{CollectiveKind::kAllReduce,
                         (*memory)->data(),
                         (*memory)->data(),
                         1000,
                         DType::kF32,
                         ReduceOp::kSum};
  // Connecting may want the other rank too: then the launch itself is what is ended.
  auto launched = std::async(std::launch::async, [&] {
    return (*first)->Launch(**stream, {&alone, 1});
  });
  if (launched.wait_for(std::chrono::seconds(2)) == std::future_status::ready) {
    ASSERT_TRUE(launched.get().ok());
    const auto event = (*stream)->Record();
    EXPECT_EQ(event->Wait(absl::Now() + absl::Seconds(1)).code(),
              absl::StatusCode::kDeadlineExceeded);
    (*first)->Abort("the check is over");
    EXPECT_EQ(event->Wait(absl::Now() + absl::Seconds(10)),
              absl::AbortedError("the check is over"));
  } else {
    (*first)->Abort("the check is over");
    EXPECT_EQ(launched.get(), absl::AbortedError("the check is over"));
  }
  (*second)->Abort("the check is over");
}

}  // namespace

const std::vector<CommunicatorFactory>& Factories() {
  static const std::vector<CommunicatorFactory> factories = {
      {.name = "Nccl",
       .max_ranks = MaxRanks(),
       .ring_order = false,
       .tells_of_peers = false,
       .takes = NcclTakes,
       .new_device = NewGpu,
       .new_group = [](const GroupOptions& o) { return std::make_unique<NcclGroup>(o); }},
  };
  return factories;
}

}  // namespace bucketd::agent

int main(int argc, char** argv) {
  const auto& backend = bucketd::agent::Backend();
  std::printf("nccl: %s\n", backend.reason.c_str());
  if (backend.module == nullptr) return 3;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
