#include "client/ctl/kernel_rows.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/cost/measured_kernel.h"
#include "passes/io/fx_json.h"
#include "passes/ir/normalize.h"

namespace bucketd::ctl {
namespace {

struct Times {
  std::string op;
  std::vector<double> us;
};

// By signature in the normalised graph: that is what a server prices.
absl::StatusOr<int64_t> AddGraph(const std::string& path, std::map<std::string, Times>& found) {
  ASSIGN_OR_RETURN(const CapturedGraph captured, ReadCapturedGraphFile(path));
  const absl::StatusOr<NormalizedGraph> normalized = Normalize(captured.graph);
  if (!normalized.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", normalized.status().message()));
  }
  const Graph& graph = normalized->graph;
  KernelSignatures signatures(graph);
  int64_t nodes = 0;
  for (NodeId n = 0; n < graph.size(); ++n) {
    const NodeId raw = normalized->raw_id[static_cast<size_t>(n)];
    if (raw == kNoNode || !captured.measured[static_cast<size_t>(raw)]) continue;
    const std::string signature = signatures.Of(n);
    if (signature.empty()) continue;
    Times& times = found[signature];
    times.op = std::string(graph.op(n));
    times.us.push_back(captured.costs.node_us[static_cast<size_t>(raw)]);
    ++nodes;
  }
  if (nodes > 0) return nodes;
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": no kernel was measured; expected what python -m bucketd.kernel_times wrote"));
}

// So that equal kernels of a step take in all what was measured of them: each is a median already.
double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

absl::StatusOr<KernelRows> AddKernelRows(const std::vector<std::string>& paths,
                                         CostProfile& profile) {
  std::map<std::string, Times> found;
  KernelRows rows;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const int64_t nodes, AddGraph(path, found));
    rows.nodes += nodes;
  }
  rows.signatures = found.size();
  std::map<std::string, MeasuredKernel> all;
  for (MeasuredKernel& row : profile.kernels) all.emplace(row.signature, std::move(row));
  for (const auto& [signature, times] : found) {
    all[signature] = {signature, times.op, Mean(times.us), static_cast<int32_t>(times.us.size())};
  }
  profile.kernels.clear();
  for (auto& [signature, row] : all) profile.kernels.push_back(std::move(row));
  return rows;
}

}  // namespace bucketd::ctl
