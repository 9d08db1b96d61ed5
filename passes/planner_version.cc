#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "15";

}  // namespace bucketd
