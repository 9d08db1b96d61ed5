#include "gpu_agent/run/command.h"

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace bucketd::agent {

void AddSessionFlags(CLI::App& command, SessionOptions& options) {
  command
      .add_option(kBackendFlag, options.backend,
                  "what moves the bytes: ring, nccl, or auto: nccl where each rank finds a GPU")
      ->take_last()
      ->capture_default_str();
  command
      .add_option(kInterfaceFlag, options.tcp_interface,
                  "the ring over TCP on this interface, by name or address (lo, say), instead of "
                  "unix sockets")
      ->type_name("IF");
  command.add_option("--ranks", options.ranks, "ranks on this machine; the program starts them")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  command.add_option(kRankFlag, options.rank)->group("");
  command.add_option(kFolderFlag, options.folder)->group("");
}

int Report(const absl::Status& status) {
  if (status.ok()) return kDone;
  std::fprintf(stderr, "bucket-agent: %s\n", std::string(status.message()).c_str());
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

}  // namespace bucketd::agent
