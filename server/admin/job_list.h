// Which jobs an operator asked for, of one server or of several replicas.
#pragma once

#include <vector>

#include "proto/admin.pb.h"
#include "proto/peer.pb.h"

namespace bucketd {

// Most jobs in one answer.
inline constexpr int32_t kMostJobs = 10'000;

// Keeps what is asked for: those that wait first, the longest first. Whether there are more than
// the limit.
bool KeepAsked(const v1::ShowJobsRequest& asked, std::vector<v1::JobStatus>& jobs);

// Replicas remember jobs that have moved on. Keeps each scope once, as it stands where its job is:
// in the generation that the holder of the job's lease has, else in the latest; and of those where
// ranks wait, else where the lease is held.
void KeepOncePerScope(std::vector<v1::JobStatus>& jobs);

}  // namespace bucketd
