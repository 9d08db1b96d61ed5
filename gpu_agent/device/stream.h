// Where buckets live and what works on them: a device (host memory, or one GPU), its streams and
// events. The terms are CUDA's and so is the meaning: what is enqueued on one stream runs in that
// order, an event is done when everything enqueued before it is, and nothing here makes a host
// thread wait except Event::Wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu_agent/pack/tile.h"

namespace bucketd::agent {

// A point in a stream. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;
  // Everything enqueued before it has ended, well or not. Never blocks.
  virtual bool done() const = 0;
  // As somebody has seen it before: the device is not asked, which a stream that is being captured
  // into a graph forbids.
  virtual bool seen_done() const { return done(); }
  // Blocks until done() or the deadline. OK, the first error of the stream before this point, or
  // DEADLINE_EXCEEDED; the stream goes on after that one.
  virtual absl::Status Wait(absl::Time deadline) const = 0;
  // Picoseconds between the two points, measured where the work runs. Both are of one device and
  // done, else FAILED_PRECONDITION.
  virtual absl::StatusOr<int64_t> Since(const Event& earlier) const = 0;
};

// What was enqueued behind it waits until it goes. It goes before its stream.
class Gate {
 public:
  virtual ~Gate() = default;
};

// After its first error a stream runs nothing more: what is enqueued is dropped, and every later
// event carries that error. One thread enqueues.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual std::shared_ptr<Event> Record() = 0;
  // What is enqueued from now on runs after `event`, of the same device. If that ends with an
  // error, so does this stream.
  virtual void After(std::shared_ptr<Event> event) = 0;
  // The capture into a graph that the stream is in: what is enqueued runs at each of the graph's
  // replays, and its events mean something within the capture alone. 0: in none.
  virtual absl::StatusOr<uint64_t> Capture() const { return 0; }
  // What is enqueued from now on finds its way to the device first and runs once the gate goes: its
  // times are not those of launching it. Nothing that waits for the device may be called meanwhile.
  // Null where launching takes no time of the stream's.
  virtual absl::StatusOr<std::unique_ptr<Gate>> Shut() { return nullptr; }
  // Blocks until nothing of it runs any more, well or not: then what it used may be freed.
  // DEADLINE_EXCEEDED: something still does.
  virtual absl::Status Drain(absl::Time deadline) {
    const std::shared_ptr<Event> end = Record();
    const absl::Status waited = end->Wait(deadline);
    return end->done() ? absl::OkStatus() : waited;
  }
};

inline constexpr int64_t kBufferAlignment = 4096;

// Frees itself; does not outlive its device. Memory is aligned to kBufferAlignment.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* data() = 0;
  virtual int64_t bytes() const = 0;
};

// Of Cut(); whoever keeps a list uses it again.
using TileList = std::shared_ptr<const std::vector<Tile>>;

// Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "host", "cuda:0 NVIDIA H200"
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) = 0;
  // `name` is what traces and thread lists call it, at most 15 characters.
  virtual absl::StatusOr<std::unique_ptr<Stream>> NewStream(const std::string& name) = 0;
  // The calling thread does nothing but look whether work is done: that disturbs no capture of
  // another thread's.
  virtual void OnlyLook() {}
  // Host memory to device memory and back, ordered on `stream`. Host memory must stay until then.
  virtual absl::Status Copy(Stream& stream, const void* from, void* to, int64_t bytes) = 0;
  // Copies within the device's memory, by threads of the host or kernels of the GPU, all in one
  // launch. What tiles point to stays until the stream is past them. INVALID_ARGUMENT if the stream
  // is of another device.
  virtual absl::Status CopyTiles(Stream& stream, TileList tiles) = 0;
};

}  // namespace bucketd::agent
