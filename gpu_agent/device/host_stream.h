// A stream of host memory: a queue that runs what was enqueued, first in, first out, on one thread
// at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/device/host_threads.h"
#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

// Copies of so many bytes are brief: about 3 us, where waking a thread takes 5 to 10.
inline constexpr int64_t kBriefBytes = 32 << 10;

// The semantics are stream.h's. Its events are stamped by the steady clock when a thread reaches
// them, and those of all host streams of a process compare.
class HostStream final : public Stream {
 public:
  // Adds a thread to `threads`. RESOURCE_EXHAUSTED without one.
  static absl::StatusOr<std::unique_ptr<HostStream>> Start(const std::string& name,
                                                           std::shared_ptr<HostThreads> threads);
  // Waits for the closure that runs now and drops the others; their events end with CANCELLED.
  ~HostStream() override;

  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Runs on one of the threads. An error is the stream's first error.
  void Enqueue(std::function<absl::Status()> work);
  // Work that waits for nothing and takes no longer than waking a thread does: it may run within
  // this call, or on any thread that reaches an event which it comes after.
  void EnqueueBrief(std::function<absl::Status()> work);
  std::shared_ptr<Event> Record() override;
  // An event that is not of host memory ends the stream with INVALID_ARGUMENT.
  void After(std::shared_ptr<Event> event) override;
  void Hold() override;
  void Release() override;

 private:
  class Queue;
  explicit HostStream(std::shared_ptr<Queue> queue);

  std::shared_ptr<Queue> queue_;  // events that it waits for know it
};

}  // namespace bucketd::agent
