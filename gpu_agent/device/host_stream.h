// A stream of host memory: a thread that runs what was enqueued, first in, first out.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

// The semantics are stream.h's. Its events are stamped by the steady clock when its thread reaches
// them, and those of all host streams of a process compare. Destruction waits for the closure that
// runs now and drops the others; their events end with CANCELLED.
class HostStream final : public Stream {
 public:
  // As StartThread.
  static absl::StatusOr<std::unique_ptr<HostStream>> Start(const std::string& name);

  // Runs on the stream's thread. An error is the stream's first error.
  void Enqueue(std::function<absl::Status()> work);
  std::shared_ptr<Event> Record() override;
  // An event that is not of host memory ends the stream with INVALID_ARGUMENT.
  void After(std::shared_ptr<Event> event) override;

 private:
  // Reads and sets the stream's first error; returns soon once a stop is requested.
  using Item = std::function<void(absl::Status& status, const std::stop_token& stop)>;

  HostStream() = default;
  void Push(Item item);
  void Work(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any pushed_;
  std::deque<Item> items_;
  std::jthread thread_;  // the last member: it ends before what it works on
};

}  // namespace bucketd::agent
