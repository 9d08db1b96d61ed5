// Files that people name, read whole.
#include "passes/base/read_file.h"

#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include <sys/stat.h>

namespace bucketd {
namespace {

std::string Written(const std::string& name, const std::string& bytes) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(ReadFileTest, HasAllBytesUpToItsMost) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64} << 10, (size_t{1} << 20) + 7}) {
    const std::string bytes(size, 'x');
    const std::string path = Written("read_file", bytes);
    const absl::StatusOr<std::string> read = ReadFile(path, static_cast<int64_t>(size));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, bytes);
    if (size == 0) continue;
    const absl::Status more = ReadFile(path, static_cast<int64_t>(size) - 1).status();
    EXPECT_EQ(more.code(), absl::StatusCode::kInvalidArgument) << more;
  }
}

TEST(ReadFileTest, ReadsPipes) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/read_file_pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << "through a pipe"; });
  const absl::StatusOr<std::string> read = ReadFile(path, 100);
  writer.join();
  EXPECT_EQ(read.value_or(""), "through a pipe");
  std::remove(path.c_str());
}

TEST(ReadFileTest, SaysWhyAFileCannotBeRead) {
  const std::string folder = ::testing::TempDir();
  const absl::Status is_folder = ReadFile(folder, 100).status();
  EXPECT_EQ(is_folder.ToString(),
            absl::StrCat("NOT_FOUND: ", folder, ": cannot be read: Is a directory"));
  const absl::Status absent = ReadFile("/no/such", 100).status();
  EXPECT_EQ(absent.ToString(), "NOT_FOUND: /no/such: no such file");
  const absl::Status failed = ReadFile("/proc/self/mem", 100).status();
  EXPECT_EQ(failed.ToString(), "UNAVAILABLE: /proc/self/mem: cannot be read: Input/output error");
}

}  // namespace
}  // namespace bucketd
