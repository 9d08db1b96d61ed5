// Rank agreement as the Admin service shows and changes it.
#pragma once

#include "server/admin/admin.h"
#include "server/jobs/agreement.h"
#include "server/jobs/pins.h"

namespace bucketd {

// `hooks` gains jobs, pin_job and unpin_job. Both outlive them.
void AddJobHooks(Agreement& agreement, Pins& pins, AdminHooks& hooks);

}  // namespace bucketd
