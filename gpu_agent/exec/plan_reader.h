// From a plan's file to what an executor needs of it. Apart from the rest, since whoever runs plans
// inside of another program brings no protobuf with it.
#pragma once

#include "absl/status/statusor.h"

#include "gpu_agent/exec/plan_spec.h"
#include "passes/io/plan_file.h"

namespace bucketd::agent {

// Reads offsets back into element counts. A plan is untrusted: INVALID_ARGUMENT names the field and
// what was expected of it, for offsets that overlap or lie between elements, sizes that the group
// does not divide, names that are none, an order that does not start and wait for each bucket once.
absl::StatusOr<PlanSpec> SpecOf(const PlanFile& file);

}  // namespace bucketd::agent
