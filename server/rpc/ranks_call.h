// A GetPlan call that names a job, to the agreement of this server.
#pragma once

#include "absl/status/statusor.h"

#include "server/jobs/agreement.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/service_parts.h"

namespace bucketd::v1 {
class GetPlanRequest;
}  // namespace bucketd::v1

namespace bucketd {

// `message` has its tenant filled in. JOB_INVALID names the field; the rest of the request is
// looked at by whoever has the job. Who called is left open.
absl::StatusOr<RanksCall> ReadRanksCall(const v1::GetPlanRequest& message);

// `done` exactly once, here or on another thread. 0: it has been answered.
Agreement::CallId AskAgreement(const ServiceParts& parts, const RanksCall& call,
                               Agreement::Done done);

}  // namespace bucketd
