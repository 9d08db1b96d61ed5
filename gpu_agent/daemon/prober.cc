#include "gpu_agent/daemon/prober.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gpu_agent/pack/segments.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr int64_t kMinBytes = 4 << 10;
constexpr int64_t kShortSizes[] = {64 << 10, 1 << 20};
// Of the copies that find a straggler: more than caches hold, and the best of a few.
constexpr int64_t kCopiedBytes = 8 << 20;
constexpr int kCopies = 5;

}  // namespace

absl::Status Prober::Add(int64_t min_bytes, int64_t max_bytes, Probe& probe) {
  SweepOptions options;
  options.min_bytes = min_bytes;
  options.max_bytes = max_bytes;
  ASSIGN_OR_RETURN(SweepResult sweep, Sweep(device_, communicator_, options, nullptr));
  for (CollectiveRow& row : sweep.collectives) {
    probe.wrong += row.wrong;
    probe.sweep.collectives.push_back(std::move(row));
  }
  for (CopyRow& row : sweep.copies) probe.sweep.copies.push_back(std::move(row));
  return absl::OkStatus();
}

absl::StatusOr<Probe> Prober::Whole() {
  Probe probe;
  RETURN_IF_ERROR(Add(kMinBytes, max_bytes_, probe));
  RETURN_IF_ERROR(FindStraggler(probe));
  return probe;
}

absl::StatusOr<Probe> Prober::Short() {
  Probe probe;
  int64_t last = 0;
  for (int64_t bytes : kShortSizes) {
    bytes = std::min(bytes, max_bytes_);
    if (bytes != last) RETURN_IF_ERROR(Add(bytes, bytes, probe));
    last = bytes;
  }
  RETURN_IF_ERROR(FindStraggler(probe));
  return probe;
}

// In a ring all ranks take as long as the slowest: only what each does alone tells them apart.
absl::Status Prober::FindStraggler(Probe& probe) {
  const int ranks = communicator_.size();
  // Before what settles the stream that works on it.
  std::vector<int64_t> all(static_cast<size_t>(ranks));
  int64_t best = 0;
  ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> buffer, device_.Allocate(2 * kCopiedBytes));
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_.NewStream("straggler"));
  const Settled settled(*stream);
  const Segment segment{buffer->data(), buffer->data() + kCopiedBytes, kCopiedBytes, Move::kBytes};
  ASSIGN_OR_RETURN(std::vector<Tile> cut, Cut({&segment, 1}));
  const auto tiles = std::make_shared<const std::vector<Tile>>(std::move(cut));
  for (int i = 0; i < kCopies; ++i) {
    const std::shared_ptr<Event> from = stream->Record();
    RETURN_IF_ERROR(device_.CopyTiles(*stream, tiles));
    const std::shared_ptr<Event> to = stream->Record();
    RETURN_IF_ERROR(to->Wait(absl::InfiniteFuture()));
    ASSIGN_OR_RETURN(const int64_t ps, to->Since(*from));
    best = i == 0 ? ps : std::min(best, ps);
  }

  const auto bytes = static_cast<int64_t>(all.size() * sizeof(int64_t));
  std::byte* const own = buffer->data() + communicator_.rank() * 8;
  RETURN_IF_ERROR(device_.Copy(*stream, &best, own, 8));
  const Collective gather{
      CollectiveKind::kAllGather, own, buffer->data(), 1, DType::kI64, ReduceOp::kNone};
  RETURN_IF_ERROR(communicator_.Launch(*stream, {&gather, 1}));
  RETURN_IF_ERROR(device_.Copy(*stream, buffer->data(), all.data(), bytes));
  // Bounded by the communicator's own timeout.
  RETURN_IF_ERROR(stream->Record()->Wait(absl::InfiniteFuture()));

  const auto slowest = std::max_element(all.begin(), all.end());
  probe.slowest = static_cast<int>(slowest - all.begin());
  probe.straggler_ratio =
      static_cast<double>(*slowest) / static_cast<double>(std::max<int64_t>(Median(all), 1));
  return absl::OkStatus();
}

}  // namespace bucketd::agent
