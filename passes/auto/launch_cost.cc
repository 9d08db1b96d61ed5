#include "passes/auto/launch_cost.h"

#include <algorithm>

#include "passes/pass/numerics.h"
#include "passes/sim/bucket_costs.h"

namespace bucketd::search {

LaunchCost CostOf(const Problem& problem, const Batch& batch) {
  const Transfer& first = problem.transfer(batch.members[0]);
  LaunchCost cost;
  if (batch.members.size() == 1) {
    cost.work.group = first.group;
    cost.work.slot_ps = first.alpha_ps + first.wire_ps;
    cost.in_bytes = first.in_bytes;
    cost.out_bytes = first.out_bytes;
    return cost;
  }
  internal::BucketParts parts;
  parts.first = batch.members[0];
  parts.members = static_cast<int64_t>(batch.members.size());
  parts.kind = first.kind;
  parts.group = first.group;
  for (const CollectiveId c : batch.members) {
    const Transfer& t = problem.transfer(c);
    parts.message_bytes += t.bytes;
    parts.in_bytes += t.in_bytes;
    parts.out_bytes += t.out_bytes;
  }
  cost.in_bytes = parts.in_bytes;
  cost.out_bytes = parts.out_bytes;
  const BucketMode mode = batch.form == Form::kGrouped ? BucketMode::kGrouped : BucketMode::kPacked;
  const CopyStream copies =
      batch.form == Form::kPackedOnComm ? CopyStream::kComm : CopyStream::kCompute;
  const Costs& costs = *problem.costs;
  cost.work = internal::WorkOf(internal::CostsOf(parts, mode, copies, costs), costs);
  return cost;
}

void SortByPayload(const Problem& problem, std::vector<CollectiveId>& members) {
  std::sort(members.begin(), members.end(), [&](CollectiveId a, CollectiveId b) {
    return problem.transfer(a).payload_rank < problem.transfer(b).payload_rank;
  });
}

bool MayPack(const Problem& problem, absl::Span<const CollectiveId> members) {
  if (problem.options->numerics != Numerics::kExact) return true;
  std::vector<NodeId> starts;
  for (const CollectiveId c : members) {
    if (!problem.transfer(c).packable) return false;
    starts.push_back(problem.node[Index(problem.transfer(c).start)]);
  }
  return ModeOf(*problem.graph, starts, *problem.options) == BucketMode::kPacked;
}

}  // namespace bucketd::search
