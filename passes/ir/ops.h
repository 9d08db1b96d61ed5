// What op names tell. Readers of foreign formats set node flags from here. Passes go by flags, and
// by a name only where torch's passes do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

#include "passes/base/types.h"

namespace bucketd {

// The base name: "aten.mm.default" -> "mm".
absl::string_view BaseName(absl::string_view op);
// Random, effectful and host-synchronising ops, whose relative order must stay (proto/GRAPH.md §3).
bool IsOrderedOp(absl::string_view op);
bool IsPointwiseOp(absl::string_view op);
// Ops that torch counts as compute (a FLOP formula is registered): matrix products, convolutions,
// attention.
bool IsComputeOp(absl::string_view op);

// How memory_bytes of a call that is no view is counted (proto/GRAPH.md §3).
enum class Traffic : uint8_t {
  kNone,     // nothing
  kAll,      // inputs and outputs
  kGather,   // outputs twice, and all inputs but the first
  kOutputs,  // outputs
};
Traffic TrafficOf(absl::string_view op);

// At the largest int64 where they would overflow. REQUIRES: none is negative.
int64_t CappedSum(int64_t a, int64_t b);
int64_t CappedProduct(int64_t a, int64_t b);

// memory_bytes of such a call that writes `written` bytes and has so many inputs. Capped.
int64_t MemoryBytes(Traffic traffic, int64_t written, size_t inputs,
                    absl::FunctionRef<int64_t(size_t input)> bytes_of);

}  // namespace bucketd
