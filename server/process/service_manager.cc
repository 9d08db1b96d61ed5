#include "server/process/service_manager.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/un.h>

namespace bucketd {

absl::Status NotifyServiceManager(absl::string_view state) {
  const char* named = getenv("NOTIFY_SOCKET");
  if (named == nullptr || *named == '\0') return absl::OkStatus();
  const std::string path = named;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > sizeof(address.sun_path)) {
    return absl::UnavailableError(absl::StrCat("NOTIFY_SOCKET: the path is too long: ", path));
  }
  path.copy(address.sun_path, path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';  // a name without a file
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const bool sent = fd >= 0 && sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                                      reinterpret_cast<const sockaddr*>(&address),
                                      length) == static_cast<ssize_t>(state.size());
  const std::string why = std::strerror(errno);
  if (fd >= 0) close(fd);
  if (sent) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("NOTIFY_SOCKET: cannot tell ", path, ": ", why));
}

}  // namespace bucketd
