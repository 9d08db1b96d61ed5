// The bytes of one serialised Graph as they come in: decompressed, bounded, hashed. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/base/digest.h"

struct ZSTD_DCtx_s;

namespace bucketd {

struct GraphBytes {
  std::string bytes;
  Digest sha256{};
};

class GraphDecoder {
 public:
  // `codec` is a v1::Codec, `size` what the caller announces. CODEC_UNKNOWN, CONTENT_MISMATCH (no
  // size), GRAPH_TOO_LARGE.
  static absl::StatusOr<std::unique_ptr<GraphDecoder>> Start(int codec, int64_t size,
                                                             int64_t max_bytes, int64_t max_ratio);
  ~GraphDecoder();

  // Stops at the first byte beyond what was announced (CONTENT_MISMATCH) or beyond the ratio
  // (GRAPH_TOO_LARGE): memory never exceeds the announced size by more than zstd's window.
  absl::Status Append(absl::string_view piece);
  // What to append at a time where memory is counted: little may inflate to much.
  static constexpr size_t kPieceBytes = 16 << 10;
  // CONTENT_MISMATCH if something is missing. Once.
  absl::StatusOr<GraphBytes> Finish();

  int64_t received_bytes() const { return received_; }  // encoded
  int64_t announced_bytes() const { return size_; }
  // Memory: what has come, zstd's window and buffers.
  int64_t held_bytes() const;

 private:
  GraphDecoder(int64_t size, int64_t max_ratio);
  absl::Status Decompress(absl::string_view piece);
  absl::Status Take(absl::string_view plain);

  const int64_t size_;
  const int64_t max_ratio_;
  int64_t received_ = 0;
  ZSTD_DCtx_s* zstd_ = nullptr;  // null: the bytes come plain
  bool frame_open_ = false;
  std::string scratch_;
  GraphBytes result_;
  Sha256Stream sha256_;
};

}  // namespace bucketd
