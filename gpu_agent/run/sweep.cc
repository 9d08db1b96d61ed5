#include "gpu_agent/run/sweep.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/clock.h"

#include "gpu_agent/pack/segments.h"
#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr int64_t kAlignment = 4096;
constexpr int64_t kRepetitions = 5;
// As in a step, where compute comes first: threads sleep, and caches hold something else. On the
// processor collectives take a tenth to a seventh longer after some milliseconds than after less
// than one; more than these change nothing.
constexpr absl::Duration kPause = absl::Milliseconds(5);
constexpr int64_t kCopiedTensors = 8;

// From one size to the next: by four, and by two where buckets lie that are worth a plan.
int64_t Next(int64_t bytes) { return bytes < (4 << 20) ? 4 * bytes : 2 * bytes; }

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A fixed length, which compilers make vectors of.
constexpr int64_t kBlock = 1024;
using Block = std::array<int32_t, kBlock>;

// Elements of a rank's payload from `at` on: 0 to 3, so that the sum over 64 ranks has no more than
// bf16's eight bits, and without a period.
void AddPayload(int rank, int64_t at, Block& to) {
  constexpr uint32_t kOfElement = 2654435761, kOfRank = 715225739;
  const uint32_t first =
      static_cast<uint32_t>(at) * kOfElement + static_cast<uint32_t>(rank) * kOfRank;
  for (uint32_t i = 0; i < kBlock; ++i)
    to[i] += static_cast<int32_t>((first + i * kOfElement) >> 30);
}

void Convert(const Block& values, std::array<float, kBlock>& to) {
  for (size_t i = 0; i < kBlock; ++i) to[i] = static_cast<float>(values[i]);
}

// All values are exact in bf16.
void Convert(const Block& values, std::array<uint16_t, kBlock>& to) {
  for (size_t i = 0; i < kBlock; ++i) {
    to[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(values[i])) >> 16);
  }
}

template <typename T>
void WritePayload(int first_rank, int ranks, int64_t at, int64_t count, std::byte* to) {
  for (int64_t done = 0; done < count; done += kBlock) {
    Block sum{};
    for (int r = first_rank; r < first_rank + ranks; ++r) AddPayload(r, at + done, sum);
    std::array<T, kBlock> elements;
    Convert(sum, elements);
    std::memcpy(to + done * static_cast<int64_t>(sizeof(T)), elements.data(),
                static_cast<size_t>(std::min(kBlock, count - done)) * sizeof(T));
  }
}

// The sum of the payloads of some ranks, elements [at, at + count). f32 or bf16.
void WritePayload(DType dtype, int first_rank, int ranks, int64_t at, int64_t count,
                  std::byte* to) {
  if (dtype == DType::kF32) {
    WritePayload<float>(first_rank, ranks, at, count, to);
  } else {
    WritePayload<uint16_t>(first_rank, ranks, at, count, to);
  }
}

class Sweeper {
 public:
  Sweeper(Device& device, Communicator& communicator, const SweepOptions& options)
      : device_(device), communicator_(communicator), options_(options) {}

  absl::Status Open() {
    ASSIGN_OR_RETURN(stream_, device_.NewStream("calibrate"));
    settled_.emplace(*stream_);
    ASSIGN_OR_RETURN(barrier_, device_.Allocate(kAlignment));
    // The widest work reads one message and writes another: two of it, and no cache in between.
    ASSIGN_OR_RETURN(pool_, device_.Allocate(std::max<int64_t>(4 * options_.max_bytes, 64 << 20)));
    in_.resize(1 << 20);  // zeros
    for (int64_t at = 0; at < pool_->bytes(); at += static_cast<int64_t>(in_.size())) {
      const int64_t bytes = std::min(pool_->bytes() - at, static_cast<int64_t>(in_.size()));
      RETURN_IF_ERROR(device_.Copy(*stream_, in_.data(), pool_->data() + at, bytes));
    }
    return Finish();
  }

  absl::StatusOr<CollectiveRow> Measure(CollectiveKind kind, DType dtype, int64_t bytes,
                                        int32_t launches, bool in_place) {
    CollectiveRow row;
    row.kind = kind;
    row.dtype = dtype;
    row.op = Gathers(kind) ? ReduceOp::kNone : ReduceOp::kSum;
    row.launches = launches;
    row.in_place = in_place;
    const int64_t parts = ReducesWhole(kind) ? 1 : communicator_.size();
    row.count = bytes / (parts * launches * ItemSize(dtype));
    row.bytes = row.count * parts * launches * ItemSize(dtype);
    RETURN_IF_ERROR(Verify(row));
    RETURN_IF_ERROR(Repeat(row));
    return row;
  }

