#include "gpu_agent/exec/layout.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

int64_t Aligned(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

BucketLayout LayOutBucket(const BucketSpec& spec) {
  BucketLayout layout;
  if (spec.mode != BucketMode::kPacked) return layout;
  for (const int64_t count : spec.counts) {
    layout.offsets.push_back(layout.slice_bytes);
    layout.slice_bytes += Aligned(count * ItemSize(spec.dtype), kMemberAlignment);
  }
  layout.slices = ReducesWhole(spec.kind) ? 1 : spec.group_size;
  layout.memory_bytes = Aligned(layout.slices * layout.slice_bytes, kBucketAlignment);
  return layout;
}

// First fit: the lowest free range that is long enough.
class Memory {
 public:
  int64_t Take(int64_t bytes) {
    if (bytes == 0) return 0;
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      const auto [begin, end] = *range;
      if (end - begin < bytes) continue;
      free_.erase(range);
      if (begin + bytes < end) free_[begin + bytes] = end;
      return begin;
    }
    // The last free range may end where memory does: grow that one.
    int64_t begin = end_;
    if (!free_.empty() && std::prev(free_.end())->second == end_) {
      begin = std::prev(free_.end())->first;
      free_.erase(std::prev(free_.end()));
    }
    end_ = begin + bytes;
    return begin;
  }

  void Give(int64_t begin, int64_t bytes) {
    if (bytes == 0) return;
    int64_t end = begin + bytes;
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && next->first == end) {
      end = next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
    } else {
      free_[begin] = end;
    }
  }

  int64_t end() const { return end_; }

 private:
  std::map<int64_t, int64_t> free_;  // begin to end
  int64_t end_ = 0;
};

Digest DigestOf(const Program& program) {
  std::string text("bucketd executor program 1\n");
  absl::StrAppend(&text, ToHex(program.plan.graph), "\n");
  for (size_t k = 0; k < program.buckets.size(); ++k) {
    const BucketSpec& spec = program.plan.buckets[k];
    const BucketLayout& layout = program.buckets[k];
    absl::StrAppend(&text, spec.mesh_dim.size(), ":", spec.mesh_dim, " ", spec.lane, " ",
                    spec.group_size, " ", Name(spec.kind), " ", Name(spec.op), " ");
    absl::StrAppend(&text, Name(spec.dtype), " ", Name(spec.mode), " ", layout.slice_bytes, " ",
                    layout.memory_at);
    for (const int64_t count : spec.counts) absl::StrAppend(&text, " ", count);
    for (const int64_t offset : layout.offsets) absl::StrAppend(&text, " ", offset);
    text += '\n';
  }
  for (const int32_t k : program.starts) absl::StrAppend(&text, k, " ");
  absl::StrAppend(&text, "\n", program.memory_bytes);
  return Sha256(text);
}

// Both directions of a bucket's copies.
class Copies {
 public:
  Copies(const Program& program, int32_t bucket, int rank, std::byte* memory, bool in)
      : program_(program),
        bucket_(bucket),
        spec_(program.plan.buckets[static_cast<size_t>(bucket)]),
        layout_(program.buckets[static_cast<size_t>(bucket)]),
        rank_(rank),
        item_(ItemSize(spec_.dtype)),
        memory_(memory),
        in_(in),
        full_(in ? Scatters(spec_.kind) : Gathers(spec_.kind)),
        parts_(full_ ? layout_.slices : 1) {}

  absl::Status Check(absl::Span<const Tensor> tensors) const {
    const PlanSpec& plan = program_.plan;
    if (spec_.mode != BucketMode::kPacked) {
      return Wrong(plan, bucket_, ": is grouped and has no copies");
    }
    if (tensors.size() != spec_.counts.size()) {
      return Wrong(plan, bucket_, ": got ", tensors.size(), " tensors, expected one for each of ",
                   spec_.counts.size(), " members");
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t most = spec_.counts[i] * parts_;
      const Tensor& t = tensors[i];
      if (t.elements < 0 || t.elements > most) {
        return Wrong(plan, bucket_, " member ", i, ": has ", t.elements,
                     " elements, expected 0 to ", most);
      }
      const absl::Status cast =
          (in_ ? MoveBetween(t.dtype, spec_.dtype) : MoveBetween(spec_.dtype, t.dtype)).status();
      if (!cast.ok()) return Wrong(plan, bucket_, " member ", i, ": ", cast.message());
    }
    return absl::OkStatus();
  }

