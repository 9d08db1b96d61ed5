#include "passes/base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bucketd {
namespace {

absl::Status WhyNot(const std::string& path, int error, bool opened) {
  if (error == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  const std::string text = absl::StrCat(path, ": cannot be read: ", std::strerror(error));
  return opened && error != EISDIR ? absl::UnavailableError(text) : absl::NotFoundError(text);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  constexpr size_t kLeast = size_t{64} << 10;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return WhyNot(path, errno, /*opened=*/false);
  const size_t most = static_cast<size_t>(max_bytes) + 1;
  std::string bytes;
  size_t size = 0;
  ssize_t got = 1;
  while (got > 0 && size < most) {
    if (size == bytes.size()) bytes.resize(std::min(most, std::max(kLeast, 2 * size)));
    do {
      got = read(file, bytes.data() + size, bytes.size() - size);
    } while (got < 0 && errno == EINTR);
    size += got > 0 ? static_cast<size_t>(got) : 0;
  }
  const int error = errno;
  close(file);
  if (got < 0) return WhyNot(path, error, /*opened=*/true);
  if (size == most) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", max_bytes, " bytes"));
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace bucketd
