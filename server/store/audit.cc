#include "server/store/audit.h"

namespace bucketd {

Actor ServerItself() { return {"bucketd", "", kAllTenants}; }

}  // namespace bucketd
