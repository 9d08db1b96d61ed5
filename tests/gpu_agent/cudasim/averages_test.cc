// Averages of 8-bit floats, of which NCCL has biased ones, and none on one rank: the communicator
// refuses them, and goes on.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "gpu_agent/comm/reduce.h"
#include "tests/gpu_agent/cudasim/gpus.h"

namespace bucketd::agent {
namespace {

using ::testing::IsEmpty;

using Bytes = std::vector<std::byte>;

constexpr size_t kCount = 64;
constexpr DType kNarrow[] = {DType::kF8E4M3, DType::kF8E5M2};

// The same on all ranks, so that no order of adding them differs: no zeros, nothing subnormal.
Bytes Input() {
  Bytes codes(kCount);
  for (size_t i = 0; i < kCount; ++i) codes[i] = static_cast<std::byte>(0x20 + i);
  return codes;
}

// As the ring has it.
Bytes Expected(DType dtype, ReduceOp op, int ranks) {
  const Bytes input = Input();
  Bytes all = input;
  for (int rank = 1; rank < ranks; ++rank) {
    ReducerOf(dtype, op)(all.data(), input.data(), all.data(), kCount);
  }
  if (op == ReduceOp::kAvg) DividerOf(dtype)(all.data(), kCount, ranks);
  return all;
}

// "" where the bits are those; else what is wrong, or what NCCL said.
std::string Wrong(DType dtype, ReduceOp op, CudaDevice& device, Communicator& communicator) {
  const auto memory = *device.Allocate(kCount);
  const auto stream = *device.NewStream("wire");
  const Bytes in = Input();
  Bytes out(kCount);
  EXPECT_TRUE(device.Copy(*stream, in.data(), memory->data(), kCount).ok());
  const Collective reduce{
      CollectiveKind::kAllReduce, memory->data(), memory->data(), kCount, dtype, op};
  absl::Status ran = communicator.Launch(*stream, {&reduce, 1});
  if (ran.ok()) ran = device.Copy(*stream, memory->data(), out.data(), kCount);
  ran.Update(stream->Record()->Wait(absl::InfiniteFuture()));
  if (!ran.ok()) return ran.ToString();
  return out == Expected(dtype, op, communicator.size()) ? "" : "other bits";
}

// What is wrong with each rank's average, and with its sum behind that.
std::vector<std::pair<std::string, std::string>> Reduced(DType dtype, int ranks) {
  sim::World world({.devices = ranks});
  Meeting meeting(world, ranks, 1);
  std::vector<std::pair<std::string, std::string>> said(static_cast<size_t>(ranks));
  OnRanks(ranks, [&](int rank) {
    CudaDevice device(rank, "cuda simulated", world.nccl_api());
    const auto communicator = *meeting.Join(device, rank, 0, absl::Seconds(30));
    auto& mine = said[static_cast<size_t>(rank)];
    mine.first = Wrong(dtype, ReduceOp::kAvg, device, *communicator);
    mine.second = Wrong(dtype, ReduceOp::kSum, device, *communicator);
  });
  world.Drain();
  EXPECT_THAT(world.findings(), IsEmpty());
  return said;
}

// Never other bits than the ring's, and never the end of the communicator.
TEST(AveragesTest, OfEightBitFloatsAreRefusedAndWhatIsBehindThemRuns) {
  for (const DType dtype : kNarrow) {
    for (const int ranks : {1, 2, 3}) {
      for (const auto& [average, sum] : Reduced(dtype, ranks)) {
        EXPECT_EQ(average, absl::StrCat("UNIMPLEMENTED: NCCL has no avg of ", Name(dtype)))
            << ranks << " ranks";
        EXPECT_EQ(sum, "") << ranks << " ranks";
      }
    }
  }
}

// Without the communicator, as NCCL has it.
ncclResult_t Ended(const NcclApi& api, ncclComm_t comm, ncclResult_t result) {
  while (result == ncclInProgress) api.CommGetAsyncError(comm, &result);
  return result;
}

struct Raw {
  ncclResult_t result = ncclSuccess;
  Bytes bytes;
};

std::vector<Raw> RawAverages(DType dtype, int ranks) {
  sim::World world({.devices = ranks});
  const auto api = world.nccl_api();
  ncclUniqueId id;
  api->GetUniqueId(&id);
  std::vector<Raw> found(static_cast<size_t>(ranks));
  OnRanks(ranks, [&](int rank) {
    CudaDevice device(rank, "cuda simulated", api);
    const auto memory = *device.Allocate(kCount);
    const auto stream = *device.NewStream("wire");
    const Bytes in = Input();
    Raw& mine = found[static_cast<size_t>(rank)];
    mine.bytes.resize(kCount);
    EXPECT_TRUE(device.Copy(*stream, in.data(), memory->data(), kCount).ok());
    const CurrentDevice current(rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const ncclResult_t begun = api->CommInitRankConfig(&comm, ranks, id, rank, &config);
    EXPECT_EQ(Ended(*api, comm, begun), ncclSuccess);
    const ncclDataType_t type = dtype == DType::kF8E4M3 ? ncclFloat8e4m3 : ncclFloat8e5m2;
    const cudaStream_t wire = AsCudaStream(*stream, rank)->get();
    mine.result =
        Ended(*api, comm,
              api->AllReduce(memory->data(), memory->data(), kCount, type, ncclAvg, comm, wire));
    EXPECT_TRUE(device.Copy(*stream, memory->data(), mine.bytes.data(), kCount).ok());
    EXPECT_TRUE(stream->Record()->Wait(absl::InfiniteFuture()).ok());
    api->CommAbort(comm);
  });
  return found;
}

// That is why they are refused.
TEST(AveragesTest, NcclHasNoneOfEightBitFloatsOnOneRankAndBiasedOnesOnThree) {
  for (const DType dtype : kNarrow) {
    EXPECT_EQ(RawAverages(dtype, 1)[0].result, ncclInvalidArgument);
    for (const int ranks : {2, 3}) {
      const std::vector<Raw> found = RawAverages(dtype, ranks);
      for (size_t rank = 0; rank < found.size(); ++rank) {
        EXPECT_EQ(found[rank].result, ncclSuccess);
        EXPECT_EQ(found[rank].bytes == Expected(dtype, ReduceOp::kAvg, ranks), ranks == 2)
            << Name(dtype) << ", " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace bucketd::agent
