#include "gpu_agent/comm/rendezvous.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <sys/stat.h>

#include "gpu_agent/comm/socket.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr size_t kMaxEndpoint = 512;  // that is published or believed

absl::Status FileError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status CheckPrivateFolder(const std::string& folder) {
  struct stat found {};
  if (lstat(folder.c_str(), &found) != 0) {
    return absl::NotFoundError(absl::StrCat(folder, ": ", std::strerror(errno)));
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::PermissionDeniedError(absl::StrCat(folder, ": expected a folder"));
  }
  if (found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s: belongs to user %u with mode %04o: expected user %u and mode 0700",
                        folder, found.st_uid, found.st_mode & 07777, geteuid()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FolderRendezvous>> FolderRendezvous::Open(
    const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return FileError(folder);
  RETURN_IF_ERROR(CheckPrivateFolder(folder));
  return std::unique_ptr<FolderRendezvous>(new FolderRendezvous(folder));
}

absl::Status FolderRendezvous::Publish(int rank, const std::string& endpoint) {
  if (endpoint.empty() || endpoint.size() > kMaxEndpoint) {
    return absl::InvalidArgumentError(
        absl::StrCat("an endpoint of ", endpoint.size(), " bytes: expected 1 to ", kMaxEndpoint));
  }
  // Renamed, so that nobody reads a part of it.
  const std::string path = PathOf(rank);
  const std::string part = absl::StrCat(path, ".", getpid(), ".part");
  const Fd file(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return FileError(part);
  const auto size = static_cast<ssize_t>(endpoint.size());
  if (write(file.get(), endpoint.data(), endpoint.size()) != size) return FileError(part);
  if (std::rename(part.c_str(), path.c_str()) != 0) return FileError(path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> FolderRendezvous::Lookup(int rank) {
  const std::string path = PathOf(rank);
  const Fd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("rank ", rank, " has not published ", path));
  }
  char text[kMaxEndpoint];
  const ssize_t got = file ? read(file.get(), text, sizeof(text)) : -1;
  if (got < 0) return FileError(path);
  return std::string(text, static_cast<size_t>(got));
}

std::string FolderRendezvous::PathOf(int rank) const {
  return absl::StrCat(folder_, "/rank.", rank);
}

}  // namespace bucketd::agent
