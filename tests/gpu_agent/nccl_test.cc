// What of NCCL can be seen without a GPU: how it is found, the terms that collectives are put in,
// and how a communicator behaves when its calls take long, fail, or are aborted.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "gpu_agent/cuda/nccl_api.h"
#include "gpu_agent/cuda/nccl_communicator.h"

namespace bucketd::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The wheel's, where it was found.
std::string RealNccl() {
  const char* const path = std::getenv("NCCL_LIBRARY");
  return path != nullptr && std::filesystem::exists(path) ? path : "";
}

TEST(NcclApi, TheLibraryTellsItsVersionAndWhatItHas) {
  if (RealNccl().empty()) GTEST_SKIP() << "NCCL_LIBRARY, which ctest sets, names no libnccl.so.2";
  const auto api = NcclApi::Load(RealNccl());
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_GE((*api)->version, 22700);
  EXPECT_THAT((*api)->ToString(), AllOf(HasSubstr("NCCL 2."), HasSubstr(RealNccl())));
  EXPECT_NE((*api)->MemAlloc, nullptr);
  EXPECT_NE((*api)->CommWindowRegister, nullptr);
  // It is in the process now, so that the search finds it before any other.
  unsetenv("BUCKETD_NCCL_LIB");
  EXPECT_NE((*api)->CommSplit, nullptr);
  const auto present = NcclApi::Load();
  EXPECT_TRUE(present.ok() && (*present)->of_process);
  ASSERT_TRUE(present.ok()) << present.status();
  EXPECT_EQ((*present)->file, "libnccl.so.2 of this process");
  EXPECT_EQ((*present)->AllReduce, (*api)->AllReduce);
}

TEST(NcclApi, WhatIsNoNcclOrTooOldIsRefused) {
  const std::string beside = std::filesystem::canonical("/proc/self/exe").parent_path().string();
  Dl_info standard;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&std::terminate), &standard), 0);
  setenv("BUCKETD_NCCL_LIB", "/no/such/libnccl.so", 1);
  EXPECT_THAT(NcclApi::Load().status().ToString(),
              AllOf(HasSubstr("UNAVAILABLE: no NCCL"), HasSubstr("/no/such/libnccl.so")));
  setenv("BUCKETD_NCCL_LIB", standard.dli_fname, 1);
  EXPECT_THAT(NcclApi::Load().status().ToString(), HasSubstr("is no NCCL: it has no version"));
  setenv("BUCKETD_NCCL_LIB", absl::StrCat(beside, "/libfake_old_nccl.so").c_str(), 1);
  EXPECT_THAT(NcclApi::Load().status().ToString(),
              AllOf(HasSubstr("NCCL 2.17.5"), HasSubstr("is older than 2.18.0")));
  unsetenv("BUCKETD_NCCL_LIB");
}

Collective Of(CollectiveKind kind, DType dtype, ReduceOp op) {
  return {kind, nullptr, nullptr, 6, dtype, op};
}

TEST(NcclTerms, AllGathersMoveBytesOfAnyDtype) {
  for (const auto& [dtype, bytes] : {std::pair<DType, size_t>{DType::kBool, 6},
                                     {DType::kI16, 12},
                                     {DType::kBF16, 12},
                                     {DType::kC128, 96}}) {
    const auto call = InNcclTerms(Of(CollectiveKind::kAllGather, dtype, ReduceOp::kNone), 21800);
    ASSERT_TRUE(call.ok());
    EXPECT_EQ(call->type, ncclUint8);
    EXPECT_EQ(call->count, bytes);
  }
}

