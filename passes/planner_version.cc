#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "17";

}  // namespace bucketd
