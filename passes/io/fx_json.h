// Captured-graph files (tests/data/SCHEMA.md, proto/GRAPH.md §1): gzip or plain JSON of what one
// rank captured.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/ir/graph_builder.h"

namespace bucketd {

struct CapturedGraph {
  Graph graph;        // raw: ids are the file's
  StatedCosts costs;  // est_us of every node; alpha and bus bandwidth of every collective
  // Whether the file states times at all. If not, `costs` is empty: plan with the device model.
  bool has_costs = false;
  Mesh mesh;
  std::string kind;  // fw, bw, joint
  // Nodes, one flag each, whose est_us was measured (bucketd.kernel_times).
  std::vector<bool> measured;
};

inline constexpr int64_t kMaxJsonBytes = int64_t{1} << 30;

// INVALID_ARGUMENT names file position or node. `limits` bound what is built; decompression stops
// at max_json_bytes. Peak memory is about six times the JSON's size.
absl::StatusOr<CapturedGraph> ReadCapturedGraph(absl::string_view bytes,
                                                const GraphLimits& limits = {},
                                                int64_t max_json_bytes = kMaxJsonBytes);
// NOT_FOUND if there is no such file.
absl::StatusOr<CapturedGraph> ReadCapturedGraphFile(const std::string& path,
                                                    const GraphLimits& limits = {});

}  // namespace bucketd
