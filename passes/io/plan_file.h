// Plan files of either form: JSON (passes/plan/PLAN_FORMAT.md) or a serialised bucketd.v1.Plan.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/plan/plan.h"

namespace bucketd {

// What a file says about a bucket's collectives; "" where it says nothing. Taken as it stands:
// whoever has the graph asks the graph.
struct StatedBucket {
  std::string kind, mesh_dim;
};

struct PlanFile {
  Plan plan;
  std::vector<StatedBucket> stated;  // one a bucket
};

// INVALID_ARGUMENT names the field; control characters in what people read are one reason.
absl::StatusOr<PlanFile> ReadPlan(absl::string_view bytes);
// NOT_FOUND if there is no such file.
absl::StatusOr<PlanFile> ReadPlanFile(const std::string& path);

}  // namespace bucketd
