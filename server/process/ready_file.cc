#include "server/process/ready_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace bucketd {

absl::Status WriteReadyFile(const std::string& path, std::initializer_list<ReadyMember> members) {
  std::string text = "{";
  for (const auto& [key, value] : members) {
    const nlohmann::json json =
        std::visit([](const auto& plain) { return nlohmann::json(plain); }, value);
    absl::StrAppend(&text, "\"", key,
                    "\": ", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                    ", ");
  }
  absl::StrAppend(&text, "\"pid\": ", getpid(), "}");
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  bool written = file != nullptr && std::fprintf(file, "%s\n", text.c_str()) >= 0;
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const std::string why = std::strerror(errno);
  std::remove(temporary.c_str());
  return absl::UnavailableError(absl::StrCat("--ready-file: cannot write ", path, ": ", why));
}

}  // namespace bucketd
