// Every knob of a plan. Part of the plan's key, field by field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/base/types.h"

namespace bucketd {

// Field for field bucketd.v1.PlanOptions.
struct PlanOptions {
  std::string mode = "transformer_block";
  Numerics numerics = Numerics::kEagerOrder;
  std::string backend = "nccl";  // whose summation order `numerics` speaks of: "gloo", "nccl"
  ReorderCompute reorder_compute = ReorderCompute::kAll;
  // Peak memory a plan may reach, as a share of program order's in parts per million, or in bytes
  // if that is not 0. Launches move less far to stay within it. Where that is not enough, the share
  // is exceeded and the plan says so; a limit in bytes is never exceeded: the mode then refuses.
  int64_t memory_limit_ppm = 1'050'000;
  int64_t memory_limit_bytes = 0;
  std::string buckets;  // entries of mode manual; "": blocks are found
  int32_t prefetch_forward = 1;
  int32_t prefetch_backward = 1;
  int32_t defer_reduce_scatter = 1;
  std::string reorder = "all";               // all, none, or entries
  std::vector<std::string> parameter_order;  // FQNs in eager registration order
  bool strict_coverage = false;

  absl::Status Validate() const;  // unknown names list the known ones
};

// Modes that `mode` may name, in the order of help texts.
absl::Span<const absl::string_view> PlanModes();

}  // namespace bucketd
