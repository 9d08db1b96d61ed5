// The process group of one rank in host memory: every collective is a copy. What a plan costs
// without a wire, and the backend where there is nobody else.
#pragma once

#include <memory>
#include <string>

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/comm/health.h"

namespace bucketd::agent {

class LoopbackCommunicator final : public Communicator {
 public:
  LoopbackCommunicator() : health_(std::make_shared<Health>()) {}
  // What is still enqueued ends with ABORTED.
  ~LoopbackCommunicator() override { Abort("the communicator was destroyed"); }

  // INVALID_ARGUMENT for a stream that is not of host memory.
  absl::Status Launch(Stream& stream, absl::Span<const Collective> group) override;
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string ToString() const override { return "loopback of 1 rank"; }
  absl::Status health() const override { return health_->status(); }
  void Abort(const std::string& why) override { health_->Fail(absl::AbortedError(why)); }

 private:
  std::shared_ptr<Health> health_;  // shared with what is enqueued
};

}  // namespace bucketd::agent
