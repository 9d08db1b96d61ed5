#include "passes/pass/overlap_bucket/overlap_bucket_report.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/index.h"

namespace bucketd::overlap_bucket {
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

}  // namespace

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

}  // namespace bucketd::overlap_bucket
