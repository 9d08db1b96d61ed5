#include "server/graphs/graph_decoder.h"

#include <zstd.h>

#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/errors.h"

namespace bucketd {
namespace {

constexpr int64_t kRatioFreeBytes = int64_t{1} << 20;
constexpr int64_t kOwnBytes = 4096;  // of a decoder and its stream, roughly
constexpr int kMaxWindowLog = 23;    // 8 MiB: what zstd's levels up to 19 use

}  // namespace

GraphDecoder::GraphDecoder(int64_t size, int64_t max_ratio) : size_(size), max_ratio_(max_ratio) {}

GraphDecoder::~GraphDecoder() { ZSTD_freeDCtx(zstd_); }

absl::StatusOr<std::unique_ptr<GraphDecoder>> GraphDecoder::Start(int codec, int64_t size,
                                                                  int64_t max_bytes,
                                                                  int64_t max_ratio) {
  if (codec != v1::CODEC_UNSPECIFIED && codec != v1::CODEC_ZSTD) {
    return MakeError(Reason::kCodecUnknown,
                     absl::StrCat("codec ", codec, " is unknown; known are 0 (plain), 1 (zstd)"));
  }
  if (size <= 0) {
    return MakeError(
        Reason::kContentMismatch,
        absl::StrCat("size: ", size, "; expected the bytes of the serialised Graph, uncompressed"));
  }
  if (size > max_bytes) {
    return MakeError(Reason::kGraphTooLarge,
                     absl::StrCat("the graph has ", size, " bytes, the limit is ", max_bytes),
                     {.limit = max_bytes, .actual = size});
  }
  auto decoder = std::unique_ptr<GraphDecoder>(new GraphDecoder(size, max_ratio));
  if (codec == v1::CODEC_ZSTD) {
    decoder->zstd_ = ZSTD_createDCtx();
    ZSTD_DCtx_setParameter(decoder->zstd_, ZSTD_d_windowLogMax, kMaxWindowLog);
    decoder->scratch_.resize(ZSTD_DStreamOutSize());
  }
  return decoder;
}

int64_t GraphDecoder::held_bytes() const {
  const size_t working = zstd_ == nullptr ? 0 : ZSTD_sizeof_DCtx(zstd_) + scratch_.capacity();
  return kOwnBytes + static_cast<int64_t>(result_.bytes.size() + working);
}

absl::Status GraphDecoder::Append(absl::string_view piece) {
  received_ += static_cast<int64_t>(piece.size());
  return zstd_ == nullptr ? Take(piece) : Decompress(piece);
}

absl::Status GraphDecoder::Decompress(absl::string_view piece) {
  ZSTD_inBuffer in = {piece.data(), piece.size(), 0};
  bool output_full = false;
  // A full output buffer may leave more behind even when the input is used up.
  while (in.pos < in.size || output_full) {
    ZSTD_outBuffer out = {scratch_.data(), scratch_.size(), 0};
    const size_t left = ZSTD_decompressStream(zstd_, &out, &in);
    if (ZSTD_isError(left) != 0) {
      return MakeError(Reason::kContentMismatch,
                       absl::StrCat("near byte ", received_,
                                    " of the compressed graph: ", ZSTD_getErrorName(left)));
    }
    frame_open_ = left != 0;
    output_full = frame_open_ && out.pos == out.size;
    RETURN_IF_ERROR(Take(absl::string_view(scratch_.data(), out.pos)));
    const auto plain = static_cast<int64_t>(result_.bytes.size());
    if (plain - kRatioFreeBytes > received_ * max_ratio_) {
      return MakeError(Reason::kGraphTooLarge,
                       absl::StrCat("the graph is compressed more than ", max_ratio_, " to 1"),
                       {.limit = max_ratio_});
    }
  }
  return absl::OkStatus();
}

absl::Status GraphDecoder::Take(absl::string_view plain) {
  const auto have = static_cast<int64_t>(result_.bytes.size() + plain.size());
  if (have > size_) {
    return MakeError(
        Reason::kContentMismatch,
        absl::StrCat("more bytes came than the ", size_, " that were announced as size"),
        {.limit = size_, .actual = have});
  }
  // Exact, since doubling would hold three times the announced size while it grows. Pages are not
  // touched before they are written.
  if (result_.bytes.empty()) result_.bytes.reserve(static_cast<size_t>(size_));
  result_.bytes.append(plain.data(), plain.size());
  sha256_.Append(plain);
  return absl::OkStatus();
}

absl::StatusOr<GraphBytes> GraphDecoder::Finish() {
  const auto have = static_cast<int64_t>(result_.bytes.size());
  if (have != size_ || frame_open_) {
    return MakeError(
        Reason::kContentMismatch,
        absl::StrCat("the graph is cut off: ", have, " of ", size_, " announced bytes came",
                     frame_open_ ? ", inside a zstd frame" : ""),
        {.limit = size_, .actual = have});
  }
  result_.sha256 = sha256_.Finish();
  return std::move(result_);
}

}  // namespace bucketd
