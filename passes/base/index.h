// From ids to positions in containers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bucketd {

// Ids (types.h) are signed, since -1 stands for none; containers count in size_t.
// REQUIRES: i >= 0.
constexpr size_t Index(int32_t i) { return static_cast<size_t>(i); }

}  // namespace bucketd
