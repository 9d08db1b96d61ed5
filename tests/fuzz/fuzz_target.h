// What the fuzz targets share. Each takes bytes from anyone: nothing may crash, hang or fill the
// memory, and what is accepted must come back the same by every other way in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/ir/canonical.h"
#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace bucketd::fuzz {

inline absl::string_view View(const uint8_t* data, size_t size) {
  return absl::string_view(reinterpret_cast<const char*>(data), size);
}

// Small, so that limits are reached.
inline GraphLimits Limits() {
  GraphLimits limits;
  limits.max_nodes = 2000;
  limits.max_edges = 10000;
  limits.max_tensors = 10000;
  limits.max_string_bytes = 1 << 20;
  limits.max_string_length = 1000;
  limits.max_groups = 64;
  return limits;
}

inline void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

template <typename T>
T Must(absl::StatusOr<T> value, const char* what) {
  if (!value.ok()) std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  Check(value.ok(), what);
  return *std::move(value);
}

// Comes back through the wire and through text, with digest and names; can be normalised, verified
// and simulated in program order.
void CheckGraph(const Graph& graph);

}  // namespace bucketd::fuzz
