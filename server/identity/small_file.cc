#include "server/identity/small_file.h"

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "passes/base/read_file.h"

namespace bucketd {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a file"));
  }
  return ReadFile(path, max_bytes);
}

std::string SignatureOf(const std::vector<std::string>& paths) {
  std::string signature;
  for (const std::string& path : paths) {
    struct stat info {};
    const bool there = stat(path.c_str(), &info) == 0;  // of what links lead to
    absl::StrAppend(&signature, there, " ", info.st_ino, " ", info.st_size, " ",
                    info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, "\n");
  }
  return signature;
}

}  // namespace bucketd
