#include "client/token_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"

namespace bucketd::client {
namespace {

constexpr int64_t kMaxBytes = 7168;  // what a server takes (server/identity/token.h)

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxBytes));
  absl::StripAsciiWhitespace(&text);
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
  if (text.empty() || !plain) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a JSON Web Token and nothing else"));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> TokenFile::Get() {
  const absl::MutexLock lock(&mutex_);
  struct stat info {};
  if (stat(path_.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(path_, ": cannot be read: ", std::strerror(errno)));
  }
  const std::string signature = absl::StrCat(info.st_ino, " ", info.st_size, " ",
                                             info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
  if (signature != signature_) {
    ASSIGN_OR_RETURN(token_, ReadToken(path_));
    signature_ = signature;
  }
  return token_;
}

}  // namespace bucketd::client
