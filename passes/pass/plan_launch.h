// What a plan launches as one, as the passes that schedule and merge launches see it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd {

// One a node: its place in the order. A bucket's members stand where it starts, their waits where
// it is waited for. -1: the node stands nowhere.
std::vector<int32_t> PlacesOf(const Graph& graph, absl::Span<const Bucket> buckets,
                              absl::Span<const Step> order);

// A bucket, or a collective that stands alone.
struct PlanLaunch {
  BucketId bucket = -1;
  CollectiveId collective = -1;  // if bucket < 0; of a bucket its first member's
  int64_t bytes = 0;  // all inputs and outputs; of an all-reduce, which writes where it reads, half
  int64_t est_ps = 0;  // on the wire alone
};

// `collective` counts if bucket < 0.
PlanLaunch LaunchOf(const Graph& graph, const Costs& costs, const Plan& plan, BucketId bucket,
                    CollectiveId collective);

// The start of a bucket's first collective, or of the one.
NodeId FirstStart(const Graph& graph, const Plan& plan, const Launch& launch);

// The starts of a bucket's collectives, or of the one.
std::vector<NodeId> MembersOf(const Graph& graph, const Plan& plan, const PlanLaunch& launch);

}  // namespace bucketd
