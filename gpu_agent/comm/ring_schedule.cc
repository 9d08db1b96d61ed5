#include "gpu_agent/comm/ring_schedule.h"

#include <algorithm>

#include "passes/base/collectives.h"

namespace bucketd::agent {
namespace {

const std::byte* InOf(const Collective& member) { return static_cast<const std::byte*>(member.in); }
std::byte* OutOf(const Collective& member) { return static_cast<std::byte*>(member.out); }

// What a kind does to slices is all that the code below knows of it. A kind that becomes bucketable
// is run by it, and so needs a lowering here first.
static_assert([] {
  for (const CollectiveTraits& of : kCollectiveTraits) {
    if (of.bucketable && !Gathers(of.kind) && !Scatters(of.kind) && !ReducesWhole(of.kind)) {
      return false;
    }
  }
  return true;
}());

}  // namespace

RingSchedule::RingSchedule(absl::Span<const Collective> group, int rank, int size, RingOrder order,
                           int64_t max_segment)
    : group_(group), rank_(rank), size_(size), direction_(order == RingOrder::kGloo ? -1 : 1) {
  for (size_t i = 0; i < group.size(); ++i) Cut(static_cast<int64_t>(i), max_segment);
  windows_.push_back({.slices = static_cast<int64_t>(slices_.size()), .steps = 0});
}

void RingSchedule::Cut(int64_t member, int64_t max_segment) {
  const Collective& of = group_[static_cast<size_t>(member)];
  const int64_t item = ItemSize(of.dtype);
  const int64_t length = ChunkLength(of);
  for (int64_t first = 0; first < length;) {
    if (windows_.empty() || window_bytes_ + item > max_segment) {
      windows_.push_back({.slices = static_cast<int64_t>(slices_.size()), .steps = 0});
      window_bytes_ = 0;
    }
    const int64_t count = std::min(length - first, (max_segment - window_bytes_) / item);
    slices_.push_back({.member = member, .first = first, .count = count, .scratch = window_bytes_});
    windows_.back().steps = std::max(windows_.back().steps, Steps(of));
    window_bytes_ += count * item;
    scratch_bytes_ = std::max(scratch_bytes_, window_bytes_);
    first += count;
  }
}

bool RingSchedule::First(RingPosition& position) const {
  position = {};
  return Settle(position);
}

bool RingSchedule::Next(RingPosition& position) const {
  ++position.slice;
  return Settle(position);
}

// Moves over the ends of steps and windows and over slices that have no such step.
bool RingSchedule::Settle(RingPosition& position) const {
  const auto last = static_cast<int64_t>(windows_.size()) - 1;
  while (position.window < last) {
    const Window& window = windows_[static_cast<size_t>(position.window)];
    const Window& behind = windows_[static_cast<size_t>(position.window) + 1];
    if (position.step >= window.steps) {
      position = {.window = position.window + 1, .step = 0, .slice = 0};
    } else if (window.slices + position.slice >= behind.slices) {
      position = {.window = position.window, .step = position.step + 1, .slice = 0};
    } else if (position.step >= Steps(group_[static_cast<size_t>(SliceAt(position).member)])) {
      ++position.slice;
    } else {
      return true;
    }
  }
  return false;
}

RingSchedule::Place RingSchedule::PlaceOf(const RingPosition& position, int64_t ahead) const {
  const Slice& slice = SliceAt(position);
  const Collective& member = group_[static_cast<size_t>(slice.member)];
  const int64_t item = ItemSize(member.dtype);
  const bool gather = Gathers(member.kind);
  // The second half of an all-reduce is an all-gather that starts with its own chunk.
  const bool second = !gather && position.step >= size_ - 1;
  const int64_t step = second ? position.step - (size_ - 1) : position.step;
  const int64_t chunk = ChunkOf((gather || second ? step : step + 1) + ahead);
  const int64_t offset = (chunk * ChunkLength(member) + slice.first) * item;
  return {slice, member, item, gather || second, CountIn(slice, chunk) * item, offset};
}

RingPiece RingSchedule::Outgoing(const RingPosition& position, std::byte* scratch) const {
  const Place at = PlaceOf(position, 0);
  RingPiece piece{.bytes = at.bytes, .item = at.item};
  if (position.step > 0 && Scatters(at.member.kind)) {
    piece.from = scratch + at.slice.scratch;
  } else if (position.step > 0) {
    piece.from = OutOf(at.member) + at.offset;
  } else {
    const bool gather = Gathers(at.member.kind);
    piece.from = InOf(at.member) + (gather ? at.slice.first * at.item : at.offset);
  }
  return piece;
}

RingPiece RingSchedule::Incoming(const RingPosition& position, std::byte* scratch) const {
  const Place at = PlaceOf(position, 1);
  const auto& [slice, member, item, gathers, bytes, there] = at;
  RingPiece piece{.bytes = bytes, .item = item};
  piece.to = OutOf(member) + there;
  if (gathers) return piece;
  piece.reduce = ReducerOf(member.dtype, member.op);
  piece.own = InOf(member) + there;
  const bool last = position.step == size_ - 2;
  if (last && member.op == ReduceOp::kAvg) piece.divide = DividerOf(member.dtype);
  if (Scatters(member.kind)) {
    piece.scratch = !last;
    piece.to = last ? OutOf(member) + slice.first * item : scratch + slice.scratch;
  }
  return piece;
}

int64_t RingSchedule::Steps(const Collective& member) const {
  return ReducesWhole(member.kind) ? 2 * (size_ - 1) : size_ - 1;
}

int64_t RingSchedule::ChunkOf(int64_t ranks_before) const {
  return (rank_ - direction_ * ranks_before + 2 * size_) % size_;
}

int64_t RingSchedule::CountIn(const Slice& slice, int64_t chunk) const {
  const Collective& member = group_[static_cast<size_t>(slice.member)];
  if (!ReducesWhole(member.kind)) return slice.count;
  const int64_t begin = chunk * ChunkLength(member) + slice.first;
  return std::clamp<int64_t>(member.count - begin, 0, slice.count);
}

int64_t RingSchedule::ChunkLength(const Collective& member) const {
  if (!ReducesWhole(member.kind)) return member.count;
  return (member.count + size_ - 1) / size_;
}

const RingSchedule::Slice& RingSchedule::SliceAt(const RingPosition& position) const {
  const Window& window = windows_[static_cast<size_t>(position.window)];
  return slices_[static_cast<size_t>(window.slices + position.slice)];
}

}  // namespace bucketd::agent
