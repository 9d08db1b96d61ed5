#include "server/store/reserve.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include <sys/stat.h>
#include <sys/statvfs.h>

namespace bucketd {
namespace {

constexpr int64_t kShareOfDisk = 8;

}  // namespace

Reserve::Reserve(const std::string& path, int64_t bytes)
    : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  struct statvfs disk {};
  if (fd_ < 0 || fstatvfs(fd_, &disk) != 0) return;
  const auto size = static_cast<int64_t>(disk.f_blocks * disk.f_frsize);
  wanted_ = std::min(bytes, size / kShareOfDisk) / kStepBytes * kStepBytes;
}

Reserve::~Reserve() {
  if (fd_ >= 0) close(fd_);
}

int64_t Reserve::bytes() const {
  struct stat info {};
  return fd_ >= 0 && fstat(fd_, &info) == 0 ? info.st_size : 0;
}

void Reserve::Fill() {
  for (int64_t size = bytes(); size < wanted_; size += kStepBytes) {
    if (posix_fallocate(fd_, size, kStepBytes) == 0) continue;
    // Some file systems keep what they could get.
    if (ftruncate(fd_, size) != 0) return;
    return;
  }
}

bool Reserve::Release() {
  const int64_t size = bytes();
  return size > 0 && ftruncate(fd_, std::max<int64_t>(0, size - kStepBytes)) == 0;
}

}  // namespace bucketd
