#include "client/cli/command_line.h"

#include <errno.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace bucketd {
int Report(const absl::Status& status) {
  if (status.ok()) return kDone;
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
               std::string(status.message()).c_str());
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

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

}  // namespace bucketd
