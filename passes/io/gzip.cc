#include "passes/io/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bucketd {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;

// The length that the last member's trailer claims, modulo 2^32: a first guess, never trusted.
size_t ClaimedSize(absl::string_view bytes) {
  size_t size = 0;
  for (size_t i = 0; i < 4 && bytes.size() >= 4; ++i) {
    size |= static_cast<size_t>(static_cast<uint8_t>(bytes[bytes.size() - 4 + i])) << (8 * i);
  }
  return size;
}

}  // namespace

bool IsGzip(absl::string_view bytes) { return absl::StartsWith(bytes, "\x1f\x8b"); }

absl::StatusOr<std::string> GunzipBounded(absl::string_view bytes, int64_t max_bytes,
                                          size_t padding) {
  z_stream z{};
  if (inflateInit2(&z, kGzipOnly) != Z_OK) {
    return absl::ResourceExhaustedError("gzip: no memory for zlib");
  }
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&z, inflateEnd);
  const auto limit = static_cast<size_t>(max_bytes);
  // Deflate cannot do better than 1032 to 1, so a lying trailer costs no more than that.
  const size_t guess = std::min({ClaimedSize(bytes), limit, bytes.size() * 1032});
  std::string out;
  out.reserve(guess + padding + 1);
  out.resize(std::max<size_t>(guess, 4096));
  size_t read = 0;
  size_t written = 0;
  for (;;) {
    constexpr size_t kPiece = std::numeric_limits<uInt>::max();
    const auto in = static_cast<uInt>(std::min(bytes.size() - read, kPiece));
    const auto room = static_cast<uInt>(std::min(out.size() - written, kPiece));
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + read));
    z.avail_in = in;
    z.next_out = reinterpret_cast<Bytef*>(out.data() + written);
    z.avail_out = room;
    const int rc = inflate(&z, Z_NO_FLUSH);
    read += in - z.avail_in;
    written += room - z.avail_out;
    if (written > limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("gzip: the file unpacks to more than ", max_bytes, " bytes"));
    }
    if (rc == Z_STREAM_END) {
      if (read == bytes.size()) break;
      if (inflateReset(&z) != Z_OK) return absl::InternalError("gzip: inflateReset failed");
    } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
      return absl::InvalidArgumentError(
          absl::StrCat("gzip: damaged at byte ", read, ": ", z.msg == nullptr ? "" : z.msg));
    } else if (z.avail_out != 0 && read == bytes.size()) {
      return absl::InvalidArgumentError(absl::StrCat("gzip: cut off at byte ", read));
    }
    if (written == out.size()) out.resize(std::min(2 * out.size(), limit + 1));
  }
  out.reserve(written + padding);
  out.resize(written);
  return out;
}

absl::StatusOr<std::string> UnpackBounded(absl::string_view bytes, int64_t max_bytes,
                                          size_t padding) {
  if (IsGzip(bytes)) return GunzipBounded(bytes, max_bytes, padding);
  if (static_cast<int64_t>(bytes.size()) > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes.size(), " bytes; the limit is ", max_bytes));
  }
  std::string out;
  out.reserve(bytes.size() + padding);
  out.append(bytes.data(), bytes.size());
  return out;
}

}  // namespace bucketd
