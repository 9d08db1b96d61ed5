// Versions that clients see.
#pragma once

namespace bucketd {

inline constexpr char kServerVersion[] = BUCKETD_VERSION;
inline constexpr char kMinClientVersion[] = "0.1.0";

}  // namespace bucketd
