// The page that a person opens: how the server is, on one screen. Self-contained HTML, no scripts.
#pragma once

#include <string>

#include "proto/admin.pb.h"

namespace bucketd {

// Whatever `status` says is shown as text, also where it looks like markup.
std::string StatusPage(const v1::GetStatusResponse& status);

}  // namespace bucketd
