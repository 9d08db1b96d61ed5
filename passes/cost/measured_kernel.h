// What kernels were measured to take, in the place of the device model's: rows of
// CostProfile::kernels. Profiler traces give them (bucketctl costs import-trace --kernels).
//
// A row goes by its kernel's signature, a hash of what the graph says that it computes: operation,
// dtypes and shapes of what it reads and writes, bytes moved. A node that costs nothing by itself
// is part of the kernels that read it, through views: so is what Inductor fuses, and a fused kernel
// has the signature of all that it computes. Names, modules, and the graph around do not count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/ir/graph.h"

namespace bucketd {

struct CostProfile;
struct StatedCosts;

struct MeasuredKernel {
  std::string signature;  // KernelSignatures
  std::string op;         // for people, as `samples`: no cost depends on them
  double us = 0.0;
  int32_t samples = 0;
};

// At most this many rows in a profile: half a megabyte. A step has some hundred kinds of kernels.
inline constexpr size_t kMaxMeasuredKernels = 4096;

// What kernels compute, in 32 hexadecimal digits. Thread-compatible.
class KernelSignatures {
 public:
  explicit KernelSignatures(const Graph& graph);  // which outlives it. O(nodes)

  // "" for a node that costs nothing. O(nodes that are part of the kernel, and their inputs), of
  // which what lies far away is left out. "" once all together took far more than a step's kernels
  // do: hostile graphs have many that read one huge tuple.
  std::string Of(NodeId n);

 private:
  const Graph& graph_;
  std::vector<NodeId> source_;  // through views and pieces of tuples
  int64_t text_left_;
};

// Rows strictly ascending by signature, each with 0 to 1e8 us. Names the row.
absl::Status ValidateKernels(absl::Span<const MeasuredKernel> kernels);

// Puts the profile's rows into `stated`, which has one time a node: compute_scale does not apply to
// these. What was not measured keeps what it has. Where there are rows: a signature a node.
void UseMeasuredKernels(const Graph& graph, const CostProfile& profile, StatedCosts& stated);

}  // namespace bucketd
