// Jobs at all other replicas, as operators see and release them at one. Who does not answer within
// two seconds is named. Thread-safe.
#pragma once

#include <functional>

#include "proto/peer.pb.h"
#include "server/admin/admin.h"
#include "server/cluster/membership.h"
#include "server/rpc/peer_calls.h"

namespace bucketd {

class PeerJobs {
 public:
  // Both outlive this.
  PeerJobs(Membership& members, PeerCalls& peers) : members_(members), peers_(peers) {}

  // Blocks until all have answered. The others are those that were seen last.
  JobsElsewhere Show(const v1::ShowJobsRequest& asked);
  // Blocks on the store: whoever has come since takes part. Then `done` exactly once, here or on
  // another thread.
  void Forget(const v1::ForgetJobsRequest& jobs, std::function<void(ForgottenElsewhere)> done);
  // The same, and waits for it.
  ForgottenElsewhere Forget(const v1::ForgetJobsRequest& jobs);

 private:
  Membership& members_;
  PeerCalls& peers_;
};

}  // namespace bucketd
