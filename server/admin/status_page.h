// The page that a person opens: how the server is, on one screen. Self-contained HTML, no scripts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proto/admin.pb.h"
#include "server/process/side_port.h"

namespace bucketd {

// Whatever `status` says is shown as text, also where it looks like markup.
std::string StatusPage(const v1::GetStatusResponse& status);

// What the server adds to its side port:
//   /statusz  that page, also at /; ?refresh=5: which fetches itself anew every 5 s
//   /statusz?format=json  the same for scripts: bucketd.v1.GetStatusResponse (proto/admin.proto)
// `status` is called on the side port's threads.
std::vector<SidePort::Page> StatusPages(std::function<v1::GetStatusResponse()> status);

}  // namespace bucketd
