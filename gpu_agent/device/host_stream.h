// A stream of host memory: one thread that runs what was enqueued, first in, first out. It sleeps
// while there is nothing to do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

// The semantics are stream.h's. Its events are stamped by the steady clock when the thread reaches
// them, and those of all host streams of a process compare.
class HostStream final : public Stream {
 public:
  // RESOURCE_EXHAUSTED without a thread. The thread takes no signals of the program.
  static absl::StatusOr<std::unique_ptr<HostStream>> Start(const std::string& name);
  // Waits for the closure that runs now and drops the others; their events end with CANCELLED.
  ~HostStream() override;

  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Runs on the stream's thread. An error is the stream's first error.
  void Enqueue(std::function<absl::Status()> work);
  std::shared_ptr<Event> Record() override;
  // An event that is not of host memory ends the stream with INVALID_ARGUMENT.
  void After(std::shared_ptr<Event> event) override;

 private:
  class Queue;
  explicit HostStream(std::shared_ptr<Queue> queue);

  std::shared_ptr<Queue> queue_;  // events that a stream waits for know it
  std::thread thread_;
};

}  // namespace bucketd::agent
