#include "passes/auto/live_memory.h"

#include <algorithm>

#include "passes/base/collectives.h"

namespace bucketd::search {
namespace {

bool IsPacked(const Batch& batch) {
  return batch.form == Form::kPackedOnCompute || batch.form == Form::kPackedOnComm;
}

}  // namespace

LiveMemory::LiveMemory(const Problem& problem) : problem_(problem) {
  for (size_t s = 0; s < problem.bytes.size(); ++s) {
    fresh_.push_back({problem.kept[s] ? 0 : problem.bytes[s], problem.uses[s], -1});
  }
}

void LiveMemory::Reset() {
  storages_ = fresh_;
  buffers_.clear();
  live_ = problem_.live_at_start;
}

int64_t LiveMemory::HeldBy(LeaderId leader) const {
  int64_t held = 0;
  for (const StorageId s : problem_.touches.of(leader)) {
    if (storages_[Index(s)].uses_left == 1) held += storages_[Index(s)].bytes;
  }
  return held;
}

int64_t LiveMemory::Run(LeaderId leader) {
  most_ = live_;
  Allocate(problem_.own_bytes[Index(leader)]);
  Release(leader);
  return most_;
}

// The buffers of a bucket as its start leaves them.
int64_t LiveMemory::Start(const Batch& batch, const LaunchCost& cost) {
  most_ = live_;
  const CollectiveKind kind = problem_.transfer(batch.members[0]).kind;
  const bool on_compute = batch.form == Form::kPackedOnCompute;
  // What a bucket scatters comes when its copy-in has read the inputs.
  const int64_t later = on_compute && Scatters(kind) ? cost.out_bytes : 0;
  Allocate(NeededByStart(batch, cost) - later);
  if (on_compute) {
    for (const CollectiveId c : batch.members) ReleaseInputs(problem_.transfer(c).start);
    Allocate(later);
  }
  if (IsPacked(batch) && !Gathers(kind)) {
    ShareResults(batch, Scatters(kind) ? cost.out_bytes : cost.in_bytes);
  }
  for (const CollectiveId c : batch.members) {
    if (problem_.transfer(c).wait < 0) Release(problem_.transfer(c).start);
  }
  return most_;
}

int64_t LiveMemory::Wait(const Batch& batch, const LaunchCost& cost) {
  most_ = live_;
  const CollectiveKind kind = problem_.transfer(batch.members[0]).kind;
  const bool on_compute = batch.form == Form::kPackedOnCompute;
  if (IsPacked(batch) && Gathers(kind)) {
    if (on_compute) Allocate(cost.out_bytes);
    live_ -= cost.out_bytes;
  } else if (IsPacked(batch) && Scatters(kind)) {
    live_ -= cost.in_bytes;
  }
  for (const CollectiveId c : batch.members) {
    const Transfer& t = problem_.transfer(c);
    if (on_compute) {
      for (const StorageId s : problem_.owns.of(t.start)) Use(s);
    } else {
      Release(t.start);
    }
    Allocate(problem_.own_bytes[Index(t.wait)]);
    Release(t.wait);
  }
  return most_;
}

int64_t LiveMemory::NeededByStart(const Batch& batch, const LaunchCost& cost) const {
  const CollectiveKind kind = problem_.transfer(batch.members[0]).kind;
  if (IsPacked(batch) && !Gathers(kind)) {
    return cost.in_bytes + (Scatters(kind) ? cost.out_bytes : 0);
  }
  if (batch.form == Form::kPackedOnCompute) return cost.out_bytes;
  int64_t bytes = IsPacked(batch) ? cost.out_bytes : 0;
  for (const CollectiveId c : batch.members) {
    bytes += problem_.own_bytes[Index(problem_.transfer(c).start)];
  }
  return bytes;
}

int64_t LiveMemory::NeededByWait(const Batch& batch, const LaunchCost& cost) const {
  int64_t bytes = 0;
  if (batch.form == Form::kPackedOnCompute && Gathers(problem_.transfer(batch.members[0]).kind)) {
    bytes = cost.out_bytes;
  }
  for (const CollectiveId c : batch.members) {
    bytes += problem_.own_bytes[Index(problem_.transfer(c).wait)];
  }
  return bytes;
}

// Inputs live until the wait, unless a copy on the compute stream has read them; gathers that the
// wires' stream copies out leave their buffer there.
bool LiveMemory::WaitFrees(const Batch& batch) const {
  if (problem_.transfer(batch.members[0]).use == Use::kSink) return true;
  if (IsPacked(batch)) return batch.form == Form::kPackedOnComm;
  return std::any_of(batch.members.begin(), batch.members.end(), [&](CollectiveId c) {
    const Transfer& t = problem_.transfer(c);
    return t.launch_bytes > t.out_bytes;  // it has a cast
  });
}

void LiveMemory::Allocate(int64_t bytes) {
  live_ += bytes;
  most_ = std::max(most_, live_);
}

// One use of a storage is over. Behind the last the storage goes; one that a packed bucket made
// goes with its buffer.
void LiveMemory::Use(StorageId s) {
  Storage& storage = storages_[Index(s)];
  if (--storage.uses_left > 0) return;
  if (storage.shared < 0) {
    live_ -= storage.bytes;
    return;
  }
  SharedBuffer& shared = buffers_[Index(storage.shared)];
  if (--shared.parts_left == 0 && !shared.kept) live_ -= shared.bytes;
}

void LiveMemory::Release(LeaderId l) {
  for (const StorageId s : problem_.touches.of(l)) Use(s);
}

// All but what the start itself makes.
void LiveMemory::ReleaseInputs(LeaderId start) {
  const absl::Span<const StorageId> own = problem_.owns.of(start);
  for (const StorageId s : problem_.touches.of(start)) {
    if (std::find(own.begin(), own.end(), s) == own.end()) Use(s);
  }
}

// The members' results are parts of one buffer of so many bytes.
void LiveMemory::ShareResults(const Batch& batch, int64_t bytes) {
  SharedBuffer buffer{bytes, 0, false};
  for (const CollectiveId c : batch.members) {
    for (const StorageId s : problem_.owns.of(problem_.transfer(c).start)) {
      storages_[Index(s)].shared = static_cast<int32_t>(buffers_.size());
      ++buffer.parts_left;
      buffer.kept = buffer.kept || problem_.kept[Index(s)];
    }
  }
  buffers_.push_back(buffer);
}

}  // namespace bucketd::search
