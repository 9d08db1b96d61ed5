// Decompression that cannot be made to fill the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bucketd {

bool IsGzip(absl::string_view bytes);

// All members of a gzip file, one after the other. INVALID_ARGUMENT if it is damaged, cut off or
// longer than max_bytes. The result has room for `padding` bytes behind its end.
absl::StatusOr<std::string> GunzipBounded(absl::string_view bytes, int64_t max_bytes,
                                          size_t padding = 0);

// The same of what may be plain: then a copy with that room, of no more than max_bytes.
absl::StatusOr<std::string> UnpackBounded(absl::string_view bytes, int64_t max_bytes,
                                          size_t padding);

}  // namespace bucketd
