#include "server/identity/small_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

namespace bucketd {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a file"));
  }
  std::string text(static_cast<size_t>(max_bytes) + 1, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), max_bytes + 1);
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read: ", std::strerror(errno)));
  }
  if (file.gcount() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", max_bytes, " bytes"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
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
