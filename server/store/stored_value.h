// What every engine keeps beside a value.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "passes/base/digest.h"

namespace bucketd {

// Over the length of the key, the key and the value: a value under a wrong key is damage too.
Digest ValueChecksum(absl::string_view key, absl::string_view value);

// How plans are named in tables: the digest of their key.
inline std::string HashOf(absl::string_view key) { return std::string(AsBytes(Sha256(key))); }

// Of the key of a plan, a line of which is graph="<64 hexadecimal digits>".
std::optional<std::string> GraphIn(absl::string_view key);

}  // namespace bucketd
