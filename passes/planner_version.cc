#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "11";

}  // namespace bucketd
