// NCCL as it is found at run time: nothing links it, one build works with every 2.18 or newer.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace bucketd::agent {

// Null members are what this NCCL does not have. Immutable; the library stays loaded for good.
struct NcclApi {
  // The environment's BUCKETD_NCCL_LIB, else the NCCL that is in the process already (a trainer's:
  // two of them would each have its own settings and threads), else libnccl.so.2.
  // UNAVAILABLE says what was tried, or that it is older than 2.18.
  static absl::StatusOr<std::shared_ptr<const NcclApi>> Load();
  // A certain file. Tests.
  static absl::StatusOr<std::shared_ptr<const NcclApi>> Load(const std::string& file);

  int version = 0;  // as NCCL_VERSION_CODE
  // It was in the process before: communicators of the process's own are its.
  bool of_process = false;
  std::string file;
  std::string ToString() const;  // "NCCL 2.27.3 (libnccl.so.2)"

  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclCommFinalize) CommFinalize = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclAllGather) AllGather = nullptr;
  decltype(&ncclReduceScatter) ReduceScatter = nullptr;
  decltype(&ncclAllReduce) AllReduce = nullptr;

  // 2.18; null where it has no splits
  decltype(&ncclCommSplit) CommSplit = nullptr;
  decltype(&ncclCommCount) CommCount = nullptr;
  // 2.19
  decltype(&ncclMemAlloc) MemAlloc = nullptr;
  decltype(&ncclMemFree) MemFree = nullptr;
  // 2.27
  decltype(&ncclCommWindowRegister) CommWindowRegister = nullptr;
  decltype(&ncclCommWindowDeregister) CommWindowDeregister = nullptr;
};

}  // namespace bucketd::agent
