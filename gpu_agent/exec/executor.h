// Runs the buckets of one plan on one rank, in the plan's order and no other: copy-in, collective,
// copy-out, on streams of its own.
//
// Callers say that a bucket's tensors are there (Start) in any order; a bucket is launched as soon
// as all before it are. Only Wait blocks, and the first launch of a communicator that connects then
// (NCCL's), until its peers launch, Abort or its timeout; other calls wait for that one. The first
// error of any part (a peer that died, a bucket that took longer than the timeout, Abort) is the
// end: communicators are aborted, every ticket that is not done fails with that error, and a new
// executor with a new epoch takes over. All methods but Close are thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/device/steady.h"
#include "gpu_agent/device/stream.h"
#include "gpu_agent/exec/binding.h"
#include "gpu_agent/exec/layout.h"

namespace bucketd::agent {

// Which communicator runs the buckets of a mesh dimension's lane.
struct Channel {
  std::string mesh_dim;
  int32_t lane = 0;
  std::unique_ptr<Communicator> communicator;
};

struct ExecutorOptions {
  // From its launch a bucket has this long, waiting for slower peers included. Detected late by at
  // most a quarter of it, or a second.
  absl::Duration timeout = absl::Seconds(30);
  // Ranks of different epochs refuse each other.
  uint64_t epoch = 0;
  // The buckets' memory, where the caller has it: at least Program::memory_bytes, aligned to
  // kBucketAlignment; it stays until Close() was OK. Null: the device's, which is registered with
  // the communicators.
  std::byte* memory = nullptr;
  int64_t memory_bytes = 0;
  // Whoever made the communicators has compared plan and epoch on all ranks.
  bool compared = false;
  // Called, on whatever thread, with what undefined() will say, before anything runs behind the
  // joins that it is of; not for what Abort and Close end themselves. It may end the process, and
  // does not call the executor.
  std::function<void(const absl::Status&)> ends = nullptr;
};

struct Span {
  int64_t begin_ps = 0, end_ps = 0;
  int64_t duration_ps() const { return end_ps - begin_ps; }
};

// When the parts of a bucket ran; a copy that there was none of has no length.
struct BucketTimes {
  Span pack, wire, unpack;
};

// One run of one bucket.
class Ticket;
using TicketPtr = std::shared_ptr<Ticket>;

enum class Phase : uint8_t { kPacked, kArrived, kDone };  // copied in, off the wire, copied out

class Executor {
 public:
  // Blocks until all ranks of every channel have shown the same program and epoch, or the timeout:
  // FAILED_PRECONDITION names the ranks that differ, and no payload has moved. INVALID_ARGUMENT if
  // a bucket has no channel, or one of another size. Allocates all memory that buckets need, and
  // registers it with the communicators; where that fails on one rank, all of its group run
  // unregistered, and standard error says so.
  // `device` outlives the executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(Device& device, Program program,
                                                          std::vector<Channel> channels,
                                                          const ExecutorOptions& options);
  // Close(). Where that was not OK, the buckets' memory is left to the process, and standard error
  // says so.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // INVALID_ARGUMENT names the member that does not fit; FAILED_PRECONDITION where the bucket was
  // started already and waits for its turn, or the executor's error. Launching may run on the
  // caller's thread, of this bucket and of those that waited for it. O(tiles) where the tensors are
  // others than at the bucket's last few starts.
  // A capture into a graph holds whole runs of the plan: FAILED_PRECONDITION where one begins or
  // ends while a bucket was started whose turn has not come, or that nobody has joined or waited
  // for. Of buckets in a capture there are no times and no waits, and nobody sees one that does
  // not end.
  absl::StatusOr<TicketPtr> Start(int32_t bucket, const Payload& payload);
  // Copies the result of a packed bucket out, or, with no tensors, gives its memory up without.
  // Buckets that share the memory wait for it. REQUIRES: the ticket of a Start without `out`.
  absl::Status Finish(const TicketPtr& ticket, absl::Span<const Tensor> out);

