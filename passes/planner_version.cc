#include "passes/planner.h"

namespace bucketd {

const char kPlannerVersion[] = "16";

}  // namespace bucketd
