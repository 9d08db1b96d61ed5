// Measures what collectives and copies take on this machine, and checks what they deliver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

struct SweepOptions {
  int64_t min_bytes =
      int64_t{4} << 10;  // full messages; four times the one before, twice from 4 MiB on
  int64_t max_bytes = int64_t{32} << 20;
};

// A collective of one size, repeated as a step has it: after a pause, over memory that was not used
// for a while.
struct CollectiveRow {
  CollectiveKind kind = CollectiveKind::kUnspecified;
  DType dtype = DType::kUnspecified;
  ReduceOp op = ReduceOp::kNone;
  int64_t bytes = 0;     // full message, of all members of a group
  int64_t count = 0;     // elements a rank, of one member
  int32_t launches = 1;  // members of one grouped launch
  bool in_place = false;
  // Repetitions; all ranks begin at once, the slowest one counts.
  std::vector<int64_t> picoseconds;
  int64_t host_ps = 0;  // that the launching thread spent on one of them
  int64_t wrong = 0;    // elements, of all ranks
};

// Copies of a list of tensors in one launch, all ranks at once.
struct CopyRow {
  std::string what;                  // "copy", "f32 to bf16", ...
  int64_t bytes = 0;                 // read
  int64_t moved = 0;                 // read and written
  std::vector<int64_t> picoseconds;  // as above
};

struct SweepResult {
  std::vector<CollectiveRow> collectives;
  std::vector<CopyRow> copies;
};

// All ranks call it with the same options. `on_row` may be null; called after each collective's
// row. The communicator's first error. REQUIRES: 2 to 64 ranks, min_bytes <= max_bytes.
absl::StatusOr<SweepResult> Sweep(Device& device, Communicator& communicator,
                                  const SweepOptions& options,
                                  const std::function<void(const CollectiveRow&)>& on_row);

// What is enqueued on the stream has ended when this goes, however that ends: buffers that it works
// on go later.
class Settled {
 public:
  explicit Settled(Stream& stream) : stream_(stream) {}
  ~Settled() { stream_.Record()->Wait(absl::InfiniteFuture()).IgnoreError(); }
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;

 private:
  Stream& stream_;
};

// Each value becomes that of all ranks by `op`; they call it with as many. `memory`, of the device,
// has 8 bytes for each. Blocks; nothing is under way on the stream when it returns, well or not.
absl::Status ReduceOverRanks(Device& device, Communicator& communicator, Stream& stream,
                             std::byte* memory, ReduceOp op, std::vector<int64_t>& values);

// Picoseconds as microseconds, for people.
inline double Us(int64_t ps) { return static_cast<double>(ps) * 1e-6; }

// The lower of the middle two. REQUIRES: not empty.
int64_t Median(std::vector<int64_t> values);

}  // namespace bucketd::agent
