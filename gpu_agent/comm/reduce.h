// Element-wise reductions of host memory, one hop of a ring at a time.
//
// Integers wrap around. Bool is a bit: sum and max are or, product and min are and. Floating point
// is rounded to its dtype after every hop, f16, bf16 and f8 from an f32 result, as NCCL's classic
// kernels do. min and max are NaN if one side is, and of two zeros the received one. avg is the sum
// of all ranks, rounded each hop, divided by the number of ranks once, at the end (NCCL multiplies
// each rank's part beforehand: the bits are the same where the number of ranks is a power of two
// and nothing overflows or becomes subnormal).
#pragma once

#include <cstddef>
#include <cstdint>

#include "passes/base/types.h"

namespace bucketd::agent {

// to[i] = received[i] op own[i] for `count` elements; avg sums. No address need be aligned; `to`
// may be `own` or `received`, else they do not overlap.
using ReduceFunction = void (*)(const std::byte* received, const std::byte* own, std::byte* to,
                                int64_t count);

// Null: the dtype has no such op, which is what Validate goes by.
ReduceFunction ReducerOf(DType dtype, ReduceOp op);

// The end of avg: data[i] /= ranks. Null where ReducerOf has no avg.
using DivideFunction = void (*)(std::byte* data, int64_t count, int ranks);
DivideFunction DividerOf(DType dtype);

}  // namespace bucketd::agent
