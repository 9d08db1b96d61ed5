#include "server/store/crash_point.h"

namespace bucketd {

void CrashPoint(const char*) {}

}  // namespace bucketd
