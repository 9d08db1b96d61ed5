#include "passes/base/collectives.h"
#include "passes/sim/model.h"

namespace bucketd::internal {

int64_t FirstOutputBytes(const Graph& graph, NodeId n) {
  const absl::Span<const TensorType> outputs = graph.outputs(n);
  return outputs.empty() ? 0 : outputs.front().bytes;
}

BucketCosts CostsOf(const Graph& graph, const Bucket& bucket, const Costs& costs) {
  BucketCosts result;
  const CollectiveId first = graph.collective_of(bucket.members.front());
  result.kind = graph.collective(first).kind;
  result.group = graph.collective(first).group;
  const bool packed = bucket.mode == BucketMode::kPacked;
  result.copies_on_comm = packed && bucket.copies == CopyStream::kComm;
  result.copies_on_compute = packed && !result.copies_on_comm;
  int64_t message = 0;
  for (const NodeId member : bucket.members) {
    message += graph.collective(graph.collective_of(member)).bytes;
    result.out_bytes += FirstOutputBytes(graph, member);
    const absl::Span<const NodeId> inputs = graph.inputs(member);
    if (!inputs.empty()) result.in_bytes += FirstOutputBytes(graph, inputs.front());
  }
  const int64_t launches = packed ? 1 : static_cast<int64_t>(bucket.members.size());
  result.collective_ps = costs.CollectivePs(first, message, launches);
  if (packed) {
    result.copy_in_ps = costs.CopyPs(result.in_bytes);
    // Reduced results are used where they lie in the flat buffer.
    if (Gathers(result.kind)) {
      result.copy_out_ps = costs.CopyPs(result.out_bytes);
    }
  }
  return result;
}

}  // namespace bucketd::internal
