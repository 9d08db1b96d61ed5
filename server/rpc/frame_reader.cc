#include "server/rpc/frame_reader.h"

#include <algorithm>
#include <cstring>

namespace bucketd {

bool FrameReader::Next(absl::string_view& bytes, Part& part) {
  if (bytes.empty()) return false;
  if (left_ > 0) {
    part = {false, frame_, bytes.substr(0, left_)};
    left_ -= part.payload.size();
    bytes.remove_prefix(part.payload.size());
    return true;
  }
  const size_t taken = std::min(kHeaderBytes - have_, bytes.size());
  std::memcpy(header_.data() + have_, bytes.data(), taken);
  have_ += taken;
  bytes.remove_prefix(taken);
  if (have_ < kHeaderBytes) return false;
  have_ = 0;
  left_ = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
  const uint32_t stream = uint32_t{header_[5]} << 24 | uint32_t{header_[6]} << 16 |
                          uint32_t{header_[7]} << 8 | header_[8];
  frame_ = {left_, static_cast<FrameKind>(header_[3]), header_[4], stream & 0x7fffffff};
  part = {true, frame_, {}};
  return true;
}

}  // namespace bucketd
