#include "gpu_agent/run/replay_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"
#include "passes/cost/device_model.h"
#include "passes/io/fx_json.h"
#include "passes/io/plan_file.h"
#include "passes/io/profile_json.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "passes/plan/verify.h"

namespace bucketd::agent {
namespace {

absl::StatusOr<Costs> CostsOf(CapturedGraph& captured, const std::string& profile_name) {
  absl::StatusOr<CostProfile> profile = FindProfile(profile_name);
  if (!profile.ok()) {
    return absl::Status(profile.status().code(),
                        absl::StrCat("--profile: ", profile.status().message()));
  }
  // Measured rows win over what the file states, as they do over the device model.
  if (!captured.has_costs) return Costs::FromDeviceModel(captured.graph, captured.mesh, *profile);
  UseMeasuredLinks(captured.graph, captured.mesh, *profile, captured.costs);
  return Costs::FromFile(captured.graph, captured.costs, *profile);
}

absl::Status CheckPlan(const Graph& graph, const Plan& plan, const std::string& path) {
  ASSIGN_OR_RETURN(const NormalizedGraph normalized, Normalize(graph));
  const Digest digest = GraphDigest(normalized.graph);
  if (plan.graph_digest != Digest{} && plan.graph_digest != digest) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": made for graph ", ToHex(plan.graph_digest), ", but this one is ", ToHex(digest)));
  }
  if (plan.node_count != 0 && plan.node_count != graph.size()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": speaks the ids of ", plan.node_count,
                                                      " nodes, but the file has ", graph.size()));
  }
  const absl::Status legal = VerifyPlan(graph, plan);
  if (legal.ok()) return legal;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": not a legal plan for this graph\n", legal.message()));
}

// Members agree in all but their sizes: VerifyPlan.
BucketSpec SpecOf(const Graph& graph, absl::Span<const NodeId> members) {
  const auto collective = [&graph](NodeId n) -> const bucketd::Collective& {
    return graph.collective(graph.collective_of(n));
  };
  const bucketd::Collective& first = collective(members.front());
  BucketSpec spec;
  spec.mesh_dim = graph.group(first).mesh_dim;
  spec.lane = graph.group(first).lane;
  spec.group_size = graph.group(first).size;
  spec.kind = first.kind;
  spec.op = first.reduce_op;
  spec.dtype = first.dtype;
  const int64_t parts = ReducesWhole(first.kind) ? 1 : spec.group_size;
  for (const NodeId n : members) {
    spec.counts.push_back(collective(n).bytes / parts / ItemSize(spec.dtype));
  }
  return spec;
}

// A collective that is in no bucket, as a bucket of its own.
absl::StatusOr<BucketSpec> Alone(const Graph& graph, NodeId n) {
  BucketSpec spec = SpecOf(graph, {n});
  spec.name = graph.Describe(n);
  spec.mode = BucketMode::kGrouped;
  if (Bucketable(spec.kind)) return spec;
  return absl::UnimplementedError(
      absl::StrCat(spec.name, ": no communicator runs a ", Name(spec.kind)));
}

class Steps {
 public:
  explicit Steps(ReplayPlan& replay)
      : replay_(replay),
        simulation_(Simulate(replay.graph, replay.plan, replay.costs, /*with_timeline=*/true)),
        compute_ps_(static_cast<size_t>(replay.graph.size())),
        alone_(static_cast<size_t>(replay.graph.size()), -1) {}

  absl::Status Make() {
    replay_.spec.graph = replay_.plan.graph_digest;
    for (const Bucket& bucket : replay_.plan.buckets) {
      BucketSpec& spec = replay_.spec.buckets.emplace_back(SpecOf(replay_.graph, bucket.members));
      spec.name = bucket.name;
      spec.mode = bucket.mode;
      spec.copies = bucket.copies;
    }
    for (const Step& step : replay_.plan.order) {
      if (step.kind == Step::Kind::kNode) {
        RETURN_IF_ERROR(AddNodes(step.id));
      }
    }
    Predict();
    for (const Step& step : replay_.plan.order) Walk(step);
    // Whoever is never waited for ends with the step.
    for (const int32_t bucket : open_) Turn(ReplayStep::Kind::kWait, bucket);
    replay_.predicted_total_ps = simulation_.prediction.total_ps;
    return Validate(replay_.spec);
  }

