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

Decoded OrderOf(const Graph& graph, const Problem& problem, const Plan& plan) {
  std::vector<LeaderId> leader_of(Index(graph.size()), -1);
  for (LeaderId l = 0; l < problem.size(); ++l) leader_of[Index(problem.node[Index(l)])] = l;
  std::vector<int32_t> batch_of(graph.collectives().size(), -1);
  Decoded decoded;
  const auto launch = [&](Batch batch) {
    const auto id = static_cast<int32_t>(decoded.batches.size());
    for (const CollectiveId c : batch.members) batch_of[Index(c)] = id;
    decoded.order.push_back({Action::Kind::kLaunch, id});
    decoded.batches.push_back(std::move(batch));
  };
  const auto wait = [&](CollectiveId c) {
    decoded.order.push_back({Action::Kind::kWait, batch_of[Index(c)]});
  };
  for (const Step& step : plan.order) {
    if (step.kind == Step::Kind::kNode) {
      const CollectiveId c = graph.collective_of(step.id);
      if (graph.kind(step.id) == NodeKind::kCollective) {
        launch({{c}, Form::kFree, false});
      } else if (graph.kind(step.id) == NodeKind::kWait) {
        wait(c);
      } else if (leader_of[Index(step.id)] >= 0) {
        decoded.order.push_back({Action::Kind::kRun, leader_of[Index(step.id)]});
      }
      continue;
    }
    const Bucket& bucket = plan.buckets[Index(step.id)];
    if (step.kind == Step::Kind::kWait) {
      wait(graph.collective_of(bucket.members[0]));
      continue;
    }
    Batch batch;
    for (const NodeId n : bucket.members) batch.members.push_back(graph.collective_of(n));
    batch.form = bucket.mode == BucketMode::kGrouped  ? Form::kGrouped
                 : bucket.copies == CopyStream::kComm ? Form::kPackedOnComm
                                                      : Form::kPackedOnCompute;
    launch(std::move(batch));
  }
  return decoded;
}

}  // namespace bucketd::search
