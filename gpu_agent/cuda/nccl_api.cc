#include "gpu_agent/cuda/nccl_api.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr int kOldest = 21800;
constexpr char kName[] = "libnccl.so.2";

template <class Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The first function that is missing, or null.
const char* FindRequired(void* library, NcclApi& api) {
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    if (!Find(library, name, function) && missing == nullptr) missing = name;
  };
  find("ncclGetErrorString", api.GetErrorString);
  find("ncclGetLastError", api.GetLastError);
  find("ncclGetUniqueId", api.GetUniqueId);
  find("ncclCommInitRankConfig", api.CommInitRankConfig);
  find("ncclCommGetAsyncError", api.CommGetAsyncError);
  find("ncclCommFinalize", api.CommFinalize);
  find("ncclCommDestroy", api.CommDestroy);
  find("ncclCommAbort", api.CommAbort);
  find("ncclGroupStart", api.GroupStart);
  find("ncclGroupEnd", api.GroupEnd);
  find("ncclAllGather", api.AllGather);
  find("ncclReduceScatter", api.ReduceScatter);
  find("ncclAllReduce", api.AllReduce);
  return missing;
}

// Pairs come together or not at all.
void FindNewer(void* library, NcclApi& api) {
  if (!Find(library, "ncclCommCount", api.CommCount) ||
      !Find(library, "ncclCommSplit", api.CommSplit)) {
    api.CommSplit = nullptr;
  }
  if (!Find(library, "ncclMemFree", api.MemFree) || !Find(library, "ncclMemAlloc", api.MemAlloc)) {
    api.MemAlloc = nullptr;
  }
  if (!Find(library, "ncclCommWindowDeregister", api.CommWindowDeregister) ||
      !Find(library, "ncclCommWindowRegister", api.CommWindowRegister)) {
    api.CommWindowRegister = nullptr;
  }
}

void* Present() { return dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); }

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// `present`: the process's own, or null.
absl::StatusOr<std::shared_ptr<const NcclApi>> Resolve(void* library, const std::string& file,
                                                       void* present) {
  auto api = std::make_shared<NcclApi>();
  api->file = file;
  api->of_process = library == present;
  decltype(&ncclGetVersion) get_version = nullptr;
  if (!Find(library, "ncclGetVersion", get_version) || get_version(&api->version) != ncclSuccess) {
    return absl::UnavailableError(absl::StrCat(file, " is no NCCL: it has no version"));
  }
  if (api->version < kOldest) {
    return absl::UnavailableError(
        absl::StrCat(api->ToString(), " is older than ", VersionText(kOldest)));
  }
  const char* missing = FindRequired(library, *api);
  if (missing != nullptr) {
    return absl::UnavailableError(absl::StrCat(api->ToString(), " has no ", missing));
  }
  FindNewer(library, *api);
  return std::shared_ptr<const NcclApi>(std::move(api));
}

}  // namespace

std::string NcclApi::ToString() const {
  return absl::StrCat("NCCL ", VersionText(version), " (", file, ")");
}

absl::StatusOr<std::shared_ptr<const NcclApi>> NcclApi::Load() {
  const char* named = std::getenv("BUCKETD_NCCL_LIB");
  if (named != nullptr && *named != '\0') return Load(std::string(named));
  void* present = Present();
  if (present != nullptr) return Resolve(present, absl::StrCat(kName, " of this process"), present);
  return Load(kName);
}

absl::StatusOr<std::shared_ptr<const NcclApi>> NcclApi::Load(const std::string& file) {
  void* present = Present();
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("no NCCL: ", dlerror()));
  return Resolve(library, file, present);
}

}  // namespace bucketd::agent
