// Which backend is chosen, what it says of it, and that a group of ranks comes out of it.
#include "gpu_agent/backend/backend.h"

#include <cstdlib>
#include <filesystem>
#include <future>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/base/status_macros.h"
#include "tests/gpu_agent/ring_group.h"

namespace bucketd::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Where the tests' modules are: beside the program.
std::string Module(const std::string& name) {
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  return (here / absl::StrCat("libfake_", name, ".so")).string();
}

std::string Reason(const std::string& asked, int ranks, const std::string& module) {
  const auto backend = Backend::Open(asked, 0, ranks, "", module);
  return backend.ok() ? (*backend)->reason() : backend.status().ToString();
}

TEST(Backend, AutoIsTheRingWhereNoModuleIs) {
  EXPECT_EQ(Reason("auto", 2, "/no/module.so"), "ring: /no/module.so is absent");
  EXPECT_EQ(Reason("auto", 2, Module("no_gpus")), "ring: there are 0 GPUs");
  EXPECT_EQ(Reason("auto", 2, Module("two_gpus")), "ring: no NCCL");
}

TEST(Backend, AutoIsNcclWhereEachRankHasAGpu) {
  EXPECT_EQ(Reason("auto", 2, Module("gpus")), "nccl: 2 GPUs, NCCL of the tests");
  EXPECT_THAT(Reason("auto", 3, Module("gpus")),
              AllOf(HasSubstr("ring: 3 ranks on 2 GPUs"), HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE")));
}

TEST(Backend, NcclIsRefusedWithTheReasonAndTheWayOut) {
  const auto absent = Backend::Open("nccl", 0, 2, "", "/no/module.so");
  EXPECT_EQ(
      absent.status(),
      absl::UnavailableError("backend nccl: /no/module.so is absent; backend ring wants no GPU"));
  EXPECT_THAT(Reason("nccl", 3, Module("gpus")), HasSubstr("3 ranks on 2 GPUs"));
}

TEST(Backend, RanksShareGpusWhereTheEnvironmentSaysThatNcclMay) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const auto third = Backend::Open("nccl", 2, 3, "", Module("gpus"));
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ((*third)->device().name(), "cuda:0 of the tests");
}

TEST(Backend, NcclConnectsHostsOnTheInterfaceThatIsNamed) {
  const auto told = [](const std::string& asked, const std::string& interface) -> std::string {
    const auto backend = Backend::Open(asked, 0, 2, interface, Module("gpus"));
    if (!backend.ok()) return backend.status().ToString();
    const char* name = std::getenv("NCCL_SOCKET_IFNAME");
    return name == nullptr ? "nothing" : name;
  };
  unsetenv("NCCL_SOCKET_IFNAME");
  EXPECT_EQ(told("nccl", ""), "nothing");
  EXPECT_EQ(told("ring", "lo"), "nothing");
  EXPECT_THAT(told("nccl", "no-such-interface"), HasSubstr("no-such-interface"));
  EXPECT_EQ(told("nccl", "127.0.0.1"), "=lo");
  setenv("NCCL_SOCKET_IFNAME", "ib0", 1);
  EXPECT_EQ(told("nccl", "lo"), "ib0") << "somebody has said otherwise";
  unsetenv("NCCL_SOCKET_IFNAME");
}

TEST(Backend, TheRingIsNeverAQuestionOfModules) {
  EXPECT_EQ(Reason("ring", 2, Module("gpus")), "ring: as asked");
  EXPECT_EQ(Backend::Open("carrier_pigeon", 0, 2, "").status().code(),
            absl::StatusCode::kOutOfRange);
}

// All-gathers what each rank says, on the device of its backend.
absl::StatusOr<std::string> Gather(int rank, int size, const std::string& folder,
                                   const std::string& module) {
  ASSIGN_OR_RETURN(const auto backend, Backend::Open("nccl", rank, size, "", module));
  ASSIGN_OR_RETURN(const auto rendezvous, FolderRendezvous::Open(folder));
  ASSIGN_OR_RETURN(RingPeers peers, ConnectRing(TestRing(folder, rank, size, false), *rendezvous));
  ASSIGN_OR_RETURN(const auto communicator, backend->Connect(std::move(peers), {}, "test"));
  ASSIGN_OR_RETURN(const auto buffer, backend->device().Allocate(size));
  ASSIGN_OR_RETURN(const auto stream, backend->device().NewStream("test"));
  const char own = static_cast<char>('a' + rank);
  std::string all(static_cast<size_t>(size), '?');
  RETURN_IF_ERROR(backend->device().Copy(*stream, &own, buffer->data() + rank, 1));
  const Collective gather{CollectiveKind::kAllGather,
                          buffer->data() + rank,
                          buffer->data(),
                          1,
                          DType::kU8,
                          ReduceOp::kNone};
  RETURN_IF_ERROR(communicator->Launch(*stream, {&gather, 1}));
  RETURN_IF_ERROR(backend->device().Copy(*stream, buffer->data(), all.data(), size));
  RETURN_IF_ERROR(stream->Record()->Wait(absl::InfiniteFuture()));
  return absl::StrCat(communicator->ToString(), ": ", all);
}

std::vector<absl::StatusOr<std::string>> GatherOnAll(int size) {
  const TempFolder folder;
  std::vector<std::future<absl::StatusOr<std::string>>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(
        std::async(std::launch::async, Gather, rank, size, folder.path(), Module("gpus")));
  }
  std::vector<absl::StatusOr<std::string>> said;
  for (auto& rank : ranks) said.push_back(rank.get());
  return said;
}

TEST(Backend, RanksMeetOnTheRingAndGoOnByNccl) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const auto said = GatherOnAll(3);
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  for (size_t rank = 0; rank < said.size(); ++rank) {
    ASSERT_TRUE(said[rank].ok()) << said[rank].status();
    EXPECT_EQ(*said[rank], absl::StrCat("NCCL of the tests of 3 ranks, rank ", rank, ": abc"));
  }
}

TEST(Backend, AllRanksHearThatTheFirstHasNoId) {
  setenv("FAKE_NCCL_FOLDER", "/no/such/folder", 1);
  const auto said = GatherOnAll(2);
  unsetenv("FAKE_NCCL_FOLDER");
  for (const auto& rank : said) {
    EXPECT_EQ(rank.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(rank.status().message(), HasSubstr("rank 0 has no NCCL id: /no/such/folder"));
  }
}

// As where trainers have come, and taken its memory, before an agent is back.
TEST(Backend, AGpuThatCannotBeTakenAgainIsLeftAgain) {
  const TempFolder contexts;
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(contexts.path()), {});
  };
  setenv("FAKE_GPUS_CONTEXTS", contexts.path().c_str(), 1);
  const auto backend = *Backend::Open("nccl", 0, 1, "", Module("gpus"));
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(backend->Leave().ok());
  EXPECT_EQ(files(), 0);
  setenv("FAKE_GPUS_FULL", "1", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(backend->Return()));
  EXPECT_TRUE(backend->Leave().ok());
  EXPECT_EQ(files(), 0);
  unsetenv("FAKE_GPUS_FULL");
  EXPECT_TRUE(backend->Return().ok());
  EXPECT_EQ(files(), 1);
  unsetenv("FAKE_GPUS_CONTEXTS");
}

}  // namespace
}  // namespace bucketd::agent
