#include "passes/pass/overlap_bucket/overlap_bucket_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/ir/bucket_key.h"
#include "passes/pass/numerics.h"

namespace bucketd::overlap_bucket {

absl::StatusOr<Model> Model::Make(const PassContext& context, const OverlapBucketPolicy& policy,
                                  const Plan& plan) {
  Model model(context, policy, plan);
  model.position.assign(Index(model.items()), -1);
  model.compute_index = model.launch_of = model.position;
  for (const Step& step : plan.order) {
    const int32_t item = model.items_of_plan.item(step);
    model.position[Index(item)] = static_cast<int32_t>(model.order.size());
    model.order.push_back(item);
    if (step.kind != Step::Kind::kNode || !context.graph.is_compute(step.id)) continue;
    model.compute_index[Index(item)] = static_cast<int32_t>(model.compute.size());
    model.compute.push_back(item);
  }
  RETURN_IF_ERROR(model.AddLaunches(plan));
  RETURN_IF_ERROR(model.AddOverlap());
  model.AddKeys(plan);
  model.AddGroups(plan);
  return model;
}

absl::Status Model::AddLaunches(const Plan& plan) {
  const Graph& graph = context.graph;
  // Those that the schedule has listed already.
  std::vector<bool> listed_alone(graph.collectives().size()), listed_bucket(plan.buckets.size());
  const auto add = [&](BucketId bucket, CollectiveId collective) {
    LaunchInfo launch{LaunchOf(graph, context.costs, plan, bucket, collective)};
    const Collective& c = graph.collective(launch.collective);
    launch.start_item = bucket < 0 ? c.start : items_of_plan.start_item(bucket);
    launch.wait_item = bucket < 0 ? c.wait : items_of_plan.wait_item(bucket);
    launch.start_position = position[Index(launch.start_item)];
    launch.wait_position = position[Index(launch.wait_item)];
    launch.group = c.group;
    launch.exposed_ps = launch.est_ps;
    launch_of[Index(launch.start_item)] = launch_of[Index(launch.wait_item)] =
        static_cast<int32_t>(launches.size());
    launches.push_back(std::move(launch));
  };
  const auto alone = [&](CollectiveId c) {
    const NodeId wait = graph.collective(c).wait;
    return wait != kNoNode && position[Index(wait)] >= 0;
  };
  for (const LaunchOverlap& overlap : context.overlap) {
    const bool bucket = overlap.bucket >= 0;
    std::vector<bool>& listed = bucket ? listed_bucket : listed_alone;
    const int32_t id = bucket ? overlap.bucket : overlap.collective;
    const bool known = id >= 0 && Index(id) < listed.size() && (bucket || alone(id));
    if (!known || listed[Index(id)]) {
      return absl::InvalidArgumentError(
          absl::StrCat("overlap: ", bucket ? "bucket " : "collective ", id,
                       known ? " is listed twice" : " is no launch of this plan"));
    }
    listed[Index(id)] = true;
    add(overlap.bucket, overlap.collective);
  }
  for (const int32_t item : order) {
    const Step step = items_of_plan.step(item);
    if (step.kind == Step::Kind::kWait) {
      if (!listed_bucket[Index(step.id)]) add(step.id, -1);
    } else if (step.kind == Step::Kind::kNode && graph.kind(step.id) == NodeKind::kWait) {
      const CollectiveId c = graph.collective_of(step.id);
      if (!listed_alone[Index(c)]) add(-1, c);
    }
  }
  return absl::OkStatus();
}

absl::Status Model::AddOverlap() {
  const Graph& graph = context.graph;
  std::vector<bool> hiding(Index(items()));
  const auto is_of = [&](int32_t item, GroupId group) {
    const int32_t l = launch_of[Index(item)];
    return l >= 0 && launches[Index(l)].group == group;
  };
  for (size_t i = 0; i < context.overlap.size(); ++i) {  // launches begin with these
    const LaunchOverlap& overlap = context.overlap[i];
    LaunchInfo& launch = launches[i];
    launch.est_ps = overlap.est_ps;
    launch.exposed_ps = overlap.exposed_ps;
    for (const NodeId n : overlap.hidden_by) {
      const bool known = n >= 0 && n < graph.size();
      const int32_t item = known ? items_of_plan.item_of(n) : -1;
      const int32_t at = known ? position[Index(item)] : -1;
      const bool inside = at > launch.start_position && at < launch.wait_position;
      if (at < 0 || (policy.hidden_inside_only && !inside)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "overlap: ", known ? graph.Describe(n) : absl::StrCat("%", n),
            " does not stand between the start and the wait of ",
            graph.Describe(graph.collective(launch.collective).start), ", which it is to hide"));
      }
      launch.hidden_by.push_back(item);
      launch.first_hiding = std::min(launch.first_hiding, at);
      launch.last_hiding = std::max(launch.last_hiding, at);
      // On its own group's timeline a node has one event, which would move with its bucket.
      const bool own = policy.own_group_stays && is_of(item, launch.group);
      if (launch.fully_hidden() || own) hiding[Index(item)] = true;
    }
    std::sort(launch.hidden_by.begin(), launch.hidden_by.end(),
              [&](int32_t a, int32_t b) { return position[Index(a)] < position[Index(b)]; });
    launch.hidden_by.erase(std::unique(launch.hidden_by.begin(), launch.hidden_by.end()),
                           launch.hidden_by.end());
  }
  for (LaunchInfo& launch : launches) {
    launch.hides = hiding[Index(launch.start_item)] || hiding[Index(launch.wait_item)];
  }
  return absl::OkStatus();
}

