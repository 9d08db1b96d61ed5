#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "12";

}  // namespace bucketd
