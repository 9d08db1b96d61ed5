#include "server/store/stored_value.h"

#include "server/store/little_endian.h"

namespace bucketd {

Digest ValueChecksum(absl::string_view key, absl::string_view value) {
  std::string size;
  AppendInt(key.size(), 8, size);
  Sha256Stream stream;
  stream.Append(size);
  stream.Append(key);
  stream.Append(value);
  return stream.Finish();
}

std::optional<std::string> GraphIn(absl::string_view key) {
  constexpr absl::string_view kField = "\ngraph=\"";
  const size_t at = key.find(kField);
  if (at == absl::string_view::npos) return std::nullopt;
  const std::string hex(key.substr(at + kField.size(), 64));
  return DigestFromHex(hex).ok() ? std::optional<std::string>(hex) : std::nullopt;
}

}  // namespace bucketd
