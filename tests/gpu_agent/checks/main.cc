// gpu_checks PART: one part of what a GPU can show (gpu_agent/gpu_checks.sh runs them all).
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gpu_agent/device/module_loader.h"
#include "tests/gpu_agent/checks/checks.h"

namespace bucketd::agent {
namespace {

Verdict Backend() {
  const GpuBackend backend = LoadGpuBackend();
  if (backend.module == nullptr) {
    std::printf("backend: host, since %s\n", backend.reason.c_str());
    return Verdict::kNoGpu;
  }
  std::printf("backend: cuda, %s\n", backend.reason.c_str());
  for (int gpu = 0; gpu < backend.gpus; ++gpu) {
    const auto device = backend.module->open(gpu);
    std::printf("  %s\n",
                device.ok() ? (*device)->name().c_str() : device.status().ToString().c_str());
    if (!device.ok()) return Verdict::kWrong;
  }
  return Verdict::kRight;
}

Verdict Run(const std::string& part, const std::string& argument) {
  if (part == "backend") return Backend();
  if (part == "bits") return CheckBits();
  if (part == "copies") return MeasureCopies(argument);
  if (part == "sharing") return CheckSharing();
  std::fprintf(stderr, "usage: gpu_checks backend | bits | copies [TSV] | sharing\n");
  return Verdict::kWrong;
}

}  // namespace

void Must(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", std::string(what).c_str(), cudaGetErrorString(error));
  std::exit(static_cast<int>(Verdict::kWrong));
}

}  // namespace bucketd::agent

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  return static_cast<int>(bucketd::agent::Run(part, argc > 2 ? argv[2] : ""));
}
