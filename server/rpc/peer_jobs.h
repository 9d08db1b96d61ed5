// Jobs at all other replicas, as operators see and release them at one. Who does not answer within
// two seconds is named. Thread-safe.
#pragma once

#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "proto/peer.pb.h"
#include "server/admin/admin.h"
#include "server/base/clock.h"
#include "server/cluster/membership.h"
#include "server/rpc/peer_calls.h"

namespace bucketd {

class PeerJobs {
 public:
  // Both outlive this.
  PeerJobs(Membership& members, PeerCalls& peers) : members_(members), peers_(peers) {}

  // Blocks until all have answered. The others are those that were seen last.
  JobsElsewhere Show(const v1::ShowJobsRequest& asked);
  // May block on the store: whoever has come since takes part, if this one has not looked within
  // Membership::period(), or if an operator asks. Then `done` exactly once, here or on another
  // thread.
  void Forget(const v1::ForgetJobsRequest& jobs, std::function<void(ForgottenElsewhere)> done);
  // The same, and waits for it.
  ForgottenElsewhere Forget(const v1::ForgetJobsRequest& jobs);

 private:
  bool MayBeat();

  Membership& members_;
  PeerCalls& peers_;
  absl::Mutex mutex_;
  std::optional<SteadyTime> beat_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
