// Captured-graph files (tests/data/SCHEMA.md): gzip or plain JSON of what one rank captured.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"

namespace bucketd {

struct CapturedGraph {
  Graph graph;        // raw: ids are the file's
  StatedCosts costs;  // est_us of every node; alpha and bus bandwidth of every collective
  Mesh mesh;
  std::string kind;  // fw, bw, joint
};

// INVALID_ARGUMENT names file position or node. `limits` bound what is built; decompression stops
// at max_json_bytes.
absl::StatusOr<CapturedGraph> ReadCapturedGraph(absl::string_view bytes,
                                                const GraphLimits& limits = {},
                                                int64_t max_json_bytes = int64_t{2} << 30);
// NOT_FOUND if there is no such file.
absl::StatusOr<CapturedGraph> ReadCapturedGraphFile(const std::string& path,
                                                    const GraphLimits& limits = {});

}  // namespace bucketd
