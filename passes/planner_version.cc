#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "13";

}  // namespace bucketd
