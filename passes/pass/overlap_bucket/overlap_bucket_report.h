// Says why buckets are as they are. Internal to the bucketer.
#pragma once

#include <vector>

#include "passes/pass/overlap_bucket/overlap_bucket_find.h"
#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/plan/plan.h"

namespace bucketd::overlap_bucket {

// "bucket-closed", one a bucket: nodes are its members. "left-alone", one a reason: nodes are the
// first members of the launches that it concerns. `plan` is the one that was searched.
void Report(const Model& model, const Plan& plan, const Found& found,
            std::vector<Diagnostic>& diagnostics);

}  // namespace bucketd::overlap_bucket
