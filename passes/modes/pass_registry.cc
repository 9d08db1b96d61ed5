#include "passes/modes/pass_registry.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/pass/passes.h"
#include "passes/pass/upstream/torch_greedy.h"
#include "passes/pass/upstream/torch_overlap.h"

namespace bucketd {
namespace {

std::unique_ptr<Pass> MakeSearch();
std::unique_ptr<Pass> MakeGreedyBucket() { return MakeGreedyBucketPass(upstream::MakeTorchGreedy); }
std::unique_ptr<Pass> MakePreBucket() { return MakePreBucketPass(upstream::MakeTorchGreedy); }
std::unique_ptr<Pass> MakeScheduleOverlap() {
  return MakeScheduleOverlapPass(upstream::TorchOverlap);
}
std::unique_ptr<Pass> MakeOverlapBucket() {
  return MakeOverlapBucketPass(upstream::TorchOverlapBucket());
}

constexpr PassInfo kPasses[] = {
    {"tag-collectives", "find the collectives of parameters and gradients", MakeTagCollectivesPass},
    {"find-blocks", "find transformer blocks in the names of parameters", MakeFindBlocksPass},
    {"read-entries", "take the units that the caller names", MakeReadEntriesPass},
    {"bucket-units", "merge each unit's collectives", MakeBucketUnitsPass},
    {"payload-order", "order payloads as eager training registers parameters",
     MakePayloadOrderPass},
    {"greedy-bucket", "merge by bytes and topological span", MakeGreedyBucket},
    {"pre-bucket", "the same, before a scheduler", MakePreBucket},
    {"prefetch", "start gathers early and wait for scatters late, within memory", MakePrefetchPass},
    {"dense-regions", "start launches in the dense parts of neighbouring layers",
     MakeDenseRegionsPass},
    {"schedule-overlap", "order the step so that compute hides communication", MakeScheduleOverlap},
    {"bucket-overlap", "merge scheduled collectives without losing overlap", MakeOverlapBucket},
    {"search", "the best plan that a search finds, starting from what other modes make",
     MakeSearch},
};

constexpr absl::string_view kBlockPasses[] = {"tag-collectives", "find-blocks", "bucket-units",
                                              "payload-order",   "prefetch",    "dense-regions"};
constexpr absl::string_view kManualPasses[] = {"tag-collectives", "read-entries", "bucket-units",
                                               "payload-order",   "prefetch",     "dense-regions"};
constexpr absl::string_view kGreedyPasses[] = {"tag-collectives", "greedy-bucket", "payload-order",
                                               "prefetch"};
constexpr absl::string_view kOverlapPasses[] = {"tag-collectives", "pre-bucket", "schedule-overlap",
                                                "bucket-overlap", "payload-order"};

// Kernels ahead of its use that a gather may start, where few are enough and many take the wire
// from what is needed first.
constexpr int32_t kNear = 10;

constexpr absl::string_view kSearchPasses[] = {"tag-collectives", "search", "payload-order"};

constexpr ModeInfo kModes[] = {
    {"transformer_block", "one bucket a transformer block, found by itself",
     absl::MakeConstSpan(kBlockPasses), true},
    {"manual", "one bucket an entry of a list of modules", absl::MakeConstSpan(kManualPasses)},
    {"greedy", "buckets by bytes and topological span", absl::MakeConstSpan(kGreedyPasses), true},
    {"overlap", "order by what compute can hide, then merge what stays hidden",
     absl::MakeConstSpan(kOverlapPasses), true},
    {"auto", "the best plan that a search finds, never worse than the others but manual",
     absl::MakeConstSpan(kSearchPasses)},
    {"none", "program order, untouched", {}},
};

// nullptr if no row has this name.
template <typename Table>
const auto* FindIn(const Table& table, absl::string_view name) {
  const auto* const found =
      absl::c_find_if(table, [&](const auto& row) { return row.name == name; });
  return found == std::end(table) ? nullptr : found;
}

std::unique_ptr<Pass> MakeSearch() { return MakeSearchPass(ModesToStartFrom()); }

}  // namespace

absl::Span<const PassInfo> AllPasses() { return kPasses; }

absl::StatusOr<std::unique_ptr<Pass>> MakePass(absl::string_view name) {
  if (const PassInfo* const pass = FindIn(kPasses, name)) return pass->make();
  std::vector<absl::string_view> known;
  for (const PassInfo& pass : kPasses) known.push_back(pass.name);
  return absl::NotFoundError(
      absl::StrCat("no pass is called ", name, "; known: ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<Pipeline> MakePipeline(absl::Span<const absl::string_view> passes) {
  std::vector<std::unique_ptr<Pass>> made;
  for (const absl::string_view name : passes) {
    ASSIGN_OR_RETURN(std::unique_ptr<Pass> pass, MakePass(name));
    made.push_back(std::move(pass));
  }
  return Pipeline(std::move(made));
}

absl::Span<const ModeInfo> AllModes() { return kModes; }

std::vector<OtherMode> ModesToStartFrom() {
  std::vector<OtherMode> others;
  const auto add = [&](const ModeInfo& mode, OtherMode::Change change) {
    std::vector<std::unique_ptr<Pass>> passes;
    for (const absl::string_view name : mode.passes) {
      // Mode auto has run it for all. Payloads are ordered in each mode: where the links of a group
      // differ, the first member's decides what a bucket takes.
      if (name != "tag-collectives") passes.push_back(FindIn(kPasses, name)->make());
    }
    others.push_back({mode.name, Pipeline(std::move(passes)), change});
  };
  for (const ModeInfo& mode : kModes) {
    if (mode.tried_by_auto) add(mode, nullptr);
  }
  const ModeInfo& overlap = *FindMode("overlap");
  add(overlap, [](PlanOptions& options) { options.max_compute_prefetch = kNear; });
  add(overlap,
      [](PlanOptions& options) { options.pre_bucketing = options.overlap_bucketing = false; });
  return others;
}

const ModeInfo* FindMode(absl::string_view name) { return FindIn(kModes, name); }

}  // namespace bucketd
