#include "client/cli/command_line.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

namespace bucketd {

std::string ForTerminal(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // In UTF-8 the second page of control characters is 0xc2 and then 0x80 to 0x9f.
    const bool second =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if ((byte < 0x20 && byte != '\n') || byte == 0x7f) {
      absl::StrAppend(&out, "\\x", absl::Hex(byte, absl::kZeroPad2));
    } else if (second) {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(text[++i])));
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

int Report(const absl::Status& status) {
  if (status.ok()) return kDone;
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
               ForTerminal(status.message()).c_str());
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return kUsage;
    case absl::StatusCode::kUnavailable:
      return kUnavailable;
    default:
      return kRefused;
  }
}

namespace {

// False: errno says why.
bool WriteAll(int file, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(file, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

// Through a link that leads to no file yet, too.
bool WriteInPlace(const std::string& path, absl::string_view bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return false;
  const bool written = WriteAll(file, bytes);
  return close(file) == 0 && written;
}

// What somebody else writes there at the same time has another name until one takes the place of
// the other. `replaced`: the file that is there, whose mode the new one has; null: none.
bool WriteBeside(const std::string& path, const struct stat* replaced, absl::string_view bytes) {
  const std::string part = absl::StrCat(path, ".part.", getpid());
  const mode_t mode = replaced == nullptr ? 0666 : replaced->st_mode & 0777;
  const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (file < 0) return false;
  bool written = replaced == nullptr || fchmod(file, mode) == 0;  // whatever the umask
  written = written && WriteAll(file, bytes) && fsync(file) == 0;
  written = close(file) == 0 && written && std::rename(part.c_str(), path.c_str()) == 0;
  if (written) return true;
  const int error = errno;
  unlink(part.c_str());
  errno = error;
  return false;
}

}  // namespace

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  struct stat info {};
  const bool there = stat(path.c_str(), &info) == 0;
  std::error_code no_link;
  const bool leads_nowhere = !there && std::filesystem::is_symlink(path, no_link);
  bool written = false;
  if (leads_nowhere || (there && !S_ISREG(info.st_mode))) {
    written = WriteInPlace(path, bytes);
  } else {
    std::error_code unknown;
    // Through links to the file that they name.
    const std::string file = there ? std::filesystem::canonical(path, unknown).string() : path;
    written = WriteBeside(file, there ? &info : nullptr, bytes);
    // In a folder where nothing new may stand, what is there may still be written to.
    if (!written && there && errno == EACCES) written = WriteInPlace(path, bytes);
  }
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
}

}  // namespace bucketd