  absl::StatusOr<CopyRow> MeasureCopy(const std::string& what, Move move, int64_t bytes) {
    CopyRow row{what, bytes, 0, {}};
    const Segment unit{nullptr, nullptr, 1, move};
    const int64_t elements = bytes / BytesRead(unit) / kCopiedTensors;
    const int64_t in = Aligned(elements * BytesRead(unit));
    const int64_t region = kCopiedTensors * (in + Aligned(elements * BytesWritten(unit)));
    row.moved = kCopiedTensors * elements * (BytesRead(unit) + BytesWritten(unit));
    const auto copy = [&](int64_t at) -> absl::Status {
      std::vector<Segment> segments;
      std::byte* from = pool_->data() + at;
      std::byte* to = from + kCopiedTensors * in;
      for (int64_t i = 0; i < kCopiedTensors; ++i) {
        segments.push_back({from + i * in, to + i * Aligned(elements * BytesWritten(unit)),
                            move == Move::kBytes ? elements * BytesRead(unit) : elements, move});
      }
      ASSIGN_OR_RETURN(std::vector<Tile> tiles, Cut(segments));
      return device_.CopyTiles(*stream_,
                               std::make_shared<const std::vector<Tile>>(std::move(tiles)));
    };
    // Whatever the first launch of a kernel loads may wait for the device: not behind a gate.
    RETURN_IF_ERROR(copy(0));
    RETURN_IF_ERROR(Finish());
    int64_t host_ps = 0;
    ASSIGN_OR_RETURN(row.picoseconds, Times(region, copy, host_ps));
    return row;
  }

 private:
  struct Bytes {
    int64_t in = 0, out = 0;  // of one member
  };

  Bytes BytesOf(const CollectiveRow& row) const {
    const Collective member{row.kind, nullptr, nullptr, row.count, row.dtype, row.op};
    return {InputBytes(member, communicator_.size()), OutputBytes(member, communicator_.size())};
  }

  int64_t MemberBytes(const CollectiveRow& row) const {
    const Bytes bytes = BytesOf(row);
    return row.in_place ? Aligned(std::max(bytes.in, bytes.out))
                        : Aligned(bytes.in) + Aligned(bytes.out);
  }

  std::vector<Collective> Group(const CollectiveRow& row, std::byte* memory) const {
    const Bytes bytes = BytesOf(row);
    std::vector<Collective> group;
    for (int32_t i = 0; i < row.launches; ++i) {
      std::byte* in = memory + i * MemberBytes(row);
      std::byte* out = row.in_place ? in : in + Aligned(bytes.in);
      const int64_t own = communicator_.rank() * std::min(bytes.in, bytes.out);
      if (row.in_place && bytes.in < bytes.out) in += own;
      if (row.in_place && bytes.in > bytes.out) out += own;
      group.push_back({row.kind, in, out, row.count, row.dtype, row.op});
    }
    return group;
  }

  absl::Status Finish() const { return stream_->Record()->Wait(absl::InfiniteFuture()); }

  // What this rank must get.
  void WriteExpected(const CollectiveRow& row, std::byte* to) const {
    const int rank = communicator_.rank(), size = communicator_.size();
    if (Gathers(row.kind)) {
      const int64_t part = row.count * ItemSize(row.dtype);
      for (int r = 0; r < size; ++r) WritePayload(row.dtype, r, 1, 0, row.count, to + r * part);
      return;
    }
    const int64_t at = Scatters(row.kind) ? rank * row.count : 0;
    WritePayload(row.dtype, 0, size, at, row.count, to);
  }

  // Runs it once on known values and counts the elements that came out with other bits.
  absl::Status Verify(CollectiveRow& row) {
    const Bytes bytes = BytesOf(row);
    const int64_t item = ItemSize(row.dtype);
    const auto most = static_cast<size_t>(std::max(bytes.in, bytes.out));
    for (std::vector<std::byte>* payload : {&in_, &expected_, &out_}) {
      payload->resize(std::max(payload->size(), most));
    }
    WritePayload(row.dtype, communicator_.rank(), 1, 0, bytes.in / item, in_.data());
    WriteExpected(row, expected_.data());
    const std::vector<Collective> group = Group(row, pool_->data());
    for (const Collective& c : group) {
      auto* to = const_cast<void*>(c.in);
      RETURN_IF_ERROR(device_.Copy(*stream_, in_.data(), to, bytes.in));
    }
    RETURN_IF_ERROR(communicator_.Launch(*stream_, group));
    std::vector<int64_t> wrong = {0};
    for (const Collective& c : group) {
      RETURN_IF_ERROR(device_.Copy(*stream_, c.out, out_.data(), bytes.out));
      RETURN_IF_ERROR(Finish());
      if (std::memcmp(out_.data(), expected_.data(), static_cast<size_t>(bytes.out)) == 0) continue;
      for (int64_t at = 0; at < bytes.out; at += item) {
        wrong[0] +=
            std::memcmp(out_.data() + at, expected_.data() + at, static_cast<size_t>(item)) != 0;
      }
    }
    RETURN_IF_ERROR(
        ReduceOverRanks(device_, communicator_, *stream_, pool_->data(), ReduceOp::kSum, wrong));
    row.wrong = wrong[0];
    return absl::OkStatus();
  }

