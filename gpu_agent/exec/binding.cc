#include "gpu_agent/exec/binding.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// The bucket's collective, in place.
Collective InPlace(const BucketSpec& spec, const BucketLayout& layout, int rank,
                   std::byte* memory) {
  Collective c{spec.kind,  memory, memory, layout.slice_bytes / ItemSize(spec.dtype),
               spec.dtype, spec.op};
  std::byte* own = memory + rank * layout.slice_bytes;
  if (Gathers(spec.kind)) c.in = own;
  if (Scatters(spec.kind)) c.out = own;
  return c;
}

bool Exactly(const Tensor& tensor, int64_t elements, DType dtype) {
  return tensor.elements == elements && tensor.dtype == dtype;
}

}  // namespace

Binder::Binder(const Program& program) : program_(program), kept_(program.buckets.size()) {}

absl::StatusOr<Bound> Binder::Bind(int32_t bucket, int rank, const Payload& payload,
                                   std::byte* memory) {
  const BucketMode mode = program_.plan.buckets[static_cast<size_t>(bucket)].mode;
  return mode == BucketMode::kPacked ? BindPacked(bucket, rank, payload, memory)
                                     : BindGrouped(bucket, payload);
}

absl::StatusOr<TileList> Binder::CopyOutTo(int32_t bucket, int rank, absl::Span<const Tensor> out,
                                           std::byte* memory) {
  return TilesFor(bucket, rank, out, memory, false);
}

absl::StatusOr<TileList> Binder::TilesFor(int32_t bucket, int rank,
                                          absl::Span<const Tensor> tensors, std::byte* memory,
                                          bool in) {
  Kept& kept = kept_[static_cast<size_t>(bucket)];
  std::deque<Tiles>& cached = in ? kept.in : kept.out;
  for (const Tiles& known : cached) {
    if (absl::MakeConstSpan(known.tensors) == tensors) return known.tiles;
  }
  ASSIGN_OR_RETURN(const std::vector<Segment> segments,
                   in ? CopyIn(program_, bucket, rank, tensors, memory)
                      : CopyOut(program_, bucket, rank, tensors, memory));
  absl::StatusOr<std::vector<Tile>> tiles = Cut(segments);
  if (!tiles.ok()) return Wrong(program_.plan, bucket, ": ", tiles.status().message());
  if (cached.size() == kTilesKept) cached.pop_front();
  cached.push_back({{tensors.begin(), tensors.end()},
                    std::make_shared<const std::vector<Tile>>(*std::move(tiles))});
  return cached.back().tiles;
}

absl::StatusOr<Bound> Binder::BindPacked(int32_t bucket, int rank, const Payload& payload,
                                         std::byte* memory) {
  Bound bound;
  ASSIGN_OR_RETURN(bound.in, TilesFor(bucket, rank, payload.in, memory, true));
  bound.finish_later = payload.out.empty();
  if (!bound.finish_later) {
    ASSIGN_OR_RETURN(bound.out, CopyOutTo(bucket, rank, payload.out, memory));
  }
  const auto k = static_cast<size_t>(bucket);
  bound.group = {InPlace(program_.plan.buckets[k], program_.buckets[k], rank, memory)};
  return bound;
}

absl::StatusOr<Bound> Binder::BindGrouped(int32_t bucket, const Payload& payload) const {
  const BucketSpec& spec = program_.plan.buckets[static_cast<size_t>(bucket)];
  const size_t members = spec.counts.size();
  if (payload.in.size() != members || payload.out.size() != members) {
    return Wrong(program_.plan, bucket, ": got ", payload.in.size(), " and ", payload.out.size(),
                 " tensors, expected one in and one out for each of ", members, " members");
  }
  const int64_t in_parts = Scatters(spec.kind) ? spec.group_size : 1;
  const int64_t out_parts = Gathers(spec.kind) ? spec.group_size : 1;
  Bound bound;
  for (size_t i = 0; i < members; ++i) {
    const Tensor &in = payload.in[i], &out = payload.out[i];
    const int64_t count = spec.counts[i];
    if (!Exactly(in, count * in_parts, spec.dtype) ||
        !Exactly(out, count * out_parts, spec.dtype)) {
      return Wrong(program_.plan, bucket, " member ", i,
                   ": is grouped, so without copies: ", "expected ", count * in_parts,
                   " elements in and ", count * out_parts, " out of ", Name(spec.dtype), ", got ",
                   in.elements, " of ", Name(in.dtype), " and ", out.elements, " of ",
                   Name(out.dtype));
    }
    bound.group.push_back({spec.kind, in.data, out.data, count, spec.dtype, spec.op});
  }
  return bound;
}

}  // namespace bucketd::agent
