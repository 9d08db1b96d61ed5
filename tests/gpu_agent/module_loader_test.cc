#include "gpu_agent/device/module_loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bucketd::agent {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Where the test's own modules are: beside the program.
std::string Beside(const std::string& name) {
  return (std::filesystem::canonical("/proc/self/exe").parent_path() / name).string();
}

// The host, for a reason.
void ExpectHost(const GpuBackend& backend, const ::testing::Matcher<const std::string&>& reason) {
  EXPECT_EQ(backend.module, nullptr);
  EXPECT_EQ(backend.gpus, 0);
  EXPECT_THAT(backend.reason, reason);
}

TEST(ModuleLoader, AnAbsentModuleIsNamed) {
  ExpectHost(LoadGpuBackend("/no/such/module.so"), "/no/such/module.so is absent");
  ExpectHost(LoadGpuBackend("/no/bin/libbucketd_cuda.so"),
             "/no/bin/libbucketd_cuda.so and /no/lib/libbucketd_cuda.so are absent");
}

TEST(ModuleLoader, AFileThatIsNoLibraryIsRefused) {
  const std::string path = Beside("module_loader_test.garbage.so");
  std::ofstream(path) << "no library";
  ExpectHost(LoadGpuBackend(path), AllOf(StartsWith("cannot load "), HasSubstr(path)));
  std::filesystem::remove(path);
}

TEST(ModuleLoader, AnotherLibraryIsRefused) {
  Dl_info standard;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&std::terminate), &standard), 0);
  ExpectHost(LoadGpuBackend(standard.dli_fname), EndsWith(" is not a module of this build"));
}

TEST(ModuleLoader, AModuleOfAnotherBuildIsRefused) {
  ExpectHost(LoadGpuBackend(Beside("libfake_other_build.so")),
             EndsWith("libfake_other_build.so is not a module of this build"));
}

TEST(ModuleLoader, NoGpusIsAReason) {
  ExpectHost(LoadGpuBackend(Beside("libfake_no_gpus.so")), "there are 0 GPUs");
}

TEST(ModuleLoader, GpusAreCountedAndNcclIsNamed) {
  const GpuBackend backend = LoadGpuBackend(Beside("libfake_two_gpus.so"));
  ASSERT_NE(backend.module, nullptr);
  EXPECT_EQ(backend.gpus, 2);
  EXPECT_EQ(backend.reason, "2 GPUs, no NCCL");
}

TEST(ModuleLoader, TheEnvironmentNamesTheModuleOrSwitchesItOff) {
  unsetenv("BUCKETD_CUDA_MODULE");
  const std::string beside = Beside("libbucketd_cuda.so"),
                    in_lib = Beside("../lib/libbucketd_cuda.so");
  const bool built = std::filesystem::exists(in_lib);  // for this program in tests/
  EXPECT_EQ(GpuModulePath(), built ? std::filesystem::canonical(in_lib).string() : beside);
  setenv("BUCKETD_CUDA_MODULE", "off", 1);
  ExpectHost(LoadGpuBackend(), "BUCKETD_CUDA_MODULE is off");
  setenv("BUCKETD_CUDA_MODULE", "/elsewhere/module.so", 1);
  ExpectHost(LoadGpuBackend(), "/elsewhere/module.so is absent");
  unsetenv("BUCKETD_CUDA_MODULE");
}

// The module itself, where it is built: it loads without a driver, and says that there is none.
TEST(ModuleLoader, TheModuleLoadsWithAndWithoutADriver) {
  if (!std::filesystem::exists(GpuModulePath())) GTEST_SKIP() << "built without CUDA";
  const GpuBackend backend = LoadGpuBackend();
  if (std::filesystem::exists("/dev/nvidia0")) {
    EXPECT_NE(backend.module, nullptr) << backend.reason;
  } else {
    ExpectHost(backend, AnyOf("no GPU can be used: there is no CUDA driver", "there are 0 GPUs"));
  }
}

}  // namespace
}  // namespace bucketd::agent
