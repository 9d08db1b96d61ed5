// Why a plan is as it is, in sentences.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/cli/json.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/pass/constraints.h"
#include "passes/pass/tags.h"
#include "passes/plan/plan.h"

namespace bucketd::ctl {

struct BucketFacts {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::string beside, ends;  // what runs beside it; why it ends, "" if nobody said
  int64_t wire_ps = 0, exposed_ps = 0;
};

// Collectives that are in no bucket for one reason.
struct AloneGroup {
  size_t count = 0;
  std::string why, example;
};

class Explainer {
 public:
  // REQUIRES: VerifyPlan(graph, plan).ok(). Keeps references to all three.
  static absl::StatusOr<Explainer> Make(const Graph& graph, const Plan& plan, const Costs& costs);

  // A collective as a person names it: an id (12, %12), a node's name, a parameter's FQN, or
  // bucket:K for that bucket's first member. OUT_OF_RANGE says what there is: a parameter may have
  // several collectives.
  absl::StatusOr<CollectiveId> Find(const std::string& name) const;

  BucketId BucketOf(CollectiveId c) const { return bucket_of_[static_cast<size_t>(c)]; }

  // What each bucket is, how much of it is hidden and where, and why it ends where it does.
  std::vector<BucketFacts> Facts() const;
  std::string Buckets(const std::vector<BucketFacts>& facts) const;
  // What stays alone, by reason.
  std::vector<AloneGroup> Alone() const;
  // One collective: what it is, its bucket or why it has none.
  std::string One(CollectiveId c) const;
  // Two: what they share; or what keeps them apart, and what putting them together would do.
  std::string Two(CollectiveId a, CollectiveId b) const;

 private:
  Explainer(const Graph& graph, const Plan& plan, const Costs& costs);

  std::string Describe(CollectiveId c) const;
  std::string BucketName(BucketId b) const;
  // Why it can be in no bucket at all; empty if it could.
  std::vector<std::string> NeverMerged(CollectiveId c) const;
  // What forbids one bucket for both; empty if nothing does.
  std::vector<std::string> Forbidden(CollectiveId a, CollectiveId b) const;
  // What the planner noted about the bucket or collective.
  std::vector<std::string> Notes(CollectiveId c) const;
  // A path of data or order edges from one node to a later one; empty if there is none.
  std::vector<NodeId> Path(NodeId from, NodeId to) const;
  std::string PathText(const std::vector<NodeId>& path) const;
  // What the step would be with both buckets in one, at the best place that is legal.
  std::string Together(CollectiveId a, CollectiveId b) const;
  Bucket Merged(CollectiveId a, CollectiveId b) const;
  // Of `merged` with the order for each start and wait, the fastest that is legal, against the
  // plan.
  std::string BestOf(Plan merged,
                     absl::FunctionRef<std::vector<Step>(size_t start, size_t wait)> order,
                     const std::vector<size_t>& starts, const std::vector<size_t>& waits) const;

  const Graph& graph_;
  const Plan& plan_;
  const Costs& costs_;
  Constraints constraints_;
  Tags tags_;
  std::vector<Direction> directions_;
  std::vector<BucketId> bucket_of_;  // one a collective; -1: none
};

// A line each.
std::string AloneText(const std::vector<AloneGroup>& groups);
// A list.
Json AloneJson(const std::vector<AloneGroup>& groups);

}  // namespace bucketd::ctl
