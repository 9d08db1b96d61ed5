#include "gpu_agent/pack/segments.h"

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// 2^46 bytes: beyond any memory, and far from overflow.
constexpr int64_t kMaxCount = int64_t{1} << 44;

bool Aligned(const std::byte* pointer, uint32_t size) {
  return reinterpret_cast<uintptr_t>(pointer) % size == 0;
}

// What is wrong with the segment, or nothing.
absl::string_view Fault(const Segment& s) {
  if (s.move > Move::kZero) return "there is no such move";
  if (s.count < 0) return "a count is not negative";
  if (s.count > kMaxCount) return "a count is at most 2^44";
  if (s.count == 0) return "";
  if (s.to == nullptr) return "the destination is null";
  if (s.from == nullptr && s.move != Move::kZero) return "the source is null";
  if (s.move == Move::kBytes || s.move == Move::kZero) return "";
  if (!Aligned(s.from, ReadSize(s.move))) return "the source of a cast is not aligned";
  if (!Aligned(s.to, WriteSize(s.move))) return "the destination of a cast is not aligned";
  return "";
}

}  // namespace

absl::StatusOr<Move> MoveBetween(DType from, DType to) {
  if (from == to && from != DType::kUnspecified) return Move::kBytes;
  if (from == DType::kF32 && to == DType::kBF16) return Move::kF32ToBf16;
  if (from == DType::kBF16 && to == DType::kF32) return Move::kBf16ToF32;
  return absl::InvalidArgumentError(
      absl::StrCat("no copy turns ", Name(from), " into ", Name(to),
                   "; copies keep a dtype or go between f32 and bf16"));
}

int64_t BytesRead(const Segment& segment) { return segment.count * ReadSize(segment.move); }

int64_t BytesWritten(const Segment& segment) { return segment.count * WriteSize(segment.move); }

absl::StatusOr<std::vector<Tile>> Cut(absl::Span<const Segment> segments, int64_t tile_bytes) {
  if (tile_bytes < (1 << 10) || tile_bytes > (1 << 30) || (tile_bytes & (tile_bytes - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tiles of ", tile_bytes, " bytes; a power of two from 1024 to 2^30 is wanted"));
  }
  int64_t total = 0;
  for (size_t k = 0; k < segments.size(); ++k) {
    const absl::string_view fault = Fault(segments[k]);
    if (!fault.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment ", k, ": ", fault, " (count ", segments[k].count, ")"));
    }
    total += Cutting(segments[k], tile_bytes).tiles();
    if (total > kMaxTiles) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment ", k, ": more than ", kMaxTiles, " tiles"));
    }
  }
  std::vector<Tile> tiles;
  tiles.reserve(static_cast<size_t>(total));
  for (const Segment& segment : segments) {
    const Cutting cutting(segment, tile_bytes);
    for (int64_t k = 0; k < cutting.tiles(); ++k) tiles.push_back(cutting.At(k));
  }
  return tiles;
}

}  // namespace bucketd::agent
