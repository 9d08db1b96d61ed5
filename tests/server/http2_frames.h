// HTTP/2's frames as tests write them, by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace bucketd {

inline constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum Kind : unsigned char {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindow = 8,
  kContinuation = 9
};
inline constexpr unsigned char kEndStreamFlag = 1;

inline std::string Frame(Kind kind, unsigned char flags, size_t size) {
  std::string frame(9 + size, '\x55');
  frame[0] = static_cast<char>(size >> 16);
  frame[1] = static_cast<char>(size >> 8);
  frame[2] = static_cast<char>(size);
  frame[3] = static_cast<char>(kind);
  frame[4] = static_cast<char>(flags);
  return frame;
}

// `stream` in its header, and `payload` behind that.
inline std::string FrameOf(uint32_t stream, Kind kind, unsigned char flags,
                           const std::string& payload = "") {
  std::string frame = Frame(kind, flags, payload.size()).replace(9, payload.size(), payload);
  for (size_t i = 0; i < 4; ++i) frame[5 + i] = static_cast<char>(stream >> (24 - 8 * i));
  return frame;
}

// As gRPC frames it: `size` bytes, of which `sent` come.
inline std::string Message(size_t size, size_t sent) {
  std::string message(5 + sent, 'm');
  message[0] = 0;
  for (size_t i = 0; i < 4; ++i) message[1 + i] = static_cast<char>(size >> (24 - 8 * i));
  return message;
}

// But for what some frames cost beside their bytes.
inline bool About(int64_t bytes, int64_t expected) {
  return bytes >= expected && bytes < expected + 300;
}

inline std::string Times(int n, const std::string& frame) {
  std::string out;
  for (int i = 0; i < n; ++i) out += frame;
  return out;
}

}  // namespace bucketd
