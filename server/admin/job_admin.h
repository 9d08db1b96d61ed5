// Rank agreement as the Admin service shows and changes it.
#pragma once

#include <vector>

#include "server/admin/admin.h"
#include "server/jobs/agreement.h"
#include "server/jobs/pins.h"

namespace bucketd {

// Scopes of jobs that this server has, in any order.
std::vector<v1::JobStatus> JobsOf(const Agreement& agreement);

// `hooks`, whose forget_elsewhere is set where there are other replicas, gains pin_job and
// unpin_job. Both others outlive them.
void AddJobHooks(Agreement& agreement, Pins& pins, AdminHooks& hooks);

}  // namespace bucketd