  // OK once the phase is over; DEADLINE_EXCEEDED at the deadline, which harms nothing; else the
  // executor's error. kDone of a bucket without `out` comes after its Finish.
  absl::Status Wait(const TicketPtr& ticket, Phase phase, absl::Time deadline);
  bool done(const TicketPtr& ticket) const;
  // What is enqueued on `stream`, of the device, from now on runs when the bucket is done; no
  // thread waits, and the device is asked nothing. FAILED_PRECONDITION where the ticket waits for
  // its turn or its Finish, or is of another capture than `stream`; else the executor's error, as
  // far as one is known: a bucket may fail behind this, and then its results are undefined, and the
  // next call says so.
  absl::Status Join(const TicketPtr& ticket, Stream& stream);
  // From `origin`, an event of the device; null: from the first thing that the bucket did.
  // FAILED_PRECONDITION before it is done.
  absl::StatusOr<BucketTimes> Times(const TicketPtr& ticket, const Event* origin = nullptr) const;

  // Where the reduced or gathered members of a packed bucket lie until its Finish. Rank r's part of
  // member i of an all-gather is at r * slice_bytes + offsets[i].
  std::byte* memory(int32_t bucket) const;
  const Program& program() const { return program_; }
  // The first error.
  absl::Status health() const;
  // The same, of now: it asks communicators and streams. OK: what has been joined, and has ended
  // before, is right.
  absl::Status Check();
  // OK, or the error, Abort or Close that came when tickets had been joined and had not ended: what
  // they have written is undefined, and no call may have said so.
  absl::Status undefined() const;
  void Abort(const std::string& why);
  // Aborts what is under way and waits for what runs, ten seconds at most, then closes the
  // communicators, each to its own limit. OK: nothing uses memory or tensors any more, now or
  // later; else, as where a graph lives that holds a capture, they have to stay for good. Repeated,
  // it says the same.
  absl::Status Close();

 private:
  struct Lane {
    Channel channel;
    std::unique_ptr<Stream> stream;
  };
  struct Slot {
    Lane* lane = nullptr;
    TicketPtr waiting;  // started, not launched
  };
  struct Held {
    int64_t end = 0;
    TicketPtr by;
  };

  Executor(Device& device, Program program, const ExecutorOptions& options);
  absl::Status Open(std::vector<Channel> channels);
  absl::Status TakeArena();
  absl::StatusOr<bool> Register(Lane& lane, SteadyTime deadline);
  absl::Status Enter(uint64_t capture);
  absl::StatusOr<TicketPtr> NewTicket(int32_t bucket, const Payload& payload);
  int RankIn(int32_t bucket) const;
  void LaunchReady();
  bool MemoryFree(int32_t bucket) const;
  absl::Status Launch(const TicketPtr& ticket);
  absl::Status Unpack(Ticket& ticket, Stream& stream);
  void Leave(Ticket& ticket);
  void TakeMemory(const TicketPtr& ticket, Stream& stream);
  void Forget(bool ask);
  absl::Status Drain();
  absl::Status Of(int32_t bucket, const absl::Status& status) const;
  absl::Status BehindJoins(const absl::Status& error) const;
  void Fail(const absl::Status& error);
  void Watch();
  void Look();

  Device& device_;
  const Program program_;
  const ExecutorOptions options_;
  std::unique_ptr<Buffer> memory_;  // null: the caller's, or none
  std::byte* base_ = nullptr;       // of the buckets' memory
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<Stream> pack_, unpack_;  // of copies that are not on a lane's stream

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Binder binder_;
  int waiters_ = 0;  // threads that wait for a launch or a Finish
  std::vector<Slot> slots_;
  size_t next_ = 0;                  // of program_.starts
  uint64_t capture_ = 0;             // that the last start was in
  int open_ = 0;                     // tickets that nobody has joined, or waited for to their end
  std::map<int64_t, Held> held_;     // by begin: whose bytes these were last, as far as not done
  std::deque<TicketPtr> under_way_;  // launched or finished, by time
  const Lane* last_lane_ = nullptr;
  std::shared_ptr<Event> last_arrived_;  // of the last launch, which was on that lane
  absl::Status error_, undefined_;
  std::atomic<bool> asked_ = false;  // the caller aborts, or closes
  bool closing_ = false;
  std::optional<absl::Status> closed_;
  std::condition_variable close_;
  std::jthread watchdog_;
};

}  // namespace bucketd::agent
