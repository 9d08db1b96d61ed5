#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "10";

}  // namespace bucketd
