// What a bucket copies and launches for the tensors that it is started with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/device/stream.h"
#include "gpu_agent/exec/layout.h"

namespace bucketd::agent {

// Tensors of a bucket, one a member, in payload order; they stay until the ticket is done, after an
// error until the executor is gone.
//   packed   `in` is copied to the bucket's memory; `out` from there. Without `out` that copy is
//            left to Finish.
//   grouped  both, each exactly of the wire's dtype and size: there are no copies.
struct Payload {
  absl::Span<const Tensor> in, out;
  std::shared_ptr<Event> after;  // of the executor's device; null: the tensors are there
  uint64_t capture = 0;          // Stream::Capture of what is behind `after`
};

struct Bound {
  TileList in, out;  // null: no copy
  bool finish_later = false;
  std::vector<Collective> group;
};

// Not thread-safe. Keeps the tiles of each bucket's tensors of the last times: an allocator that is
// in step gives the same few again.
class Binder {
 public:
  // `program` outlives it.
  explicit Binder(const Program& program);

  // `memory` is the bucket's. INVALID_ARGUMENT names the member that does not fit. O(tiles) where
  // the tensors are others than at the bucket's last few times.
  absl::StatusOr<Bound> Bind(int32_t bucket, int rank, const Payload& payload, std::byte* memory);
  // The copy-out that was left for later.
  absl::StatusOr<TileList> CopyOutTo(int32_t bucket, int rank, absl::Span<const Tensor> out,
                                     std::byte* memory);

 private:
  struct Tiles {
    std::vector<Tensor> tensors;
    TileList tiles;
  };
  static constexpr size_t kTilesKept = 4;
  struct Kept {
    std::deque<Tiles> in, out;
  };

  absl::StatusOr<TileList> TilesFor(int32_t bucket, int rank, absl::Span<const Tensor> tensors,
                                    std::byte* memory, bool in);
  absl::StatusOr<Bound> BindPacked(int32_t bucket, int rank, const Payload& payload,
                                   std::byte* memory);
  absl::StatusOr<Bound> BindGrouped(int32_t bucket, const Payload& payload) const;

  const Program& program_;
  std::vector<Kept> kept_;  // of each bucket
};

}  // namespace bucketd::agent
