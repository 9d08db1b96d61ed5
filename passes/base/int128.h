// Products of two picosecond or byte counts, before what divides them again.
#pragma once

namespace bucketd {

__extension__ typedef __int128 Int128;  // the standard knows none, and -Wpedantic says so

}  // namespace bucketd
