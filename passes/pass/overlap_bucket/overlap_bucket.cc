#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/pass/overlap_bucket/overlap_bucket_apply.h"
#include "passes/pass/overlap_bucket/overlap_bucket_find.h"
#include "passes/pass/overlap_bucket/overlap_bucket_memory.h"
#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/pass/overlap_bucket/overlap_bucket_policy.h"

namespace bucketd {
namespace overlap_bucket {

absl::StatusOr<std::unique_ptr<Relations>> MakeQuotient(const Model& model,
                                                        GroupTimelines& timeline) {
  return std::make_unique<Quotient>(model, timeline);
}

namespace {

constexpr absl::string_view kDependent = "they depend on one another";
constexpr absl::string_view kOverlapLost = "overlap would be lost";
constexpr absl::string_view kOverCap = "the next candidate would exceed the cap";
constexpr absl::string_view kOverMemory = "memory would exceed its limit";
constexpr absl::string_view kFar = "candidates stand too far away";
constexpr absl::string_view kHiding = "they hide other collectives";
constexpr absl::string_view kNoCandidate = "no further candidate";

// What ended the search for members of a bucket.
std::string WhyClosed(const Attempts& attempts, int64_t cap) {
  if (attempts.over_cap) return absl::StrCat(kOverCap, " of ", cap, " bytes");
  std::vector<std::string> refused;
  const auto add = [&](int32_t count, absl::string_view reason) {
    if (count > 0) refused.push_back(absl::StrCat(reason, " (", count, ")"));
  };
  add(attempts.dependent, kDependent);
  add(attempts.overlap_lost, kOverlapLost);
  add(attempts.hiding, kHiding);
  add(attempts.far, kFar);
  add(attempts.over_memory, kOverMemory);
  if (attempts.gave_up) return absl::StrCat("failures in a row: ", absl::StrJoin(refused, ", "));
  if (refused.empty()) return std::string(kNoCandidate);
  return absl::StrCat(kNoCandidate, "; refused: ", absl::StrJoin(refused, ", "));
}

// The one reason that kept most candidates away.
absl::string_view WhyAlone(const Attempts& attempts) {
  const std::pair<int32_t, absl::string_view> counts[] = {
      {attempts.overlap_lost, kOverlapLost},
      {attempts.dependent, kDependent},
      {attempts.over_memory, kOverMemory},
      {attempts.hiding, kHiding},
      {attempts.far, kFar},
      {attempts.over_cap ? 1 : 0, kOverCap},
  };
  const auto* most =
      std::max_element(std::begin(counts), std::end(counts),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
  return most->first > 0 ? most->second : kNoCandidate;
}

// Why buckets are as they are: "bucket-closed", one a bucket: nodes are its members. "left-alone",
// one a reason: nodes are the first members of the launches that it concerns. `plan` is the one
// that was searched.
void Report(const Model& model, const Plan& plan, const Found& found,
            std::vector<Diagnostic>& diagnostics) {
  const Graph& graph = model.context.graph;
  for (const FoundBucket& bucket : found.buckets) {
    Diagnostic closed;
    closed.code = "bucket-closed";
    closed.text = WhyClosed(bucket.attempts, model.context.options.overlap_bucket_cap_bytes);
    for (const int32_t l : bucket.launches) {
      const LaunchInfo& launch = model.launches[Index(l)];
      const std::vector<NodeId> members = MembersOf(graph, plan, launch);
      closed.nodes.insert(closed.nodes.end(), members.begin(), members.end());
    }
    diagnostics.push_back(std::move(closed));
  }
  std::vector<std::pair<absl::string_view, std::vector<NodeId>>> alone;  // by reason
  const auto add = [&](int32_t l, absl::string_view reason) {
    const auto it = std::find_if(alone.begin(), alone.end(),
                                 [&](const auto& entry) { return entry.first == reason; });
    const NodeId start = graph.collective(model.launches[Index(l)].collective).start;
    if (it == alone.end()) {
      alone.push_back({reason, {start}});
    } else {
      it->second.push_back(start);
    }
  };
  for (const int32_t l : found.hiding) add(l, kHiding);
  for (const FoundBucket& seed : found.alone) add(seed.launches.front(), WhyAlone(seed.attempts));
  for (auto& [reason, nodes] : alone) {
    std::sort(nodes.begin(), nodes.end());
    const std::string text = absl::StrCat(nodes.size(), " launches merge with no other: ", reason);
    diagnostics.push_back({"left-alone", text, std::move(nodes)});
  }
}

// Merges launches of one key where everything that hides them still stands between the merged
// start and the merged wait, and where no order becomes impossible.
class OverlapBucket : public Pass {
 public:
  explicit OverlapBucket(const OverlapBucketPolicy& upstream) : upstream_(upstream) {}

  absl::string_view name() const override { return "bucket-overlap"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (!context.options.overlap_bucketing) return false;
    RETURN_IF_ERROR(FillIn(context));
    const OverlapBucketPolicy& policy = context.options.upstream ? upstream_ : own_;
    ASSIGN_OR_RETURN(const Model model, Model::Make(context, policy, plan));
    MemoryFit fit(model, plan);
    while (true) {
      Result result;
      ASSIGN_OR_RETURN(result, Find(model, plan, fit.byte_limits()));
      if (policy.keeps_to_memory && fit.Shrink(result.found, result.applied)) continue;
      Report(model, plan, result.found, plan.diagnostics);
      fit.Report(plan.diagnostics);
      const bool changed = !result.found.buckets.empty() || plan.order != result.applied.order;
      plan.buckets = std::move(result.applied.buckets);
      plan.order = std::move(result.applied.order);
      context.overlap = std::move(result.applied.overlap);
      if (changed) context.launches.clear();
      return changed;
    }
  }

 private:
  struct Result {
    Found found;
    Applied applied;
  };

  // What tag-collectives leaves, where this pass runs alone.
  static absl::Status FillIn(PassContext& context) {
    if (context.constraints.pinned.size() != context.graph.collectives().size()) {
      ASSIGN_OR_RETURN(context.constraints, FindConstraints(context.graph));
    }
    if (context.directions.size() != context.graph.collectives().size()) {
      context.directions = CollectiveDirections(context.graph);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Result> Find(const Model& model, const Plan& plan,
                              absl::Span<const int64_t> byte_limits) const {
    GroupTimelines timeline(model);
    ASSIGN_OR_RETURN(const std::unique_ptr<Relations> relations,
                     model.policy.relations(model, timeline));
    Result result;
    result.found = FindBuckets(model, timeline, *relations, byte_limits);
    ASSIGN_OR_RETURN(result.applied, Apply(model, plan, result.found.buckets, *relations));
    return result;
  }

  const OverlapBucketPolicy own_ = {};
  const OverlapBucketPolicy& upstream_;
};

}  // namespace
}  // namespace overlap_bucket

std::unique_ptr<Pass> MakeOverlapBucketPass(const OverlapBucketPolicy& upstream) {
  return std::make_unique<overlap_bucket::OverlapBucket>(upstream);
}

}  // namespace bucketd
