// One process group that moves bytes: the seam between the executor and the socket ring or NCCL.
// All ranks launch the same collectives in the same order; a communicator cannot check that (the
// executor compares plans before the first byte moves).
//
// "OK" of Launch means enqueued. After any error a communicator is dead: Abort() it and build
// another one. One thread launches; Abort, health and the accessors are thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "gpu_agent/device/stream.h"
#include "passes/base/types.h"

namespace bucketd::agent {

// `count` is elements a rank: of an all-gather's input, of a reduce-scatter's output, of an
// all-reduce's tensor. Memory is the communicator's device's and stays until the stream is past the
// collective.
//   all-gather      in: count          out: size * count, rank r's part at r * count
//   reduce-scatter  in: size * count   out: count, the reduced part of this rank
//   all-reduce      in: count          out: count
// In place where NCCL has it so: an all-gather's in is its own part of out, a reduce-scatter's out
// its own part of in, an all-reduce's out its in. Otherwise in and out do not overlap.
struct Collective {
  CollectiveKind kind = CollectiveKind::kUnspecified;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  DType dtype = DType::kUnspecified;
  ReduceOp op = ReduceOp::kNone;  // all-gathers have none
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  // Several collectives are one grouped launch: none of them depends on another, and they end
  // together. INVALID_ARGUMENT names the first that is not as above, and then none is enqueued.
  virtual absl::Status Launch(Stream& stream, absl::Span<const Collective> group) = 0;
  // Tells of a device's buffer that collectives will use, where a backend gains by knowing. All
  // ranks call it with the same size, and from then on none or all ranks of a collective are inside
  // of such buffers, at the same offsets. After an error nothing is registered here; the
  // communicator goes on if it is healthy, and ranks where it worked deregister. A refusal may end
  // the communicators of all ranks: Renew.
  virtual absl::Status Register(std::byte* /*data*/, int64_t /*bytes*/) { return absl::OkStatus(); }
  // Takes a buffer back, with nothing under way on it. What is left goes with the communicator,
  // which ends before the buffer does.
  virtual absl::Status Deregister(std::byte* /*data*/) { return absl::OkStatus(); }
  // Begins anew where it, or a peer's, has ended: of the same ranks, with nothing registered. All
  // ranks call it, before their first launch. After an error, or an Abort before, it stays as it
  // is.
  virtual absl::Status Renew(absl::Time /*deadline*/) { return health(); }
  // The same ranks over memory of the host, for what they tell each other beside payloads: itself,
  // or the ring over which a GPU's ranks met. Its launches go to host streams.
  virtual Communicator& host() { return *this; }
  // Its collectives hold a part of the device while they wait for their peers: those of several
  // communicators run one behind the other there, in one order on all ranks, else they deadlock.
  virtual bool holds_device() const { return false; }
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string ToString() const = 0;  // "ring of 4 ranks over unix sockets, rank 1"
  // The first error that it met.
  virtual absl::Status health() const = 0;
  // Ends what is under way on this rank with ABORTED and `why`; peers see a closed connection. May
  // be called from any thread, more than once. Waits for nothing: what is on the device may end
  // only when other communicators' is ended as well.
  virtual void Abort(const std::string& why) = 0;
  // Ends it for good, as its destructor does. OK: it uses no memory any more, of collectives or
  // registered; else, after its own limit, that memory has to stay for good. Repeated, it says the
  // same.
  virtual absl::Status Close() { return absl::OkStatus(); }
};

// Of what one rank puts in and of what it gets out, for a valid collective.
int64_t InputBytes(const Collective& collective, int size);
int64_t OutputBytes(const Collective& collective, int size);

// OK if a communicator of `size` ranks can take it: a kind among the three, a known dtype with the
// op (bitwise ones on integers and bool only, avg on floating point only, sum and avg alone on
// complex numbers, none for an all-gather), a count that is not negative and whose bytes fit 2^46,
// pointers where there are bytes.
absl::Status Validate(const Collective& collective, int size);

// The same of a whole launch on one rank, and that in and out overlap in place or not at all; the
// error names the member. Every Launch begins with it. O(members).
absl::Status ValidateGroup(absl::Span<const Collective> group, int rank, int size);

}  // namespace bucketd::agent
