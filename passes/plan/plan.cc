#include "passes/plan/plan.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"

namespace bucketd {
namespace {

// What a member takes of one rank's slice of the flat buffer.
int64_t SliceBytes(const Graph& graph, const Collective& c) {
  const bool gather = Gathers(c.kind) && !graph.inputs(c.start).empty();
  const absl::Span<const TensorType> tensors =
      graph.outputs(gather ? graph.inputs(c.start).front() : c.start);
  return tensors.empty() ? 0 : tensors.front().bytes;
}

}  // namespace

void AddDiagnostic(absl::string_view code, std::vector<NodeId> nodes, absl::string_view text,
                   std::vector<Diagnostic>& diagnostics) {
  if (nodes.empty()) return;
  std::string counted = absl::StrCat(nodes.size(), " ", text);
  diagnostics.push_back({std::string(code), std::move(counted), std::move(nodes)});
}

Plan ProgramOrder(const Graph& graph) {
  Plan plan;
  plan.node_count = graph.size();
  plan.order.reserve(static_cast<size_t>(graph.size()));
  for (NodeId n = 0; n < graph.size(); ++n) plan.order.push_back({Step::Kind::kNode, n});
  return plan;
}

void LayOut(const Graph& graph, Bucket& bucket) {
  bucket.offsets.clear();
  bucket.slice_bytes = 0;
  bucket.bytes = 0;
  for (const NodeId member : bucket.members) {
    const Collective& c = graph.collective(graph.collective_of(member));
    // One dtype a bucket, so every tensor is a multiple of the item size and so is every offset.
    bucket.offsets.push_back(bucket.slice_bytes);
    bucket.slice_bytes += SliceBytes(graph, c);
    bucket.bytes += c.bytes;
  }
}

}  // namespace bucketd
