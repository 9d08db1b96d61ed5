#include "passes/auto/launch_cost.h"

#include <vector>

#include "passes/pass/numerics.h"
#include "passes/sim/bucket_costs.h"

namespace bucketd::search {

LaunchCost CostOf(const Problem& problem, absl::Span<const CollectiveId> members, Form form) {
  const Transfer& first = problem.transfer(members[0]);
  LaunchCost cost;
  if (members.size() == 1) {
    cost.work.group = first.group;
    cost.work.slot_ps = first.alpha_ps + first.wire_ps;
    cost.in_bytes = first.in_bytes;
    cost.out_bytes = first.out_bytes;
    return cost;
  }
  internal::BucketParts parts;
  parts.first = members[0];
  parts.members = static_cast<int64_t>(members.size());
  parts.kind = first.kind;
  parts.group = first.group;
  for (const CollectiveId c : members) {
    const Transfer& t = problem.transfer(c);
    parts.message_bytes += t.bytes;
    parts.in_bytes += t.in_bytes;
    parts.out_bytes += t.out_bytes;
  }
  cost.in_bytes = parts.in_bytes;
  cost.out_bytes = parts.out_bytes;
  cost.work = internal::WorkOf(
      internal::CostsOf(parts, form == Form::kGrouped ? BucketMode::kGrouped : BucketMode::kPacked,
                        form == Form::kPackedOnComm ? CopyStream::kComm : CopyStream::kCompute,
                        *problem.costs),
      *problem.costs);
  return cost;
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