void Model::AddKeys(const Plan& plan) {
  const Graph& graph = context.graph;
  absl::flat_hash_map<std::pair<BucketKey, Direction>, int32_t> keys;
  for (LaunchInfo& launch : launches) {
    const std::vector<NodeId> members = MembersOf(graph, plan, launch);
    const bool joins = std::all_of(members.begin(), members.end(), [&](NodeId member) {
      return MayJoinBucket(context, graph.collective_of(member));
    });
    if (!joins) continue;
    const Collective& c = graph.collective(launch.collective);
    const Direction direction = policy.keys_have_directions
                                    ? context.directions[Index(launch.collective)]
                                    : Direction::kNone;
    launch.key =
        keys.emplace(std::make_pair(BucketKey::Of(c), direction), static_cast<int32_t>(keys.size()))
            .first->second;
  }
}

void Model::AddGroups(const Plan& plan) {
  const Graph& graph = context.graph;
  const std::vector<NodeId> placeholder = OnlyPlaceholders(graph);
  std::vector<bool> seen(graph.groups().size()), judged(graph.groups().size()),
      internode(graph.groups().size());
  for (const LaunchInfo& launch : launches) {
    const size_t group = Index(launch.group);
    if (!seen[group]) groups.push_back(launch.group);
    seen[group] = true;
    if (!Gathers(graph.collective(launch.collective).kind) || judged[group]) continue;
    judged[group] = true;
    std::set<NodeId> all;
    bool each = true;
    for (const NodeId member : MembersOf(graph, plan, launch)) {
      all.insert(placeholder[Index(member)]);
      each = each && placeholder[Index(member)] >= 0;
    }
    all.erase(kNoNode);
    internode[group] = policy.each_parameter_counts ? each : all.size() == 1 && *all.begin() >= 0;
  }
  const Choice choice = context.options.bucket_exposed_first;
  exposed_first = choice == Choice::kAuto
                      ? internode
                      : std::vector<bool>(internode.size(), choice == Choice::kOn);
  skipped.resize(internode.size());
  for (size_t g = 0; g < internode.size(); ++g) {
    skipped[g] = context.options.bucket_only_internode && !internode[g];
  }
}

}  // namespace bucketd::overlap_bucket
