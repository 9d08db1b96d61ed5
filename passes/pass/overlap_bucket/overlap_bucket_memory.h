// Keeps found buckets within the memory limit. Internal to the bucketer.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "passes/pass/overlap_bucket/overlap_bucket_apply.h"
#include "passes/pass/overlap_bucket/overlap_bucket_find.h"
#include "passes/pass/overlap_bucket/overlap_bucket_model.h"

namespace bucketd::overlap_bucket {

// Of a limit on bytes a launch, lowered round by round where a bucket is alive while memory is
// above the limit. Behind kRounds nothing merges any more, and the plan is what it was before: a
// plan that came with more memory than the limit allows is not made worse.
class MemoryFit {
 public:
  MemoryFit(const Model& model, const Plan& plan);

  // One a launch, for FindBuckets().
  absl::Span<const int64_t> byte_limits() const { return byte_limits_; }
  // Lowers limits if the plan needs too much memory; then buckets have to be found anew. One
  // simulation, O(nodes + edges).
  bool Shrink(const Found& found, const Applied& applied);
  void Report(std::vector<Diagnostic>& diagnostics) const;

 private:
  static constexpr int kRounds = 8;

  std::vector<size_t> Culprits(const Plan& plan, const std::vector<int64_t>& live,
                               const Applied& applied) const;

  const Model& model_;
  const Plan& before_;
  int64_t limit_ = -1;
  int round_ = 0;
  std::vector<int64_t> byte_limits_;
};

}  // namespace bucketd::overlap_bucket
