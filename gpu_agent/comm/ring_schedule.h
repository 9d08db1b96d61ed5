// What one rank of a ring sends and receives for a grouped launch, in NCCL's ring order:
//
//   all-gather      a rank's part travels right, from rank to rank, to its left neighbour
//   reduce-scatter  chunk c starts at rank c + 1, every rank adds its own, and ends at its owner c
//   all-reduce      chunk c is [c * q, (c + 1) * q) of the elements, q = ceil(count / size);
//                   reduce-scatter, then all-gather
//
// so element by element ((in[c+1] op in[c+2]) op ...) op in[c], whatever the segments are; in
// gloo's order (RingOrder) the same with left and right exchanged. The group is cut into windows
// of at most max_segment bytes a chunk, over all members, so that what is under way stays in a
// cache and its memory is bounded. A window takes its steps one after the other, a step the
// window's slices of members: all ranks walk through the same sequence of pieces, and what a rank
// sends in a step it has received in the step before.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/comm/reduce.h"

namespace bucketd::agent {

// Which way a ring turns, and with that the order in which a reduce-scatter adds.
// kNccl: everything moves to rank + 1, and the sum for rank c is ((c+1 + c+2) + ...) + c.
// kGloo: to rank - 1, and the sum is ((c-1 + c-2) + ...) + c: that of torch 2.13's gloo, bit for
// bit, for reduce-scatters whose ranks' parts have an even number of elements (tests/python/
// test_executor.py; its all-reduces are cut otherwise).
enum class RingOrder : uint8_t { kNccl, kGloo };

// A place in the sequence: the piece of slice `slice` at step `step` of its window.
struct RingPosition {
  int64_t window = 0;
  int64_t step = 0;
  int64_t slice = 0;
  friend auto operator<=>(const RingPosition&, const RingPosition&) = default;
};

// Bytes that move at once. An outgoing piece reads `from`; an incoming one goes to `to` as it is,
// or reduced with `own`.
struct RingPiece {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  const std::byte* own = nullptr;
  int64_t bytes = 0;
  int64_t item = 1;
  ReduceFunction reduce = nullptr;  // null: a copy
  DivideFunction divide = nullptr;  // after the last hop of an avg
  bool scratch = false;             // `to` is scratch: the step before's must have been sent
};

// Immutable. REQUIRES: a valid group that outlives it, two ranks or more, and max_segment of at
// least one element. Building takes O(members + windows).
class RingSchedule {
 public:
  RingSchedule(absl::Span<const Collective> group, int rank, int size, RingOrder order,
               int64_t max_segment);

  int64_t scratch_bytes() const { return scratch_bytes_; }
  // False behind the last piece; else moves `position` on to the next one that exists.
  bool First(RingPosition& position) const;
  bool Next(RingPosition& position) const;
  RingPiece Outgoing(const RingPosition& position, std::byte* scratch) const;
  RingPiece Incoming(const RingPosition& position, std::byte* scratch) const;

 private:
  // Elements [first, first + count) of every chunk of a member.
  struct Slice {
    int64_t member = 0;
    int64_t first = 0;
    int64_t count = 0;
    int64_t scratch = 0;
  };
  // Of a position: the chunk of its slice that this rank sends, or with `ahead` 1 receives.
  struct Place {
    const Slice& slice;
    const Collective& member;
    int64_t item;    // bytes of an element
    bool gathers;    // the chunk is final, not a partial sum
    int64_t bytes;   // of the chunk's slice
    int64_t offset;  // bytes, within the whole buffer
  };
  struct Window {
    int64_t slices = 0;  // index of its first
    int64_t steps = 0;
  };

  void Cut(int64_t member, int64_t max_segment);
  Place PlaceOf(const RingPosition& position, int64_t ahead) const;
  bool Settle(RingPosition& position) const;
  int64_t Steps(const Collective& member) const;
  int64_t ChunkOf(int64_t ranks_before) const;
  // Elements of the slice in a chunk: the last chunks of an all-reduce are shorter.
  int64_t CountIn(const Slice& slice, int64_t chunk) const;
  int64_t ChunkLength(const Collective& member) const;
  const Slice& SliceAt(const RingPosition& position) const;

  absl::Span<const Collective> group_;
  int64_t rank_;
  int64_t size_;
  int64_t direction_;  // to the rank that everything moves to: 1 or -1
  std::vector<Slice> slices_;
  std::vector<Window> windows_;  // and one behind the last
  int64_t window_bytes_ = 0;     // of the window that is being cut
  int64_t scratch_bytes_ = 0;
};

}  // namespace bucketd::agent
