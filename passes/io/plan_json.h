// Plan files (passes/plan/PLAN_FORMAT.md): JSON that the referee reads as it stands, with
// everything else a plan says beside it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd {

std::string PlanToJson(const Graph& graph, const Plan& plan);
// INVALID_ARGUMENT names the field.
absl::StatusOr<Plan> PlanFromJson(absl::string_view json);

}  // namespace bucketd
