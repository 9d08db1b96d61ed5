#include "gpu_agent/device/module_loader.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace bucketd::agent {
namespace {

constexpr char kFile[] = "libbucketd_cuda.so";

GpuBackend Host(std::string reason) { return {nullptr, 0, std::move(reason)}; }

std::filesystem::path InLib(const std::filesystem::path& folder) {
  return folder.parent_path() / "lib" / kFile;
}

// Of a program both places are named: whoever installs the module may take either.
std::string Absent(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path in_lib = InLib(path.parent_path());
  const bool looked_there = path.filename() == kFile && in_lib != path;
  return looked_there && !std::filesystem::exists(in_lib, error)
             ? absl::StrCat(path.string(), " and ", in_lib.string(), " are absent")
             : absl::StrCat(path.string(), " is absent");
}

}  // namespace

std::string GpuModulePath() {
  const char* named = std::getenv("BUCKETD_CUDA_MODULE");
  if (named != nullptr && *named != '\0') return named;
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&LoadGpuBackend), &here) == 0) return "";
  std::error_code error;
  const auto file = std::filesystem::canonical(here.dli_fname, error);
  // A program that was found by PATH is known to the loader by a name that leads nowhere.
  const auto origin = error ? std::filesystem::canonical("/proc/self/exe", error) : file;
  const std::filesystem::path folder = origin.parent_path();
  const std::filesystem::path beside = folder / kFile, in_lib = InLib(folder);
  return (!std::filesystem::exists(beside, error) && std::filesystem::exists(in_lib, error)
              ? in_lib
              : beside)
      .string();
}

GpuBackend LoadGpuBackend(const std::string& path) {
  if (path == "off") return Host("BUCKETD_CUDA_MODULE is off");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Host(Absent(path));
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Host(absl::StrCat("cannot load ", dlerror()));
  const auto entry = reinterpret_cast<GpuModuleEntry>(dlsym(library, kGpuModuleEntry));
  const GpuModule* module = entry == nullptr ? nullptr : entry();
  if (module == nullptr || module->version != kGpuModuleVersion) {
    dlclose(library);
    return Host(absl::StrCat(path, " is not a module of this build"));
  }
  const absl::StatusOr<int> gpus = module->count();
  if (!gpus.ok()) {
    return Host(absl::StrCat("no GPU can be used: ", gpus.status().message()));
  }
  if (*gpus == 0) return Host("there are 0 GPUs");
  const absl::StatusOr<std::string> nccl = module->nccl_version();
  return {module, *gpus,
          absl::StrCat(*gpus, *gpus == 1 ? " GPU, " : " GPUs, ",
                       nccl.ok() ? absl::string_view(*nccl) : nccl.status().message())};
}

}  // namespace bucketd::agent
