#include "passes/sim/bucket_costs.h"

#include "passes/base/collectives.h"
#include "passes/base/int128.h"

namespace bucketd::internal {

BucketCosts CostsOf(const BucketParts& parts, BucketMode mode, CopyStream copies,
                    const Costs& costs) {
  BucketCosts result{parts};
  const bool packed = mode == BucketMode::kPacked;
  result.copies_on_comm = packed && copies == CopyStream::kComm;
  result.copies_on_compute = packed && !result.copies_on_comm;
  result.collective_ps =
      costs.CollectivePs(parts.first, parts.message_bytes, packed ? 1 : parts.members);
  if (packed) {
    result.copy_in_ps = costs.CopyPs(parts.in_bytes);
    // Reduced results are used where they lie in the flat buffer.
    if (Gathers(parts.kind)) result.copy_out_ps = costs.CopyPs(parts.out_bytes);
  }
  return result;
}

BucketCosts CostsOf(const Graph& graph, const Bucket& bucket, const Costs& costs) {
  BucketParts parts;
  parts.first = graph.collective_of(bucket.members.front());
  parts.members = static_cast<int64_t>(bucket.members.size());
  parts.kind = graph.collective(parts.first).kind;
  parts.group = graph.collective(parts.first).group;
  for (const NodeId member : bucket.members) {
    parts.message_bytes += graph.collective(graph.collective_of(member)).bytes;
    // Every collective has one output, and its input is one tensor.
    parts.out_bytes += graph.outputs(member)[0].bytes;
    parts.in_bytes += graph.outputs(graph.inputs(member)[0])[0].bytes;
  }
  return CostsOf(parts, bucket.mode, bucket.copies, costs);
}

LaunchWork WorkOf(const BucketCosts& bucket, const Costs& costs) {
  LaunchWork work;
  work.group = bucket.group;
  work.slot_ps = bucket.collective_ps;
  if (bucket.copies_on_compute) {
    work.copy_in_ps = bucket.copy_in_ps;
    work.copy_out_ps = bucket.copy_out_ps;
  } else if (bucket.copies_on_comm) {
    const int64_t copies = bucket.copy_in_ps + bucket.copy_out_ps;
    work.slot_ps += copies;
    // They take memory bandwidth from compute: that share of them is charged to it.
    work.charged_ps = static_cast<int64_t>(
        (Int128{copies} * costs.comm_copy_share_ppb() + kBillion / 2) / kBillion);
    work.copies_on_stream = Gathers(bucket.kind) ? 2 : 1;
  }
  return work;
}

}  // namespace bucketd::internal
