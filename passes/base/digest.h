// SHA-256: what identifies graphs and plans.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bucketd {

using Digest = std::array<uint8_t, 32>;

Digest Sha256(absl::string_view bytes);

// Hashes what is appended, piece by piece. Not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void Append(absl::string_view bytes);
  Digest Finish();  // once

 private:
  void* context_;
};

std::string ToHex(const Digest& digest);
// 64 hexadecimal digits, else INVALID_ARGUMENT.
absl::StatusOr<Digest> DigestFromHex(absl::string_view hex);
// 32 bytes, else INVALID_ARGUMENT.
absl::StatusOr<Digest> DigestFromBytes(absl::string_view bytes);
absl::string_view AsBytes(const Digest& digest);

}  // namespace bucketd
