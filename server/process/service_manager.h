// Tells the service manager that started this process how it is (systemd's Type=notify protocol:
// one datagram to the socket that NOTIFY_SOCKET names).
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bucketd {

// `state` as in sd_notify(3): "READY=1", "STOPPING=1", "STATUS=...", a line each. Nothing happens
// where no service manager asked for it. UNAVAILABLE if it asked and cannot be told.
absl::Status NotifyServiceManager(absl::string_view state);

}  // namespace bucketd
