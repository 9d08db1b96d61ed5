#include "gpu_agent/device/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// NVML's types and codes, by its documented interface (nvml.h of CUDA 13.0).
using NvmlDevice = void*;
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;  // NOLINT(runtime/int): NVML's type
  unsigned int gpu_instance, compute_instance;
};
constexpr int kSuccess = 0, kInsufficientSize = 7;
// Room for processes that begin between a call that says how many there are and the next one.
constexpr unsigned int kMore = 16;
constexpr int kTries = 4;

std::string NameOf(unsigned int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

// Of whatever user, and of ranks that calibrate starts.
bool IsAgent(unsigned int pid, const std::string& name) {
  return pid == static_cast<unsigned int>(getpid()) || name == "bucket-agent";
}

}  // namespace

struct Nvml::Api {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error)(int) = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*device)(unsigned int, NvmlDevice*) = nullptr;
  int (*processes)(NvmlDevice, unsigned int*, ProcessInfo*) = nullptr;

  template <typename Function>
  static bool Find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
  bool FindAll(void* library) {
    return Find(library, "nvmlInit_v2", init) && Find(library, "nvmlShutdown", shutdown) &&
           Find(library, "nvmlErrorString", error) &&
           Find(library, "nvmlDeviceGetCount_v2", count) &&
           Find(library, "nvmlDeviceGetHandleByIndex_v2", device) &&
           Find(library, "nvmlDeviceGetComputeRunningProcesses_v3", processes);
  }

  absl::Status Status(int result, absl::string_view of) const {
    if (result == kSuccess) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("NVML: ", of, ": ", error(result)));
  }

  absl::StatusOr<unsigned int> Gpus() const {
    unsigned int gpus = 0;
    RETURN_IF_ERROR(Status(count(&gpus), "the number of GPUs"));
    return gpus;
  }

  absl::StatusOr<std::vector<ProcessInfo>> ProcessesOf(unsigned int index) const {
    const std::string of = absl::StrCat("processes of GPU ", index);
    NvmlDevice handle = nullptr;
    RETURN_IF_ERROR(Status(device(index, &handle), of));
    std::vector<ProcessInfo> found(kMore);
    int result = kInsufficientSize;
    for (int i = 0; i < kTries && result == kInsufficientSize; ++i) {
      auto size = static_cast<unsigned int>(found.size());
      result = processes(handle, &size, found.data());
      if (result == kInsufficientSize) found.resize(size + kMore);
      if (result == kSuccess) found.resize(size);
    }
    RETURN_IF_ERROR(Status(result, of));
    return found;
  }
};

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open() {
  const char* named = std::getenv("BUCKETD_NVML_LIB");
  const std::string path = named != nullptr && *named != '\0' ? named : "libnvidia-ml.so.1";
  // Never unloaded: it may have threads.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("NVML: ", dlerror()));
  auto api = std::make_unique<Api>();
  if (!api->FindAll(library)) {
    return absl::UnavailableError(
        absl::StrCat("NVML: ", path, " lacks what is called here; a driver from 510 on has it"));
  }
  const int result = api->init();
  if (result != kSuccess) {
    return absl::UnavailableError(absl::StrCat("NVML: ", path, ": ", api->error(result)));
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(api)));
}

Nvml::Nvml(std::unique_ptr<Api> api) : api_(std::move(api)) {}

Nvml::~Nvml() { api_->shutdown(); }

absl::StatusOr<std::string> Nvml::Computing() const {
  ASSIGN_OR_RETURN(const unsigned int gpus, api_->Gpus());
  for (unsigned int gpu = 0; gpu < gpus; ++gpu) {
    ASSIGN_OR_RETURN(const std::vector<ProcessInfo> processes, api_->ProcessesOf(gpu));
    for (const ProcessInfo& process : processes) {
      const std::string name = NameOf(process.pid);
      if (IsAgent(process.pid, name)) continue;
      return absl::StrCat("GPU ", gpu, ": process ", process.pid,
                          name.empty() ? "" : absl::StrCat(" (", name, ")"));
    }
  }
  return "";
}

bool Nvml::KnowsThisProcess() const {
  const absl::StatusOr<unsigned int> gpus = api_->Gpus();
  for (unsigned int gpu = 0; gpus.ok() && gpu < *gpus; ++gpu) {
    const absl::StatusOr<std::vector<ProcessInfo>> processes = api_->ProcessesOf(gpu);
    if (!processes.ok()) continue;
    for (const ProcessInfo& process : *processes) {
      if (process.pid == static_cast<unsigned int>(getpid())) return true;
    }
  }
  return false;
}

}  // namespace bucketd::agent
