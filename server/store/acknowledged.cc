#include "server/store/acknowledged.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "passes/base/digest.h"
#include "server/store/little_endian.h"

namespace bucketd {
namespace {

constexpr absl::string_view kAcknowledgedMagic = "bucketd acknowledged 1\n";
constexpr size_t kShortSumBytes = 8;
constexpr size_t kAcknowledgedHeaderBytes = 23 + 8 + kShortSumBytes;
constexpr size_t kEntryBytes = 4 + 1 + 8 + kShortSumBytes;  // and the key
// Of one file: a log that nobody can checkpoint must not make this one grow for ever.
constexpr int64_t kMaxBytes = int64_t{16} << 20;

// Of what stands in `out` from `begin` on.
void AppendShortSum(size_t begin, std::string& out) {
  const Digest digest = Sha256(absl::string_view(out).substr(begin));
  out.append(AsBytes(digest).data(), kShortSumBytes);
}

void AppendEntry(uint8_t what, int64_t commit, absl::string_view key, std::string& out) {
  const size_t begin = out.size();
  AppendInt(key.size(), 4, out);
  AppendInt(what, 1, out);
  AppendInt(static_cast<uint64_t>(commit), 8, out);
  out.append(key.data(), key.size());
  AppendShortSum(begin, out);
}

bool IsWhole(absl::string_view part) {
  const Digest digest = Sha256(part.substr(0, part.size() - kShortSumBytes));
  return std::memcmp(digest.data(), part.data() + part.size() - kShortSumBytes, kShortSumBytes) ==
         0;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::string();
  std::string bytes;
  bool ok = fd >= 0;
  struct stat info {};
  if (ok) ok = fstat(fd, &info) == 0;
  if (ok) {
    bytes.resize(static_cast<size_t>(std::min<int64_t>(info.st_size, 2 * kMaxBytes)));
    const ssize_t got = pread(fd, bytes.data(), bytes.size(), 0);
    ok = got >= 0;
    if (ok) bytes.resize(static_cast<size_t>(got));
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  if (ok) return bytes;
  return absl::UnavailableError(absl::StrCat(path, ": cannot be read: ", std::strerror(error)));
}

bool TakeHeader(absl::string_view& rest, Acknowledged::Content& content) {
  if (rest.size() < kAcknowledgedHeaderBytes ||
      rest.substr(0, kAcknowledgedMagic.size()) != kAcknowledgedMagic ||
      !IsWhole(rest.substr(0, kAcknowledgedHeaderBytes))) {
    return false;
  }
  const auto commit = static_cast<int64_t>(IntFrom(rest.substr(kAcknowledgedMagic.size(), 8)));
  content.last_commit = content.merged = std::max(content.merged, commit);
  rest.remove_prefix(kAcknowledgedHeaderBytes);
  return true;
}

}  // namespace

absl::StatusOr<Acknowledged::Content> Acknowledged::Read(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  Content content;
  absl::string_view rest = *bytes;
  // Two processes that empty the file at the same time leave two headers.
  while (TakeHeader(rest, content)) continue;
  if (content.last_commit == 0 && rest.size() == bytes->size()) return content;
  while (rest.size() >= kEntryBytes) {
    const uint64_t key_bytes = IntFrom(rest.substr(0, 4));
    if (key_bytes > rest.size() - kEntryBytes) break;
    const absl::string_view part = rest.substr(0, kEntryBytes + key_bytes);
    if (!IsWhole(part)) break;
    Entry entry;
    entry.what = static_cast<uint8_t>(part[4]);
    entry.commit = static_cast<int64_t>(IntFrom(part.substr(5, 8)));
    entry.key = std::string(part.substr(13, key_bytes));
    content.last_commit = std::max(content.last_commit, entry.commit);
    content.entries.push_back(std::move(entry));
    rest.remove_prefix(part.size());
  }
  return content;
}

absl::StatusOr<std::unique_ptr<Acknowledged>> Acknowledged::Open(const std::string& path) {
  // O_APPEND: what several processes add never overlaps.
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
  }
  return std::unique_ptr<Acknowledged>(new Acknowledged(path, fd));
}

Acknowledged::~Acknowledged() { close(fd_); }

void Acknowledged::Add(uint8_t what, int64_t commit, absl::string_view key) {
  const absl::MutexLock lock(&mutex_);
  struct stat info {};
  if (fstat(fd_, &info) != 0 || info.st_size > kMaxBytes) return;
  std::string entry;
  AppendEntry(what, commit, key, entry);
  Append(entry);
}

// A full disk takes a part: what came behind that would not be read.
void Acknowledged::Append(absl::string_view bytes) const {
  const ssize_t wrote = write(fd_, bytes.data(), bytes.size());
  if (wrote <= 0 || static_cast<size_t>(wrote) == bytes.size()) return;
  if (ftruncate(fd_, lseek(fd_, 0, SEEK_CUR) - wrote) != 0) return;
}

void Acknowledged::Reset(int64_t commit) {
  const absl::MutexLock lock(&mutex_);
  const absl::StatusOr<Content> content = Read(path_);
  std::string bytes(kAcknowledgedMagic);
  AppendInt(static_cast<uint64_t>(commit), 8, bytes);
  AppendShortSum(0, bytes);
  if (content.ok()) {
    for (const Entry& entry : content->entries) {
      if (entry.commit > commit) AppendEntry(entry.what, entry.commit, entry.key, bytes);
    }
  }
  if (ftruncate(fd_, 0) == 0) Append(bytes);
}

}  // namespace bucketd