 private:
  absl::Status AddNodes(NodeId n) {
    if (replay_.graph.kind(n) != NodeKind::kCollective) return absl::OkStatus();
    ASSIGN_OR_RETURN(BucketSpec spec, Alone(replay_.graph, n));
    alone_[static_cast<size_t>(n)] = static_cast<int32_t>(replay_.spec.buckets.size());
    replay_.spec.buckets.push_back(std::move(spec));
    return absl::OkStatus();
  }

  void Predict() {
    using Kind = TimelineEvent::Kind;
    replay_.predicted.resize(replay_.spec.buckets.size());
    for (const TimelineEvent& event : simulation_.events) {
      const int64_t ps = event.end_ps - event.start_ps;
      if (event.kind == Kind::kCompute) compute_ps_[static_cast<size_t>(event.node)] += ps;
      const int32_t bucket = event.bucket >= 0 || event.node < 0
                                 ? event.bucket
                                 : alone_[static_cast<size_t>(event.node)];
      if (bucket < 0) continue;
      PartTimes& times = replay_.predicted[static_cast<size_t>(bucket)];
      if (event.kind == Kind::kCollective) times.wire_ps += ps;
      if (event.kind == Kind::kCopyIn) times.copy_in_ps += ps;
      if (event.kind == Kind::kCopyOut) times.copy_out_ps += ps;
    }
  }

  void Walk(const Step& step) {
    if (step.kind != Step::Kind::kNode) {
      Turn(step.kind == Step::Kind::kStart ? ReplayStep::Kind::kStart : ReplayStep::Kind::kWait,
           step.id);
      return;
    }
    const Graph& graph = replay_.graph;
    if (graph.kind(step.id) == NodeKind::kCollective) {
      Turn(ReplayStep::Kind::kStart, alone_[static_cast<size_t>(step.id)]);
    } else if (graph.kind(step.id) == NodeKind::kWait) {
      const NodeId start = graph.collective(graph.collective_of(step.id)).start;
      Turn(ReplayStep::Kind::kWait, alone_[static_cast<size_t>(start)]);
    } else if (const int64_t ps = compute_ps_[static_cast<size_t>(step.id)]; ps > 0) {
      std::vector<ReplayStep>& steps = replay_.steps;
      if (steps.empty() || steps.back().kind != ReplayStep::Kind::kCompute) steps.emplace_back();
      steps.back().compute_ps += ps;
    }
  }

  void Turn(ReplayStep::Kind kind, int32_t bucket) {
    const bool start = kind == ReplayStep::Kind::kStart;
    replay_.steps.push_back({kind, 0, bucket});
    replay_.spec.order.push_back({start, bucket});
    if (start) {
      open_.push_back(bucket);
    } else {
      open_.erase(std::remove(open_.begin(), open_.end(), bucket), open_.end());
    }
  }

  ReplayPlan& replay_;
  const Simulation simulation_;
  std::vector<int64_t> compute_ps_;  // one a node
  std::vector<int32_t> alone_;       // one a node: its bucket of one, or -1
  std::vector<int32_t> open_;
};

}  // namespace

absl::StatusOr<ReplayPlan> LoadReplayPlan(const std::string& plan_path,
                                          const std::string& graph_path,
                                          const std::string& profile) {
  ASSIGN_OR_RETURN(CapturedGraph captured, ReadCapturedGraphFile(graph_path));
  ASSIGN_OR_RETURN(Costs costs, CostsOf(captured, profile));
  ASSIGN_OR_RETURN(PlanFile file, ReadPlanFile(plan_path));
  RETURN_IF_ERROR(CheckPlan(captured.graph, file.plan, plan_path));
  ReplayPlan replay{
      std::move(captured.graph), std::move(costs), std::move(file.plan), {}, {}, {}, 0};
  RETURN_IF_ERROR(Steps(replay).Make());
  return replay;
}

}  // namespace bucketd::agent
