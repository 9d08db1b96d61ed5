// Wire messages that anybody may have sent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/string_view.h"

namespace bucketd {

// Their numbers have a wider range than ours: what nothing can have becomes the largest one, which
// whoever checks the value refuses.
inline int32_t ToInt32(uint32_t value) {
  constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min(value, kMost));
}

// Walks the top level of a serialised message without building it, so that what an attacker sends
// costs no more memory than its own bytes.
class WireReader {
 public:
  explicit WireReader(absl::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint32_t number = 0;
    bool is_bytes = false;
    uint64_t value = 0;       // of varints and fixed-width numbers
    absl::string_view bytes;  // of length-delimited fields
  };

  // False at the end, and where the bytes are no message: then ok() is false.
  bool Next(Field& field) {
    if (bytes_.empty() || !ok_) return false;
    uint64_t tag = 0;
    ok_ = Varint(tag) && tag >> 3 != 0 && tag >> 32 == 0;
    field.number = static_cast<uint32_t>(tag >> 3);
    field.is_bytes = (tag & 7) == 2;
    ok_ = ok_ && Value(tag & 7, field);
    return ok_;
  }
  bool ok() const { return ok_; }

 private:
  bool Varint(uint64_t& value) {
    value = 0;
    for (size_t i = 0; i < 10 && i < bytes_.size(); ++i) {
      const auto byte = static_cast<uint8_t>(bytes_[i]);
      value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) {
        bytes_.remove_prefix(i + 1);
        return true;
      }
    }
    return false;
  }

  bool Value(uint64_t wire_type, Field& field) {
    if (wire_type == 0) return Varint(field.value);
    uint64_t length = wire_type == 1 ? 8 : 4;
    if (wire_type == 2 && !Varint(length)) return false;
    const bool known = wire_type == 1 || wire_type == 2 || wire_type == 5;
    if (!known || length > bytes_.size()) return false;
    field.bytes = bytes_.substr(0, length);
    bytes_.remove_prefix(length);
    return true;
  }

  absl::string_view bytes_;
  bool ok_ = true;
};

}  // namespace bucketd
