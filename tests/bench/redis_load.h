// GETs of one value from a Redis on a unix socket, for comparison: its protocol, spoken over plain
// sockets from one thread.
#pragma once

#include <string>

#include "tests/bench/service_load.h"

namespace bucketd {

// False if nobody answers there.
bool RedisSet(const std::string& path, const std::string& value);

// One GET outstanding on each of min(outstanding, 64) connections, more in turn on the same ones.
LoadResult RedisGets(const std::string& path, size_t value_bytes, int outstanding, double seconds);

}  // namespace bucketd
