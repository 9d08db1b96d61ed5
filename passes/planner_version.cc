#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "14";

}  // namespace bucketd
