// The passes, one factory each, for the registry. What each does stands at its definition. Those
// that are told how torch does it stand in greedy/greedy_policy.h, overlap/overlap_policy.h and
// overlap_bucket/overlap_bucket_policy.h.
#pragma once

#include <memory>

#include "passes/pass/pass.h"

namespace bucketd {

std::unique_ptr<Pass> MakeTagCollectivesPass();
std::unique_ptr<Pass> MakeFindBlocksPass();
std::unique_ptr<Pass> MakeReadEntriesPass();
std::unique_ptr<Pass> MakeBucketUnitsPass();
std::unique_ptr<Pass> MakePayloadOrderPass();
std::unique_ptr<Pass> MakePrefetchPass();
std::unique_ptr<Pass> MakeDenseRegionsPass();

}  // namespace bucketd