  absl::Status Repeat(CollectiveRow& row) {
    const auto launch = [&](int64_t at) {
      return communicator_.Launch(*stream_, Group(row, pool_->data() + at));
    };
    ASSIGN_OR_RETURN(row.picoseconds, Times(row.launches * MemberBytes(row), launch, row.host_ps));
    return absl::OkStatus();
  }

  // Runs work again and again, each time on the region of the pool that was left alone the longest.
  // Of the slowest rank.
  template <typename Work>
  absl::StatusOr<std::vector<int64_t>> Times(int64_t region, const Work& work, int64_t& host_ps) {
    using Clock = std::chrono::steady_clock;
    std::vector<int64_t> times, host;
    for (int64_t i = 0; i < kRepetitions; ++i) {
      if (next_ + region > pool_->bytes()) next_ = 0;
      absl::SleepFor(kPause);
      ASSIGN_OR_RETURN(std::unique_ptr<Gate> gate, stream_->Shut());
      // All ranks begin at once: a late one would find half of its peers' work done.
      const Collective barrier{CollectiveKind::kAllReduce,
                               barrier_->data(),
                               barrier_->data(),
                               1,
                               DType::kI64,
                               ReduceOp::kMax};
      RETURN_IF_ERROR(communicator_.Launch(*stream_, {&barrier, 1}));
      const Clock::time_point begin = Clock::now();
      const std::shared_ptr<Event> from = stream_->Record();
      RETURN_IF_ERROR(work(next_));
      const std::shared_ptr<Event> to = stream_->Record();
      host.push_back(std::chrono::nanoseconds(Clock::now() - begin).count() * 1000);
      gate = nullptr;
      RETURN_IF_ERROR(to->Wait(absl::InfiniteFuture()));
      ASSIGN_OR_RETURN(const int64_t ps, to->Since(*from));
      times.push_back(std::max<int64_t>(ps, 1));
      next_ += region;
    }
    host_ps = Median(std::move(host));
    RETURN_IF_ERROR(
        ReduceOverRanks(device_, communicator_, *stream_, pool_->data(), ReduceOp::kMax, times));
    return times;
  }

  Device& device_;
  Communicator& communicator_;
  const SweepOptions& options_;
  std::unique_ptr<Buffer> pool_, barrier_;
  int64_t next_ = 0;  // in the pool
  // Of a verification; kept, because fresh memory is what takes its time.
  std::vector<std::byte> in_, expected_, out_;
  std::unique_ptr<Stream> stream_;
  std::optional<Settled> settled_;  // goes first: what the stream runs is in the buffers
};

}  // namespace

absl::StatusOr<SweepResult> Sweep(Device& device, Communicator& communicator,
                                  const SweepOptions& options,
                                  const std::function<void(const CollectiveRow&)>& on_row) {
  Sweeper sweeper(device, communicator, options);
  RETURN_IF_ERROR(sweeper.Open());
  SweepResult result;
  const auto measure = [&](auto... how) -> absl::Status {
    ASSIGN_OR_RETURN(CollectiveRow row, sweeper.Measure(how...));
    if (on_row) on_row(row);
    result.collectives.push_back(std::move(row));
    return absl::OkStatus();
  };
  for (const CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes = Next(bytes)) {
        for (const bool in_place : {false, true}) {
          RETURN_IF_ERROR(measure(kind, dtype, bytes, 1, in_place));
        }
      }
    }
    for (const int32_t launches : {4, 16}) {
      for (int64_t bytes = options.min_bytes * 16; bytes <= options.max_bytes; bytes *= 16) {
        RETURN_IF_ERROR(measure(kind, DType::kF32, bytes, launches, false));
      }
    }
  }
  for (const auto& [what, move] :
       {std::pair("copy", Move::kBytes), std::pair("f32 to bf16", Move::kF32ToBf16),
        std::pair("bf16 to f32", Move::kBf16ToF32)}) {
    for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes = Next(bytes)) {
      ASSIGN_OR_RETURN(CopyRow row, sweeper.MeasureCopy(what, move, bytes));
      result.copies.push_back(std::move(row));
    }
  }
  return result;
}

absl::Status ReduceOverRanks(Device& device, Communicator& communicator, Stream& stream,
                             std::byte* memory, ReduceOp op, std::vector<int64_t>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const auto run = [&]() -> absl::Status {
    RETURN_IF_ERROR(device.Copy(stream, values.data(), memory, count * 8));
    const Collective c{CollectiveKind::kAllReduce, memory, memory, count, DType::kI64, op};
    RETURN_IF_ERROR(communicator.Launch(stream, {&c, 1}));
    return device.Copy(stream, memory, values.data(), count * 8);
  };
  const absl::Status enqueued = run();
  const absl::Status ended = stream.Record()->Wait(absl::InfiniteFuture());
  return enqueued.ok() ? ended : enqueued;
}

int64_t Median(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<int64_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace bucketd::agent
