#include "gpu_agent/run/command.h"

#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"

namespace bucketd::agent {

void AddSessionFlags(const Command& command, SessionOptions& options) {
  command
      .AddOption(kBackendFlag, options.backend,
                 "what moves the bytes: ring, nccl, or auto: nccl where each rank finds a GPU")
      .TakeLast()
      .ShowDefault();
  command
      .AddOption(kInterfaceFlag, options.tcp_interface,
                 "the ring over TCP on this interface, by name or address (lo, say), instead of "
                 "unix sockets")
      .TypeName("IF");
  command.AddOption("--ranks", options.ranks, "ranks on this machine; the program starts them")
      .InRange(1, 64)
      .ShowDefault();
  command.AddOption(kRankFlag, options.rank, "").Hidden();
  command.AddOption(kFolderFlag, options.folder, "").Hidden();
}

absl::Status ReadDuration(const char* flag, const std::string& text, absl::Duration longest,
                          absl::Duration& to) {
  if (absl::ParseDuration(text, &to) && to >= absl::Milliseconds(100) && to <= longest) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(flag, ": ", text, ": expected 100ms to ",
                                            absl::FormatDuration(longest), ", e.g. 30s"));
}

absl::Status CheckEither(const char* flag, const std::string& text, const char* one,
                         const char* other) {
  if (text == one || text == other) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(flag, ": ", text, ": expected ", one, " or ", other));
}

absl::Status AsAbsence(const absl::Status& status) {
  const bool absence = absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
  return absence ? absl::UnavailableError(status.message()) : status;
}

std::string HostName() {
  std::array<char, 129> host{};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

}  // namespace bucketd::agent
