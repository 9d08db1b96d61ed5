// What the overlap scheduler reads: the steps of a plan by their place in the order that scheduling
// starts from, so that every walk is over flat arrays. Internal to the scheduler.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

#include "passes/base/csr.h"
#include "passes/base/index.h"
#include "passes/base/types.h"
#include "passes/pass/overlap/overlap_policy.h"
#include "passes/pass/pass.h"
#include "passes/pass/plan_launch.h"
#include "passes/plan/plan.h"

namespace bucketd::overlap {

// Place of a step in the order before scheduling.
using Position = int32_t;
inline constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

enum class StepKind : uint8_t { kOther, kPlaceholder, kCompute, kStart, kWait, kOutput };

// A launch with a wait.
struct LaunchSpan : PlanLaunch {
  Position start = -1, wait = -1;
  int32_t group = -1;      // dense, over groups that launches use
  int32_t key = -1;        // launches of equal keys are wanted together
  int32_t mate_key = -1;   // a launch in flight with the same one saves the latency; -1: none does
  int64_t latency_ps = 0;  // what it would take without any bytes
  // False: scheduled where its turn comes, hides nowhere. Its wait needs more than its start, or
  // torch would not know it.
  bool moves = true;
};

class OverlapGraph {
 public:
  // REQUIRES: plan.order is legal. O(nodes + edges).
  OverlapGraph(const PassContext& context, const OverlapPolicy& policy, const Plan& plan);

  int32_t size() const { return static_cast<int32_t>(kind_.size()); }
  // Each once, ascending; order that is kept for other reasons than data counts as data.
  absl::Span<const Position> parents(Position v) const { return parents_.of(v); }
  int64_t edges() const { return static_cast<int64_t>(parents_.all.size()); }
  absl::Span<const Position> users(Position v) const { return users_.of(v); }
  // Of a bucket's start its members', of its wait their waits.
  absl::Span<const NodeId> nodes(Position v) const { return nodes_.of(v); }

  // kStart and kWait only for launches that move.
  StepKind kind(Position v) const { return kind_[Index(v)]; }
  int32_t launch_of(Position v) const { return launch_of_[Index(v)]; }  // -1: none
  // Time in which it hides communication; 0 for what is no kernel.
  int64_t window_ps(Position v) const { return window_ps_[Index(v)]; }
  // The first compute node, by number, that needs v; kNever: none, v is off the compute path.
  int32_t first_compute(Position v) const { return first_compute_[Index(v)]; }
  bool off_path(Position v) const { return first_compute(v) == kNever; }
  bool feeds_reduce_scatter(Position v) const { return feeds_scatter_[Index(v)]; }
  // The last compute node before v that v needs, by position; -1: none.
  Position last_compute(Position v) const { return last_compute_[Index(v)]; }
  // Only cheap steps with one user and one input lie between v and a launch.
  bool leads_to_launch(Position v) const { return leads_to_launch_[Index(v)]; }
  // An op that the main loop alone may schedule: communication that is no launch that moves.
  bool stays_in_loop(Position v) const { return stays_in_loop_[Index(v)]; }

  int32_t compute_count() const { return static_cast<int32_t>(compute_.size()); }
  absl::Span<const Position> compute() const { return compute_; }

  // By first wait.
  absl::Span<const LaunchSpan> launches() const { return launches_; }
  int32_t group_count() const { return groups_; }
  int32_t key_count() const { return keys_; }

 private:
  void AddSteps(const PassContext& context, const OverlapPolicy& policy, const Plan& plan);
  void AddEdges(const PassContext& context, const Plan& plan);
  void AddLaunches(const PassContext& context, const OverlapPolicy& policy, const Plan& plan);
  void AddKeys(const PassContext& context, const OverlapPolicy& policy);
  void ScanForward();
  void ScanBackward(const PassContext& context);

  Csr parents_, users_, nodes_;
  std::vector<StepKind> kind_;
  std::vector<int32_t> launch_of_;
  std::vector<int64_t> window_ps_;
  std::vector<int32_t> first_compute_;
  std::vector<Position> last_compute_;
  std::vector<bool> feeds_scatter_, leads_to_launch_, stays_in_loop_, cheap_;
  std::vector<Position> compute_;
  std::vector<LaunchSpan> launches_;
  int32_t groups_ = 0, keys_ = 0;
};

}  // namespace bucketd::overlap
