// What the server adds to its side port:
//   /statusz  a page for people, also at /; ?refresh=5: which fetches itself anew every 5 s
//   /statusz?format=json  the same for scripts: bucketd.v1.GetStatusResponse (proto/admin.proto)
#pragma once

#include <functional>
#include <vector>

#include "proto/admin.pb.h"
#include "server/process/side_port.h"

namespace bucketd {

// `status` is called on the side port's threads.
std::vector<SidePort::Page> StatusPages(std::function<v1::GetStatusResponse()> status);

}  // namespace bucketd
