#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "18";

}  // namespace bucketd
