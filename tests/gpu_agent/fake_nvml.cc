// A driver's NVML with one GPU on which those processes compute whose numbers stand in the file
// that FAKE_NVML_PROCESSES names, a line each, and those that have a file in FAKE_GPUS_CONTEXTS
// (fake_gpus.cc). Without either, nobody. A file with anything but numbers is an error of NVML's.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;  // NOLINT(runtime/int): NVML's type
  unsigned int gpu_instance, compute_instance;
};

}  // namespace

#define NVML extern "C" __attribute__((visibility("default")))

NVML int nvmlInit_v2() { return 0; }
NVML int nvmlShutdown() { return 0; }
NVML const char* nvmlErrorString(int /*error*/) { return "an error of the tests"; }
NVML int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 1;
  return 0;
}
NVML int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  static int gpu;
  *device = &gpu;
  return index == 0 ? 0 : 2;
}
NVML int nvmlDeviceGetComputeRunningProcesses_v3(void* /*device*/, unsigned int* count,
                                                 ProcessInfo* found) {
  const char* path = std::getenv("FAKE_NVML_PROCESSES");
  std::ifstream file(path == nullptr ? "" : path);
  std::vector<unsigned int> pids;
  for (unsigned int pid = 0; file >> pid;) pids.push_back(pid);
  if (file.is_open() && !file.eof()) return 999;
  const char* contexts = std::getenv("FAKE_GPUS_CONTEXTS");
  if (contexts != nullptr) {
    for (const auto& entry : std::filesystem::directory_iterator(contexts)) {
      pids.push_back(static_cast<unsigned int>(std::stoul(entry.path().filename().string())));
    }
  }
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(pids.size());
  if (room < *count) return 7;  // what there is room for is not enough
  for (unsigned int i = 0; i < *count; ++i) found[i] = {pids[i], 1, ~0U, ~0U};
  return 0;
}
