// A plan: buckets, and a total order of what is left. The wire form is bucketd.v1.Plan, the file
// form PLAN_FORMAT.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "passes/base/digest.h"
#include "passes/base/types.h"
#include "passes/ir/graph.h"

namespace bucketd {

struct Bucket {
  std::vector<NodeId> members;  // starts of collectives, in payload order; two or more
  BucketMode mode = BucketMode::kPacked;
  CopyStream copies = CopyStream::kCompute;
  std::string name;
  // Byte offset of each member in a rank's slice of the flat buffer, and that slice's length.
  // Filled by LayOut().
  std::vector<int64_t> offsets;
  int64_t slice_bytes = 0;
  int64_t bytes = 0;  // full message
  int64_t start_ps = 0, end_ps = 0;
};

// One element of the order.
struct Step {
  enum class Kind : uint8_t { kNode = 0, kStart = 1, kWait = 2 };
  Kind kind = Kind::kNode;
  int32_t id = 0;  // a node or a bucket
  friend bool operator==(const Step&, const Step&) = default;
};

struct Prediction {
  int64_t total_ps = 0, exposed_ps = 0, compute_ps = 0, comm_ps = 0, copies_ps = 0,
          busiest_group_ps = 0;
  int64_t peak_bytes = 0;
  NodeId peak_at = kNoNode;  // kNoNode: at a bucket's own node, or before the first one
  int32_t collectives = 0;
};

struct Diagnostic {
  std::string code, text;
  std::vector<NodeId> nodes;
};

// Adds "N text", N nodes; nothing if there are none.
void AddDiagnostic(absl::string_view code, std::vector<NodeId> nodes, absl::string_view text,
                   std::vector<Diagnostic>& diagnostics);

struct Plan {
  Digest graph_digest{};
  int32_t node_count = 0;
  std::vector<Bucket> buckets;
  std::vector<Step> order;
  Numerics numerics = Numerics::kEagerOrder;
  std::string backend, mode, planner, cost_profile;
  // What `numerics` comes to: whose bits gradients have on `backend`, and in words, with why not
  // the others'. The planner says it (pass/units/sum_bits.h); no verifier holds a plan to it.
  Bits bits = Bits::kUnsaid;
  std::string bits_text;
  Prediction prediction, program_order;
  int64_t lower_bound_ps = 0;
  std::vector<Diagnostic> diagnostics;
};

// Every node in program order, no buckets.
Plan ProgramOrder(const Graph& graph);

// Fills offsets, slice_bytes and bytes of a bucket from its members: slices in payload order, each
// aligned to the item size (one dtype a bucket), back to back. All-gather: inputs; reduce-scatter:
// outputs; all-reduce: the tensors.
void LayOut(const Graph& graph, Bucket& bucket);

}  // namespace bucketd
