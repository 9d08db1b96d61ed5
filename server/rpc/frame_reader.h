// Takes a stream of HTTP/2 frames (RFC 9113) apart, however its bytes are cut. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace bucketd {

enum class FrameKind : unsigned char {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr unsigned char kAck = 1;        // of settings and pings
inline constexpr unsigned char kEndStream = 1;  // of data and headers

struct FrameHeader {
  size_t size = 0;  // of what follows it
  FrameKind kind{};
  unsigned char flags = 0;
  uint32_t stream = 0;
};

class FrameReader {
 public:
  struct Part {
    bool begins = false;  // a frame: its header was read
    FrameHeader frame;
    absl::string_view payload;  // some of it, if nothing begins
  };
  // The next part, taken away from the front of `bytes`. False: all of them are used up.
  bool Next(absl::string_view& bytes, Part& part);

 private:
  static constexpr size_t kHeaderBytes = 9;
  FrameHeader frame_;
  size_t left_ = 0;  // of its payload
  size_t have_ = 0;  // bytes of the next one's header
  std::array<unsigned char, kHeaderBytes> header_{};
};

}  // namespace bucketd
