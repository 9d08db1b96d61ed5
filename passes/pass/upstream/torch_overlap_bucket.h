// The overlap-preserving bucketer as torch 2.13 does it.
#pragma once

#include "passes/pass/overlap_bucket/overlap_bucket_policy.h"

namespace bucketd::upstream {

// Every edge in full, with all of torch's defects; no eye on memory, since what is compared is what
// torch does.
overlap_bucket::Policy TorchOverlapBucket();

}  // namespace bucketd::upstream