  std::vector<Segment> In(absl::Span<const Tensor> from) const {
    std::vector<Segment> segments;
    for (int64_t part = 0; part < parts_; ++part) {
      for (size_t i = 0; i < from.size(); ++i) {
        const Piece piece = PieceOf(from[i], i, part);
        const Move move = *MoveBetween(from[i].dtype, spec_.dtype);
        if (piece.elements > 0) {
          segments.push_back({piece.tensor, piece.slot, Units(piece.elements, move), move});
        }
        const int64_t used = piece.elements * item_;
        const int64_t room = EndOf(i) - layout_.offsets[i];
        if (used < room) {
          segments.push_back({nullptr, piece.slot + used, room - used, Move::kZero});
        }
      }
    }
    return segments;
  }

  std::vector<Segment> Out(absl::Span<const Tensor> to) const {
    std::vector<Segment> segments;
    for (size_t i = 0; i < to.size(); ++i) {
      const Move move = *MoveBetween(spec_.dtype, to[i].dtype);
      for (int64_t part = 0; part < parts_; ++part) {
        const Piece piece = PieceOf(to[i], i, part);
        if (piece.elements == 0) break;
        segments.push_back({piece.slot, piece.tensor, Units(piece.elements, move), move});
      }
    }
    return segments;
  }

 private:
  struct Piece {
    std::byte* tensor = nullptr;
    std::byte* slot = nullptr;
    int64_t elements = 0;
  };

  int64_t Units(int64_t elements, Move move) const {
    return move == Move::kBytes ? elements * item_ : elements;
  }
  int64_t EndOf(size_t i) const {
    return i + 1 < layout_.offsets.size() ? layout_.offsets[i + 1] : layout_.slice_bytes;
  }

  Piece PieceOf(const Tensor& tensor, size_t i, int64_t part) const {
    const int64_t count = spec_.counts[i];
    const int64_t begin = std::min(part * count, tensor.elements);
    const int64_t slice = full_ || layout_.slices == 1 ? part : rank_;
    Piece piece;
    piece.elements = std::min(count, tensor.elements - begin);
    piece.slot = memory_ + slice * layout_.slice_bytes + layout_.offsets[i];
    if (piece.elements > 0) piece.tensor = tensor.data + begin * ItemSize(tensor.dtype);
    return piece;
  }

  const Program& program_;
  const int32_t bucket_;
  const BucketSpec& spec_;
  const BucketLayout& layout_;
  const int64_t rank_;
  const int64_t item_;
  std::byte* const memory_;
  const bool in_;
  const bool full_;      // a tensor has a part a rank, else one part, this rank's
  const int64_t parts_;  // of a tensor
};

}  // namespace

absl::StatusOr<Program> LayOut(PlanSpec plan) {
  RETURN_IF_ERROR(Validate(plan));
  Program program;
  program.plan = std::move(plan);
  Memory memory;
  for (const BucketSpec& spec : program.plan.buckets) {
    program.buckets.push_back(LayOutBucket(spec));
  }
  for (const Turn& turn : program.plan.order) {
    BucketLayout& layout = program.buckets[static_cast<size_t>(turn.bucket)];
    if (!turn.start) {
      memory.Give(layout.memory_at, layout.memory_bytes);
      continue;
    }
    layout.memory_at = memory.Take(layout.memory_bytes);
    if (memory.end() > kMaxBucketBytes) {
      return Wrong(program.plan, turn.bucket, ": more than ", kMaxBucketBytes,
                   " bytes of buckets are under way at once");
    }
    program.starts.push_back(turn.bucket);
  }
  program.memory_bytes = memory.end();
  program.digest = DigestOf(program);
  return program;
}

absl::StatusOr<std::vector<Segment>> CopyIn(const Program& program, int32_t bucket, int rank,
                                            absl::Span<const Tensor> from, std::byte* memory) {
  const Copies copies(program, bucket, rank, memory, /*in=*/true);
  RETURN_IF_ERROR(copies.Check(from));
  return copies.In(from);
}

absl::StatusOr<std::vector<Segment>> CopyOut(const Program& program, int32_t bucket, int rank,
                                             absl::Span<const Tensor> to, std::byte* memory) {
  const Copies copies(program, bucket, rank, memory, /*in=*/false);
  RETURN_IF_ERROR(copies.Check(to));
  return copies.Out(to);
}

}  // namespace bucketd::agent
