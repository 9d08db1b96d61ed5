// What the overlap-preserving bucketer knows of a schedule: every launch, where it stands, what
// hides it. Internal to the bucketer.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"

#include "passes/pass/overlap_bucket/overlap_bucket_policy.h"
#include "passes/pass/pass.h"
#include "passes/pass/plan_launch.h"
#include "passes/pass/schedule.h"
#include "passes/plan/plan.h"

namespace bucketd::overlap_bucket {

// Positions are indices into the order; items are those of ItemGraph.
struct LaunchInfo : PlanLaunch {
  int32_t start_item = -1, wait_item = -1;
  int32_t start_position = -1, wait_position = -1;
  GroupId group = -1;
  int32_t key = -1;  // launches of equal keys may merge; -1: this one never does
  int64_t exposed_ps = 0;
  std::vector<int32_t> hidden_by = {};  // items, by position
  int32_t first_hiding = std::numeric_limits<int32_t>::max(), last_hiding = -1;  // positions
  // Its start or wait hides a launch that is hidden altogether, or one of its own group.
  bool hides = false;

  bool fully_hidden() const { return exposed_ps == 0; }
};

struct Model {
  // INVALID_ARGUMENT: context.overlap names no launch of the plan, names one twice, or a node that
  // does not stand between a launch's start and its wait (see hidden_inside_only). O(nodes + edges
  // + hiding nodes). The context and the policy outlive it.
  static absl::StatusOr<Model> Make(const PassContext& context, const OverlapBucketPolicy& policy,
                                    const Plan& plan);

  int32_t items() const { return items_of_plan.size(); }

  const PassContext& context;
  const OverlapBucketPolicy& policy;
  ItemGraph items_of_plan;
  std::vector<int32_t> order;          // items
  std::vector<int32_t> position;       // of an item; -1: it is none
  std::vector<int32_t> compute;        // items of compute nodes, by position
  std::vector<int32_t> compute_index;  // of an item in `compute`; -1: it is none
  std::vector<LaunchInfo> launches;    // by the first wait before scheduling
  std::vector<int32_t> launch_of;      // of an item: what it starts or waits for; -1: none
  std::vector<GroupId> groups;         // those of launches, by first launch
  std::vector<bool> exposed_first;     // of a group: whether buckets begin with what is exposed
  std::vector<bool> skipped;           // of a group: whether it is left alone

 private:
  Model(const PassContext& c, const OverlapBucketPolicy& p, const Plan& plan)
      : context(c), policy(p), items_of_plan(c.graph, c.constraints, plan.buckets) {}
  absl::Status AddLaunches(const Plan& plan);
  absl::Status AddOverlap();
  void AddKeys(const Plan& plan);
  void AddGroups(const Plan& plan);
};

}  // namespace bucketd::overlap_bucket
