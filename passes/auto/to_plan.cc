#include "passes/auto/to_plan.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace bucketd::search {

Plan PlanOf(const PassContext& context, const Problem& problem, const Decoded& decoded) {
  const Graph& graph = context.graph;
  Plan plan = ProgramOrder(graph);
  plan.order.clear();
  std::vector<BucketId> bucket_of(decoded.batches.size(), -1);
  for (size_t b = 0; b < decoded.batches.size(); ++b) {
    const Batch& batch = decoded.batches[b];
    if (batch.members.size() < 2) continue;
    Bucket bucket;
    for (const CollectiveId c : batch.members) bucket.members.push_back(graph.collective(c).start);
    bucket.mode = batch.form == Form::kGrouped ? BucketMode::kGrouped : BucketMode::kPacked;
    bucket.copies = batch.form == Form::kPackedOnComm ? CopyStream::kComm : CopyStream::kCompute;
    const Collective& first = graph.collective(batch.members[0]);
    bucket_of[b] = static_cast<BucketId>(plan.buckets.size());
    bucket.name =
        absl::StrCat(graph.group(first).mesh_dim, ".", Name(first.kind), ".", plan.buckets.size(),
                     " ", Name(context.directions[static_cast<size_t>(batch.members[0])]));
    LayOut(graph, bucket);
    plan.buckets.push_back(std::move(bucket));
  }
  const auto node = [&](NodeId n) { plan.order.push_back({Step::Kind::kNode, n}); };
  const auto follow = [&](LeaderId l) {
    for (const NodeId n : problem.followers.of(l)) node(n);
  };
  for (const NodeId n : problem.first) node(n);
  for (const Action& action : decoded.order) {
    if (action.kind == Action::Kind::kRun) {
      node(problem.node[Index(action.id)]);
      follow(action.id);
      continue;
    }
    const bool launch = action.kind == Action::Kind::kLaunch;
    const BucketId bucket = bucket_of[Index(action.id)];
    if (bucket >= 0)
      plan.order.push_back({launch ? Step::Kind::kStart : Step::Kind::kWait, bucket});
    for (const CollectiveId c : decoded.batches[Index(action.id)].members) {
      const Transfer& t = problem.transfer(c);
      const LeaderId leader = launch ? t.start : t.wait;
      if (bucket < 0) node(problem.node[Index(leader)]);
      follow(leader);
    }
  }
  node(graph.output_node());
  return plan;
}

}  // namespace bucketd::search
