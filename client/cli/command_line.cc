#include "client/cli/command_line.h"

#include <errno.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

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

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

}  // namespace bucketd
