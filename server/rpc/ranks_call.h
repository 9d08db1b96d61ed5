// A GetPlan call that names a job, to the agreement of this server.
#pragma once

#include "absl/status/statusor.h"

#include "server/base/byte_room.h"
#include "server/base/clock.h"
#include "server/jobs/agreement.h"
#include "server/jobs/machine/job_call.h"
#include "server/plans/plan_request.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/service_parts.h"

namespace bucketd::v1 {
class GetPlanRequest;
}  // namespace bucketd::v1

namespace bucketd {

// `message` has its tenant filled in. JOB_INVALID names the field; the rest of the request is
// looked at by whoever has the job. Who called is left open.
absl::StatusOr<RanksCall> ReadRanksCall(const v1::GetPlanRequest& message);

// `done` exactly once, here or on another thread. 0: it has been answered. `job` and `message` are
// one call's, whose request `held` holds.
Agreement::CallId AskAgreement(const ServiceParts& parts, JobCall job, v1::GetPlanRequest& message,
                               Asker asker, ByteRoom::Held held, SteadyTime deadline,
                               Agreement::Done done);
Agreement::CallId AskAgreement(const ServiceParts& parts, const RanksCall& call,
                               Agreement::Done done);

}  // namespace bucketd