TEST(NcclTerms, ReductionsKeepTheirTypeComplexNumbersArePairsAndBoolsAreAnyOrAll) {
  struct Case {
    DType dtype;
    ReduceOp op;
    ncclDataType_t type;
    size_t count;
    ncclRedOp_t want;
  };
  const std::vector<Case> cases = {
      {DType::kBF16, ReduceOp::kAvg, ncclBfloat16, 6, ncclAvg},
      {DType::kF32, ReduceOp::kSum, ncclFloat32, 6, ncclSum},
      {DType::kF64, ReduceOp::kProduct, ncclFloat64, 6, ncclProd},
      {DType::kF16, ReduceOp::kMin, ncclFloat16, 6, ncclMin},
      {DType::kU64, ReduceOp::kMax, ncclUint64, 6, ncclMax},
      {DType::kI8, ReduceOp::kSum, ncclInt8, 6, ncclSum},
      {DType::kC64, ReduceOp::kSum, ncclFloat32, 12, ncclSum},
      {DType::kC128, ReduceOp::kAvg, ncclFloat64, 12, ncclAvg},
      {DType::kBool, ReduceOp::kSum, ncclUint8, 6, ncclMax},
      {DType::kBool, ReduceOp::kProduct, ncclUint8, 6, ncclMin},
      {DType::kBool, ReduceOp::kBor, ncclUint8, 6, ncclMax},
      {DType::kBool, ReduceOp::kBand, ncclUint8, 6, ncclMin},
  };
  for (const Case& c : cases) {
    const auto call = InNcclTerms(Of(CollectiveKind::kAllReduce, c.dtype, c.op), 21800);
    ASSERT_TRUE(call.ok()) << call.status();
    EXPECT_EQ(call->type, c.type) << Name(c.dtype);
    EXPECT_EQ(call->count, c.count) << Name(c.dtype);
    EXPECT_EQ(call->op, c.want) << Name(c.dtype);
  }
}

TEST(NcclTerms, WhatNcclCannotReduceIsSaid) {
  const auto refused = [](DType dtype, ReduceOp op, int version) {
    return InNcclTerms(Of(CollectiveKind::kReduceScatter, dtype, op), version).status().ToString();
  };
  EXPECT_EQ(refused(DType::kI16, ReduceOp::kSum, 23200), "UNIMPLEMENTED: NCCL does not reduce i16");
  EXPECT_EQ(refused(DType::kI32, ReduceOp::kBxor, 23200), "UNIMPLEMENTED: NCCL has no bxor of i32");
  EXPECT_EQ(refused(DType::kF8E4M3, ReduceOp::kSum, 22304),
            "UNIMPLEMENTED: NCCL reduces f8_e4m3 from 2.24 on");
  EXPECT_EQ(refused(DType::kF8E4M3, ReduceOp::kSum, 22400), "OK");
  EXPECT_EQ(refused(DType::kF8E4M3, ReduceOp::kAvg, 23200),
            "UNIMPLEMENTED: NCCL has no avg of f8_e4m3");
  EXPECT_EQ(refused(DType::kF8E5M2, ReduceOp::kAvg, 23200),
            "UNIMPLEMENTED: NCCL has no avg of f8_e5m2");
}

// An NCCL whose answers are scripted, in place of one that needs a GPU. It writes down what it is
// asked, all but the polling.
struct Script {
  std::mutex mutex;
  std::vector<std::string> calls;
  int polls_in_progress = 0;              // answers before the settled one
  ncclResult_t settled = ncclSuccess;     // what polling ends with
  ncclResult_t collective = ncclSuccess;  // of each collective call
  ncclResult_t window = ncclSuccess;      // of each registration
};
Script* script = nullptr;

ncclResult_t Note(const std::string& call, ncclResult_t result = ncclInProgress) {
  const std::lock_guard lock(script->mutex);
  script->calls.push_back(call);
  return result;
}

