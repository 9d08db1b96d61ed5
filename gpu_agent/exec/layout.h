// Where the bytes of a plan's buckets lie: the same offsets on every rank, since they are computed
// from nothing but the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "gpu_agent/exec/plan_spec.h"
#include "gpu_agent/pack/segments.h"
#include "passes/base/digest.h"

namespace bucketd::agent {

inline constexpr int64_t kMemberAlignment = 128;   // widest vector and cache line there is
inline constexpr int64_t kBucketAlignment = 4096;  // what a registered window asks for

// Of a packed bucket; a grouped one has neither slices nor memory. Every rank's slice holds the
// members at the same offsets, what lies between them is zero. All-gathers and reduce-scatters have
// a slice a rank, all-reduces one; the collective runs in place.
struct BucketLayout {
  std::vector<int64_t> offsets;  // bytes, of each member in a slice
  int64_t slice_bytes = 0;
  int64_t slices = 0;
  int64_t memory_at = 0;  // in the executor's one allocation
  int64_t memory_bytes = 0;
};

struct Program {
  PlanSpec plan;
  std::vector<BucketLayout> buckets;  // one a bucket of the plan
  std::vector<int32_t> starts;        // buckets, in the order in which they are launched
  // Buckets share bytes where the plan's order keeps them apart: from its start to its wait a
  // bucket has its bytes alone.
  int64_t memory_bytes = 0;
  Digest digest{};  // of all that ranks must agree on
};

// INVALID_ARGUMENT as Validate(plan). O(turns * free ranges).
absl::StatusOr<Program> LayOut(PlanSpec plan);

// A contiguous tensor of a member.
struct Tensor {
  std::byte* data = nullptr;
  int64_t elements = 0;
  DType dtype = DType::kUnspecified;
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// Segments between tensors, one a member, and a packed bucket's memory. A full tensor (what an
// all-gather gives, a reduce-scatter takes) falls into parts of `count` elements, one a rank; it
// and the shards may end early, then zeros stand for the rest. Where the tensor's dtype is not the
// wire's the copy casts. INVALID_ARGUMENT names the member: too many elements, no such cast,
// another number of tensors.
absl::StatusOr<std::vector<Segment>> CopyIn(const Program& program, int32_t bucket, int rank,
                                            absl::Span<const Tensor> from, std::byte* memory);
absl::StatusOr<std::vector<Segment>> CopyOut(const Program& program, int32_t bucket, int rank,
                                             absl::Span<const Tensor> to, std::byte* memory);

}  // namespace bucketd::agent
