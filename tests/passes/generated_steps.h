// Training steps as models of many kinds would give them: what mode auto was not tuned to, and what
// no captured graph shows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/io/fx_json.h"

namespace bucketd::testing {

// Transformers, mixtures of experts and vision models; forward, backward and both; sharded over one
// group, over two, with tensor parallelism, and replicated.
absl::Span<const absl::string_view> GeneratedKinds();

// A step of that kind, whose depth, width, batch and links the seed draws: some hundred nodes to
// 2,500, or, `large`, at least 8,000. The same on every machine. Its costs are those of an H100.
CapturedGraph GeneratedStep(size_t kind, uint32_t seed, bool large);

}  // namespace bucketd::testing