std::shared_ptr<const NcclApi> Scripted() {
  auto api = std::make_shared<NcclApi>();
  api->version = 21800;
  api->file = "script";
  api->GetErrorString = [](ncclResult_t result) {
    return result == ncclRemoteError ? "remote error" : "an error";
  };
  api->GetLastError = [](ncclComm_t) { return "peer 1 is gone"; };
  api->CommInitRankConfig = [](ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
    *comm = reinterpret_cast<ncclComm_t>(script);
    return Note(config->blocking == 0 ? "init" : "blocking init");
  };
  api->CommGetAsyncError = [](ncclComm_t, ncclResult_t* result) {
    *result = script->polls_in_progress-- > 0 ? ncclInProgress : script->settled;
    return ncclSuccess;
  };
  api->CommFinalize = [](ncclComm_t) { return Note("finalize"); };
  api->CommDestroy = [](ncclComm_t) { return Note("destroy"); };
  api->CommAbort = [](ncclComm_t) { return Note("abort"); };
  api->GroupStart = [] { return Note("start", ncclSuccess); };
  api->GroupEnd = [] { return Note("end"); };
  api->AllGather = [](const void*, void*, size_t count, ncclDataType_t, ncclComm_t, cudaStream_t) {
    return Note(absl::StrCat("all-gather ", count), script->collective);
  };
  api->ReduceScatter = [](const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                          cudaStream_t) {
    return Note(absl::StrCat("reduce-scatter ", count), script->collective);
  };
  api->AllReduce = [](const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                      cudaStream_t) {
    return Note(absl::StrCat("all-reduce ", count), script->collective);
  };
  api->MemAlloc = [](void**, size_t) { return ncclSuccess; };
  api->CommWindowRegister = [](ncclComm_t, void* data, size_t bytes, ncclWindow_t* window, int) {
    *window = reinterpret_cast<ncclWindow_t>(data);
    return Note(absl::StrCat("register ", bytes), script->window);
  };
  api->CommWindowDeregister = [](ncclComm_t, ncclWindow_t) { return Note("deregister"); };
  return api;
}

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  NcclCommunicatorTest() { script = &script_; }

  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(absl::Duration timeout) {
    NcclOptions options;
    options.id = std::string(128, 'x');
    options.rank = 1;
    options.size = 2;
    options.timeout = timeout;
    return NcclCommunicator::Create(Scripted(), device_, options);
  }
  std::unique_ptr<NcclCommunicator> Started() {
    script_.polls_in_progress = 3;
    auto communicator = Create(absl::Minutes(1));
    EXPECT_TRUE(communicator.ok()) << communicator.status();
    script_.calls.clear();
    return *std::move(communicator);
  }
  // Nobody waits for an abort: so far, or with it.
  std::vector<std::string> Calls(bool with_abort = false) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    for (;; absl::SleepFor(absl::Milliseconds(1))) {
      const std::lock_guard lock(script_.mutex);
      const bool there = !script_.calls.empty() && script_.calls.back() == "abort";
      if (!with_abort || there || absl::Now() > deadline) return script_.calls;
    }
  }
  std::vector<Collective> Group() {
    return {
        {CollectiveKind::kAllGather, memory_, memory_ + 64, 4, DType::kF32, ReduceOp::kNone},
        {CollectiveKind::kReduceScatter, memory_ + 128, memory_ + 192, 4, DType::kF32,
         ReduceOp::kSum},
        {CollectiveKind::kAllReduce, memory_ + 256, memory_ + 256, 4, DType::kF32, ReduceOp::kSum}};
  }

  Script script_;
  std::byte memory_[512]{};
  CudaDevice device_{0, "cuda:0 scripted", Scripted()};
  CudaStream stream_{0, nullptr};
};

TEST_F(NcclCommunicatorTest, StartsWithoutBlockingAndLeavesInOrder) {
  script_.polls_in_progress = 3;
  {
    const auto communicator = Create(absl::Minutes(1));
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    EXPECT_EQ((*communicator)->ToString(),
              "NCCL 2.18.0 (script) of 2 ranks, rank 1 on cuda:0 scripted");
    EXPECT_TRUE((*communicator)->health().ok());
  }
  EXPECT_THAT(script_.calls, ElementsAre("init", "finalize", "destroy"));
}

TEST_F(NcclCommunicatorTest, AStartThatTakesTooLongIsAborted) {
  script_.polls_in_progress = 1 << 30;
  EXPECT_THAT(Create(absl::ZeroDuration()).status().ToString(),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("starting")));
  EXPECT_THAT(Calls(true), ElementsAre("init", "abort"));
}

TEST_F(NcclCommunicatorTest, AGroupIsOneLaunch) {
  const auto communicator = Started();
  EXPECT_TRUE(communicator->Launch(stream_, Group()).ok());
  EXPECT_THAT(script_.calls,
              ElementsAre("start", "all-gather 16", "reduce-scatter 4", "all-reduce 4", "end"));
}

