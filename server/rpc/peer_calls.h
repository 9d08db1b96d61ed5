// Calls to other replicas. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "passes/base/digest.h"
#include "passes/ir/graph.h"
#include "proto/peer.pb.h"
#include "server/base/clock.h"

namespace bucketd {

class PeerCalls {
 public:
  // One that is under way.
  class Call {
   public:
    virtual ~Call() = default;
    // Its `done` hears of it, soon.
    virtual void Cancel() = 0;
  };
  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  virtual ~PeerCalls() = default;

  // Each calls `done` exactly once: on another thread, or once Stop has been called at once on this
  // one. Errors of Forward are the transport's: nobody has answered.
  virtual std::shared_ptr<Call> Forward(const std::string& address, v1::ForwardRequest request,
                                        SteadyTime deadline, Done<v1::ForwardReply> done) = 0;
  virtual void ShowJobs(const std::string& address, v1::ShowJobsRequest request,
                        SteadyTime deadline, Done<v1::ShowJobsReply> done) = 0;
  virtual void ForgetJobs(const std::string& address, v1::ForgetJobsRequest request,
                          SteadyTime deadline, Done<v1::ForgetJobsReply> done) = 0;
  // Blocks until the replica has the graph, or had it.
  virtual absl::Status BringGraph(const std::string& address, const std::string& tenant,
                                  const Digest& digest, const Graph& graph,
                                  SteadyTime deadline) = 0;
  // Whoever is not among these is not called any more for now.
  virtual void KeepOnly(const std::set<std::string>& addresses) = 0;
  // Cancels all, and returns when the last of them has been told. None come after that.
  virtual void Stop() = 0;
};

}  // namespace bucketd
