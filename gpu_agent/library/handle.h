// What stands behind the C interface's handles.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <sys/types.h>

#include "gpu_agent/device/module_loader.h"
#include "gpu_agent/exec/executor.h"
#include "gpu_agent/library/bucket_executor.h"
#include "gpu_agent/library/reporting.h"

namespace bucketd::agent {

// The process that made a handle. A child that it forked has a copy of the handle, none of the
// threads behind it, whatever locks they held, and the same sockets and shared memory: there a
// handle is left alone, and never freed.
class Maker {
 public:
  bool here() const { return getpid() == process_; }
  // FAILED_PRECONDITION.
  absl::Status Check() const;

 private:
  const pid_t process_ = getpid();
};

// A run of a bucket, until it was waited for or joined.
struct Run {
  int32_t bucket = 0;
  TicketPtr ticket;
  absl::Duration exposed;
  bool captured = false;  // into a graph
};

// A run that a stream waits for: `reached` and `left` are when it came to the wait and went on;
// null where nobody wants to know.
struct Joined {
  int32_t bucket = 0;
  TicketPtr ticket;
  std::shared_ptr<Event> reached, left;
};

}  // namespace bucketd::agent

struct bucket_telemetry {
  const bucketd::agent::Maker maker{};
  std::unique_ptr<bucketd::agent::RingWriter> ring;
};

struct bucket_executor {
  ~bucket_executor();
  // Of joined runs, once they are done, on a thread that only looks: the trainer's then know it,
  // and their events serve the next runs. They are reported; the newest are lost where too many are
  // under way, or no thread is to be had, and so are those that nobody has seen done when it stops.
  void NoteWhenDone(bucketd::agent::Joined run);
  void StopNoting();

  const bucketd::agent::Maker maker{};
  std::unique_ptr<bucketd::agent::Device> device;
  const bucketd::agent::GpuModule* module = nullptr;  // null: the host
  std::unique_ptr<bucketd::agent::Executor> executor;
  std::mutex mutex;
  int64_t last_ticket = 0;
  std::map<int64_t, bucketd::agent::Run> runs;           // by ticket
  std::unique_ptr<bucketd::agent::Reporting> reporting;  // null: to nobody

 private:
  void Note();
  bool NoteIfDone(const bucketd::agent::Joined& run);  // whether it is
  void Lost(size_t count);
  void Skip(const bucketd::agent::Joined& run);

  std::deque<bucketd::agent::Joined> joined_;
  size_t looked_at_ = 0;  // joined before these, and not seen done yet
  std::condition_variable closed_;
  bool closing_ = false;
  std::jthread noting_;  // of a GPU's, from the first join on
};

namespace bucketd::agent {

// The GPUs of this process, asked for where a device is wanted.
using FindGpus = std::function<GpuBackend()>;

absl::StatusOr<Program> ProgramOf(const bucket_executor_options& options);
absl::StatusOr<std::unique_ptr<bucket_executor>> OpenExecutor(
    const bucket_executor_options& options, const FindGpus& gpus);
// Opens the device: UNAVAILABLE where that cannot be.
absl::Status Usable(int32_t device, const FindGpus& gpus);
// Why no executor of the device runs such a bucket. The device is not opened.
absl::Status Takes(int32_t device, const bucket_spec& bucket, int32_t ranks, const FindGpus& gpus);

}  // namespace bucketd::agent
