// Memory, streams and events of one GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/cuda/nccl_api.h"
#include "gpu_agent/cuda/staging.h"
#include "gpu_agent/device/steady.h"
#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

// OK, RESOURCE_EXHAUSTED for memory, else INTERNAL with CUDA's own words after `what`.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// Makes a GPU the calling thread's for a while. Its context is pushed and popped: setting a device
// and setting it back would open a context on the one that the thread never used, GPU 0's in most
// ranks. Every call of the runtime's that works on a GPU is made under one.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  bool pushed_ = false;
};

// Ends this process's context on the GPU, as GpuModule::leave says. The calling thread's device is
// that GPU from then on.
absl::Status LeaveDevice(int index);

// While it stands, the thread's calls that no capture allows disturb none, but those with a stream
// or an event of a capture.
class BesideCaptures {
 public:
  BesideCaptures();
  ~BesideCaptures();
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // that was before
};

// What may fail behind a stream's back: a communicator that works on it. Thread-safe.
class Watched {
 public:
  virtual ~Watched() = default;
  virtual absl::Status status() const = 0;  // the first error so far; never blocks
  // Looks for errors. What fails ends its work on the stream, so that events are reached. Somebody
  // waits for that work `since` then, which may be too long.
  virtual absl::Status Poll(SteadyTime since) = 0;
};
using WatchedList = std::vector<std::shared_ptr<Watched>>;

// Events of a GPU that nobody has any more, for whoever records one next: who waits for an event
// goes by what it marked when the wait was enqueued. Thread-safe.
class SpareEvents {
 public:
  explicit SpareEvents(int device) : device_(device) {}
  ~SpareEvents();
  SpareEvents(const SpareEvents&) = delete;
  SpareEvents& operator=(const SpareEvents&) = delete;

  int device() const { return device_; }
  absl::StatusOr<cudaEvent_t> Take();
  void Give(cudaEvent_t event);

 private:
  const int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> events_;
};

// An event ends with the error of a communicator of its stream if that failed before the event was
// first seen done.
class CudaEvent final : public Event {
 public:
  // `error`: of the stream before this point, if it has one.
  CudaEvent(std::shared_ptr<SpareEvents> spare, absl::Status error, WatchedList watched);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool done() const override;
  bool seen_done() const override;
  absl::Status Wait(absl::Time deadline) const override;
  absl::StatusOr<int64_t> Since(const Event& earlier) const override;

  absl::Status Record(cudaStream_t stream);
  cudaEvent_t get() const { return event_; }  // null if it was born done
  int device() const { return spare_->device(); }
  const WatchedList& watched() const { return watched_; }
  absl::Status status() const;  // OK before done()
  // The error that it will end with, as far as one is known without asking CUDA.
  absl::Status known_error() const;

 private:
  bool Seen() const;  // REQUIRES: mutex_ is held

  const std::shared_ptr<SpareEvents> spare_;
  const WatchedList watched_;
  cudaEvent_t event_ = nullptr;
  mutable std::mutex mutex_;
  mutable bool seen_ = false;
  mutable absl::Status status_;
};

class CudaStream final : public Stream {
 public:
  // Of the highest priority: its blocks go before those of a computation that wait for room.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Start(
      int device, std::shared_ptr<SpareEvents> spare = nullptr);
  // Takes `stream` over, unless it is somebody else's, which outlives this. `spare` are the GPU's
  // events; null: its own.
  CudaStream(int device, cudaStream_t stream, bool owned = true,
             std::shared_ptr<SpareEvents> spare = nullptr);
  // Does not wait for what is enqueued, which goes on: Drain before what it uses is freed.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  std::shared_ptr<Event> Record() override;
  void After(std::shared_ptr<Event> event) override;
  // The same, but that an error of `event` is none of this stream's.
  void AfterEnd(const Event& event);
  absl::StatusOr<uint64_t> Capture() const override;
  absl::StatusOr<std::unique_ptr<Gate>> Shut() override;
  absl::Status Drain(absl::Time deadline) override;

  cudaStream_t get() const { return stream_; }
  int device() const { return device_; }
  uint64_t id() const { return id_; }  // unlike get(), never another stream's later
  // The stream's first error so far, those of communicators included.
  absl::Status status() const;
  void Fail(const absl::Status& error);
  // Events from now on end with its errors.
  void Watch(const std::shared_ptr<Watched>& watched);

 private:
  static uint64_t NextId();

  const int device_;
  const cudaStream_t stream_;
  const bool owned_;
  const uint64_t id_ = NextId();
  const std::shared_ptr<SpareEvents> spare_;
  absl::Status error_;
  WatchedList watched_;
  uint32_t* gates_ = nullptr;  // pinned: how many have gone
  uint32_t shut_ = 0;
};

class CudaCopier;

// Thread-safe. Memory comes from NCCL where there is one, so that it can be registered as a window
// and handed to other processes. At its end no copy may be under way.
class CudaDevice final : public Device {
 public:
  // `nccl` may be null. UNAVAILABLE where this process can have no context on the GPU.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int index,
                                                          std::shared_ptr<const NcclApi> nccl);
  // What Open has found to be there.
  CudaDevice(int index, std::string name, std::shared_ptr<const NcclApi> nccl);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> NewStream(const std::string& name) override;
  void OnlyLook() override;
  absl::Status Copy(Stream& stream, const void* from, void* to, int64_t bytes) override;
  absl::Status CopyTiles(Stream& stream, TileList tiles) override;

  int index() const { return index_; }
  const std::shared_ptr<SpareEvents>& spare_events() const { return spare_; }
  // Whether buffers can be registered as windows.
  bool has_windows() const;

 private:
  const int index_;
  const std::string name_;
  const std::shared_ptr<const NcclApi> nccl_;
  const std::shared_ptr<SpareEvents> spare_ = std::make_shared<SpareEvents>(index_);
  Staging staging_;
  const absl::StatusOr<std::unique_ptr<CudaCopier>> copier_;
};

// The stream as one of this GPU, or null.
CudaStream* AsCudaStream(Stream& stream, int device);

}  // namespace bucketd::agent