TEST_F(NcclCommunicatorTest, AGroupThatCannotBeRunIsNotBegun) {
  const auto communicator = Started();
  std::vector<Collective> group = Group();
  group[2].dtype = DType::kI16;
  EXPECT_EQ(communicator->Launch(stream_, group).code(), absl::StatusCode::kUnimplemented);
  group[2].count = -1;
  EXPECT_EQ(communicator->Launch(stream_, group).code(), absl::StatusCode::kInvalidArgument);
  CudaStream elsewhere(1, nullptr);
  EXPECT_EQ(communicator->Launch(elsewhere, Group()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(script_.calls.empty());
  EXPECT_TRUE(communicator->health().ok());
}

TEST_F(NcclCommunicatorTest, AnErrorOfACallClosesTheGroupAndEndsTheCommunicator) {
  const auto communicator = Started();
  script_.collective = ncclInvalidUsage;
  EXPECT_EQ(communicator->Launch(stream_, Group()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Calls(true), ElementsAre("start", "all-gather 16", "reduce-scatter 4", "all-reduce 4",
                                       "end", "abort"));
  EXPECT_FALSE(communicator->Launch(stream_, Group()).ok());
  EXPECT_EQ(Calls().size(), 6u);
}

TEST_F(NcclCommunicatorTest, APeersEndIsSeenByHealthAndByTheStream) {
  const auto communicator = Started();
  ASSERT_TRUE(communicator->Launch(stream_, Group()).ok());
  script_.settled = ncclRemoteError;
  EXPECT_THAT(communicator->health().ToString(),
              AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("remote error: peer 1 is gone")));
  EXPECT_EQ(Calls(true).back(), "abort");
  EXPECT_EQ(stream_.status(), communicator->health());
  const auto event = stream_.Record();
  EXPECT_TRUE(event->done());
  EXPECT_EQ(event->Wait(absl::InfinitePast()), communicator->health());
}

TEST_F(NcclCommunicatorTest, AnAbortEndsALaunchThatIsUnderWay) {
  const auto communicator = Started();
  script_.polls_in_progress = 1 << 30;
  std::thread aborter([&] { communicator->Abort("no more"); });
  const absl::Status launched = communicator->Launch(stream_, Group());
  aborter.join();
  EXPECT_EQ(launched, absl::AbortedError("no more"));
  communicator->Abort("again");
  EXPECT_EQ(communicator->health(), absl::AbortedError("no more"));
  EXPECT_TRUE(communicator->Close().ok());
  const std::vector<std::string> calls = Calls(true);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "abort"), 1);
}

TEST_F(NcclCommunicatorTest, WindowsGoBeforeTheCommunicatorDoes) {
  {
    const auto communicator = Started();
    EXPECT_TRUE(communicator->Register(memory_, 256).ok());
    EXPECT_TRUE(communicator->Register(memory_ + 256, 128).ok());
    EXPECT_TRUE(communicator->Deregister(memory_).ok());
    EXPECT_TRUE(communicator->Deregister(memory_).ok());  // it is none any more
  }
  EXPECT_THAT(script_.calls, ElementsAre("register 256", "register 128", "deregister", "deregister",
                                         "finalize", "destroy"));
}

TEST_F(NcclCommunicatorTest, MemoryThatCannotBeRegisteredIsNoHarm) {
  const auto communicator = Started();
  script_.window = ncclInvalidUsage;
  EXPECT_THAT(communicator->Register(memory_, 256).ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("no window: an error")));
  EXPECT_TRUE(communicator->Launch(stream_, Group()).ok());
  script_.window = ncclSystemError;
  EXPECT_EQ(communicator->Register(memory_, 256).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Calls(true).back(), "abort");
  EXPECT_FALSE(communicator->health().ok());
}

TEST_F(NcclCommunicatorTest, IdsAndRanksAreChecked) {
  NcclOptions options;
  options.id = "short";
  EXPECT_THAT(NcclCommunicator::Create(Scripted(), device_, options).status().ToString(),
              HasSubstr("an NCCL id has 128 bytes, not 5"));
  options.id = std::string(128, 'x');
  options.rank = 1;
  EXPECT_THAT(NcclCommunicator::Create(Scripted(), device_, options).status().ToString(),
              HasSubstr("rank 1 of 1 ranks"));
  EXPECT_TRUE(script_.calls.empty());
}

TEST(CudaDevice, WithoutADriverNothingOpens) {
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(CudaDevice::Open(0, nullptr).status().ToString(), HasSubstr("GPU 0: "));
  EXPECT_FALSE(CudaStream::Start(0).ok());
}

}  // namespace
}  // namespace bucketd::agent
