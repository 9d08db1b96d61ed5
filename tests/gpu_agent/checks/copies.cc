#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "gpu_agent/cuda/pack_kernels.h"
#include "gpu_agent/pack/segments.h"
#include "tests/gpu_agent/checks/checks.h"
#include "tests/gpu_agent/checks/rivals.h"
#include "tests/gpu_agent/checks/say.h"

namespace bucketd::agent {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kArena = 2304 * kMiB;  // of a source, of a target
constexpr int kRepeats = 20;
constexpr int64_t kWorld = 8, kParameters = 64;  // of the FSDP shapes

// Segments as offsets into a source and a target.
struct Shape {
  std::string name;
  Move move = Move::kBytes;
  int64_t align = 128;  // of every segment in the bucket
  struct Piece {
    int64_t from, to, count;
  };
  std::vector<Piece> pieces;
  int64_t source_bytes = 0, target_bytes = 0;

  std::vector<Segment> At(const std::byte* source, std::byte* target) const {
    std::vector<Segment> segments;
    for (const Piece& p : pieces) {
      segments.push_back({source + p.from, target + p.to, p.count, move});
    }
    return segments;
  }
  double traffic() const {
    double bytes = 0;
    for (const Piece& p : pieces) {
      bytes += static_cast<double>(p.count) * (ReadSize(move) + WriteSize(move));
    }
    return bytes;
  }
};

int64_t Up(int64_t at, int64_t unit) { return (at + unit - 1) / unit * unit; }

// Tensors of so many 16-bit elements into one bucket. kBytes counts their bytes.
Shape CopyIn(const std::string& name, Move move, int64_t align,
             const std::vector<int64_t>& elements) {
  Shape shape{name, move, align, {}, 0, 0};
  for (const int64_t n : elements) {
    const int64_t count = move == Move::kBytes ? 2 * n : n;
    shape.source_bytes = Up(shape.source_bytes, 512);
    shape.target_bytes = Up(shape.target_bytes, std::max<int64_t>(align, WriteSize(move)));
    shape.pieces.push_back({shape.source_bytes, shape.target_bytes, count});
    shape.source_bytes += count * ReadSize(move);
    shape.target_bytes += count * WriteSize(move);
  }
  return shape;
}

std::vector<Shape> Mixes() {
  std::vector<int64_t> layers, mixed = {512 * kMiB}, norms, odd;
  for (int layer = 0; layer < 32; ++layer) {
    for (const int64_t n : {4096 * 256, 1024 * 256, 1024 * 256, 4096 * 256, 14336 * 256,
                            14336 * 256, 14336 * 256, 256, 256}) {
      layers.push_back(n);
    }
  }
  std::mt19937_64 random(3);
  for (int k = 0; k < 400; ++k) mixed.push_back(int64_t{512} << (random() % 14));
  for (int k = 0; k < 4000; ++k) norms.push_back(512 + 123 * (k % 30));
  for (int k = 0; k < 600; ++k) odd.push_back(static_cast<int64_t>(random() % 1000000) | 1);
  std::vector<Shape> shapes;
  for (const Move move : {Move::kBytes, Move::kF32ToBf16, Move::kBf16ToF32}) {
    for (const int64_t align : {int64_t{128}, int64_t{2}}) {
      shapes.push_back(CopyIn("32 layers", move, align, layers));
      // 2 GiB of f32 would be more than it says.
      if (move == Move::kBytes) shapes.push_back(CopyIn("1 KiB to 1 GiB", move, align, mixed));
      shapes.push_back(CopyIn("4000 norms", move, align, norms));
      shapes.push_back(CopyIn("odd sizes", move, align, odd));
    }
  }
  return shapes;
}

// What FSDP2 does around its collectives, for parameters of `bytes` in bf16: shards cast and
// gathered (ag_in), ranks' slices to parameters (ag_out), gradients to slices in f32 (rs_in).
std::vector<Shape> Fsdp(int64_t bytes) {
  const int64_t chunk = bytes / 2 / kParameters / kWorld, slice = chunk * kParameters;
  Shape in = CopyIn("ag_in", Move::kF32ToBf16, 128, std::vector<int64_t>(kParameters, chunk));
  Shape out{"ag_out", Move::kBytes, 128, {}, bytes, bytes};
  Shape scatter{"rs_in", Move::kBf16ToF32, 128, {}, bytes, 2 * bytes};
  for (int64_t rank = 0; rank < kWorld; ++rank) {
    for (int64_t p = 0; p < kParameters; ++p) {
      const int64_t in_slice = rank * slice + p * chunk, in_tensor = (p * kWorld + rank) * chunk;
      out.pieces.push_back({2 * in_slice, 2 * in_tensor, 2 * chunk});
      scatter.pieces.push_back({2 * in_tensor, 4 * in_slice, chunk});
    }
  }
  return {std::move(in), std::move(out), std::move(scatter)};
}

class Bench {
 public:
  Bench() {
    Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    Must(cudaEventCreate(&begin_), "an event");
    Must(cudaEventCreate(&end_), "an event");
    Must(cudaMalloc(&source_, kArena), "the source");
    Must(cudaMalloc(&target_, kArena), "the target");
    Must(cudaMallocHost(&host_source_, kArena), "the host's source");
    Must(cudaMallocHost(&wanted_, kArena), "the host's target");
    Must(cudaMallocHost(&got_, kArena), "the host's copy of the target");
    Must(LaunchFill(static_cast<uint32_t*>(source_), kArena / 4, 7, stream_), "filling");
    Must(cudaMemcpyAsync(host_source_, source_, kArena, cudaMemcpyDeviceToHost, stream_), "copy");
    Must(cudaStreamSynchronize(stream_), "filling");
  }

  cudaStream_t stream() const { return stream_; }
  std::byte* source() const { return static_cast<std::byte*>(source_); }
  std::byte* target() const { return static_cast<std::byte*>(target_); }

  // Seconds, the median.
  double Time(const std::function<void()>& run) const {
    std::vector<float> times;
    for (int k = -3; k < kRepeats; ++k) {
      float milliseconds = 0;
      Must(cudaEventRecord(begin_, stream_), "an event");
      run();
      Must(cudaEventRecord(end_, stream_), "an event");
      Must(cudaEventSynchronize(end_), "a copy");
      Must(cudaEventElapsedTime(&milliseconds, begin_, end_), "a time");
      if (k >= 0) times.push_back(milliseconds);
    }
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]) * 1e-3;
  }

  // The host's result for the shape, which Right() compares with.
  void Want(const Shape& shape) {
    bytes_ = static_cast<size_t>(shape.target_bytes);
    std::memset(wanted_, 0xab, bytes_);
    const auto tiles =
        Cut(shape.At(static_cast<std::byte*>(host_source_), static_cast<std::byte*>(wanted_)));
    CopyOnHost(*tiles);
  }
  bool Right(const std::function<void()>& run) const {
    Must(cudaMemsetAsync(target_, 0xab, bytes_, stream_), "clearing");
    run();
    Must(cudaMemcpyAsync(got_, target_, bytes_, cudaMemcpyDeviceToHost, stream_), "download");
    Must(cudaStreamSynchronize(stream_), "a copy");
    return std::memcmp(got_, wanted_, bytes_) == 0;
  }
  // Of one copy with as much traffic.
  double FlatTime(double traffic) const {
    const size_t bytes = static_cast<size_t>(traffic / 2);
    return Time([&] {
      Must(cudaMemcpyAsync(target_, source_, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy");
    });
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void *source_ = nullptr, *target_ = nullptr;
  void *host_source_ = nullptr, *wanted_ = nullptr, *got_ = nullptr;
  size_t bytes_ = 0;
};

template <class T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& items) {
    Must(cudaMalloc(&memory_, std::max<size_t>(items.size() * sizeof(T), 1)), "a table");
    Must(cudaMemcpy(memory_, items.data(), items.size() * sizeof(T), cudaMemcpyHostToDevice),
         "a table");
  }
  ~OnGpu() { cudaFree(memory_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  T* get() const { return static_cast<T*>(memory_); }

 private:
  void* memory_ = nullptr;
};

// One line of the table a method; remembers the worst.
class Table {
 public:
  Table(Bench& bench, const Shape& shape) : bench_(bench), shape_(shape) {
    bench.Want(shape);
    flat_ = bench.FlatTime(shape.traffic());
  }
  double Add(const std::string& method, const std::function<void()>& run) {
    static constexpr const char* kMoves[] = {"bytes", "f32>bf16", "bf16>f32", "zero"};
    const bool right = bench_.Right(run);
    const double seconds = bench_.Time(run);
    wrong_ += right ? 0 : 1;
    std::printf("%-15s %-8s %5lld %6zu %9.2f  %-24s %10.1f %8.1f %6.1f%% %s\n", shape_.name.c_str(),
                kMoves[static_cast<int>(shape_.move)], static_cast<long long>(shape_.align),
                shape_.pieces.size(), shape_.traffic() / 1e6, method.c_str(), seconds * 1e6,
                shape_.traffic() / seconds / 1e9, 100 * flat_ / seconds, right ? "" : "WRONG BITS");
    std::fflush(stdout);
    return seconds;
  }
  double flat() const { return flat_; }
  int wrong() const { return wrong_; }

 private:
  Bench& bench_;
  const Shape& shape_;
  double flat_ = 0;
  int wrong_ = 0;
};

void AddTensorByTensor(Table& table, Bench& bench, const std::vector<Segment>& segments) {
  const bool bytes = segments[0].move == Move::kBytes;
  table.Add(bytes ? "cudaMemcpyAsync a tensor" : "kernel a tensor", [&] {
    for (const Segment& s : segments) {
      Must(bytes ? cudaMemcpyAsync(s.to, s.from, static_cast<size_t>(s.count),
                                   cudaMemcpyDeviceToDevice, bench.stream())
                 : LaunchCast(s, bench.stream()),
           "a tensor");
    }
  });
}

// Those that copy bytes only.
void AddBatched(Table& table, Bench& bench, const std::vector<Segment>& segments) {
  std::vector<const void*> from;
  std::vector<void*> to;
  std::vector<size_t> bytes;
  for (const Segment& s : segments) {
    from.push_back(s.from);
    to.push_back(s.to);
    bytes.push_back(static_cast<size_t>(s.count));
  }
  const OnGpu<const void*> gpu_from(from);
  const OnGpu<void*> gpu_to(to);
  const OnGpu<size_t> gpu_bytes(bytes);
  const uint32_t count = static_cast<uint32_t>(bytes.size());
  size_t scratch_bytes = 0;
  Must(LaunchCub(nullptr, scratch_bytes, gpu_from.get(), gpu_to.get(), gpu_bytes.get(), count,
                 bench.stream()),
       "cub");
  const OnGpu<std::byte> scratch{std::vector<std::byte>(scratch_bytes)};
  table.Add("cub::DeviceMemcpy", [&] {
    Must(LaunchCub(scratch.get(), scratch_bytes, gpu_from.get(), gpu_to.get(), gpu_bytes.get(),
                   count, bench.stream()),
         "cub");
  });
#if CUDART_VERSION >= 13000
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  table.Add("cudaMemcpyBatchAsync", [&] {
    Must(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), count, &attributes, &first, 1,
                              bench.stream()),
         "cudaMemcpyBatchAsync");
  });
#endif
}

void AddSegments(Table& table, Bench& bench, const std::vector<Segment>& segments) {
  std::vector<uint32_t> first;
  uint32_t tiles = 0;
  for (const Segment& s : segments) {
    first.push_back(tiles);
    tiles += static_cast<uint32_t>(Cutting(s, kTileBytes).tiles());
  }
  const OnGpu<Segment> gpu_segments(segments);
  const OnGpu<uint32_t> gpu_first(first);
  int blocks = 0;
  Must(ResidentBlocks(blocks), "the grid");
  table.Add("prefix sums", [&] {
    Must(LaunchSegments(gpu_segments.get(), gpu_first.get(), static_cast<uint32_t>(first.size()),
                        tiles, blocks, bench.stream()),
         "prefix sums");
  });
}

// Seconds of the tile kernel; `max_blocks` 0: all that the GPU has.
double AddTiles(Table& table, Bench& bench, const std::vector<Segment>& segments,
                int64_t tile_bytes, int max_blocks) {
  int blocks = max_blocks;
  if (blocks == 0) Must(ResidentBlocks(blocks), "the grid");
  const std::vector<Tile> tiles = *Cut(segments, tile_bytes);
  const OnGpu<Tile> gpu_tiles(tiles);
  const std::string method = absl::StrCat("tiles of ", tile_bytes >> 10, " KiB",
                                          max_blocks > 0 ? absl::StrCat(", ", max_blocks) : "");
  return table.Add(method, [&] {
    Must(LaunchTiles(gpu_tiles.get(), static_cast<uint32_t>(tiles.size()), blocks, bench.stream()),
         "tiles");
  });
}

void AddWide(Table& table, Bench& bench, const std::vector<Segment>& segments) {
  const std::vector<Tile> tiles = *Cut(segments);
  const OnGpu<Tile> gpu_tiles(tiles);
  table.Add("blocks of 512 threads", [&] {
    Must(LaunchWide(gpu_tiles.get(), static_cast<uint32_t>(tiles.size()), bench.stream()), "wide");
  });
}

// Where the GPU and all tiles are of the kind.
void AddBulk(Table& table, Bench& bench, const std::vector<Segment>& segments) {
  int major = 0, processors = 0;
  Must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "the GPU's kind");
  Must(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "its size");
  const std::vector<Tile> tiles = *Cut(segments, kBulkBytes);
  const auto whole = [](const Tile& tile) {
    return tile.move == Move::kBytes && tile.count % 16 == 0 &&
           reinterpret_cast<uintptr_t>(tile.from) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(tile.to) % 16 == 0;
  };
  if (major < 9 || !std::all_of(tiles.begin(), tiles.end(), whole)) return;
  const OnGpu<Tile> gpu_tiles(tiles);
  for (const int blocks : {processors, 16}) {
    table.Add(absl::StrCat("bulk copies", blocks == 16 ? ", 16" : ""), [&] {
      Must(LaunchBulk(gpu_tiles.get(), static_cast<uint32_t>(tiles.size()), blocks, bench.stream()),
           "bulk copies");
    });
  }
}

void Head() {
  std::printf("%-15s %-8s %5s %6s %9s  %-24s %10s %8s %7s\n", "set", "move", "align", "segs",
              "MB (r+w)", "method", "us", "GB/s", "%copy");
}

}  // namespace

Verdict MeasureCopies(const std::string& tsv) {
  Bench bench;
  const double roof = 4e9 / bench.FlatTime(4e9);
  std::printf("one copy of 2 GB on the device: %.1f GB/s, read and written\n", roof / 1e9);
  std::printf("%%copy: one cudaMemcpyAsync with the same traffic is 100\n");
  Head();
  int wrong = 0, missed = 0;
  for (const Shape& shape : Mixes()) {
    const std::vector<Segment> segments = shape.At(bench.source(), bench.target());
    Table table(bench, shape);
    const double seconds = AddTiles(table, bench, segments, kTileBytes, 0);
    AddTiles(table, bench, segments, 2 * kTileBytes, 0);
    AddTiles(table, bench, segments, kTileBytes, 16);
    AddWide(table, bench, segments);
    AddBulk(table, bench, segments);
    AddSegments(table, bench, segments);
    AddTensorByTensor(table, bench, segments);
    if (shape.move == Move::kBytes) AddBatched(table, bench, segments);
    wrong += table.wrong();
    // Where the planner has aligned the segments and launching is not what takes the time.
    const bool goal = shape.align == 128 && shape.traffic() >= 64e6;
    missed += goal && table.flat() < 0.9 * seconds ? 1 : 0;
  }
  std::FILE* out = tsv.empty() ? nullptr : std::fopen(tsv.c_str(), "w");
  for (int64_t bytes = kMiB; bytes <= 1024 * kMiB; bytes *= 4) {
    for (const Shape& shape : Fsdp(bytes)) {
      Table table(bench, shape);
      const double seconds =
          AddTiles(table, bench, shape.At(bench.source(), bench.target()), kTileBytes, 0);
      wrong += table.wrong();
      if (out == nullptr) continue;
      std::fprintf(out, "%s\t%lld\t%.9f\n", shape.name.c_str(), static_cast<long long>(bytes),
                   seconds);
    }
  }
  if (out != nullptr) std::fclose(out);
  Line("one copy of 2 GB on the device", absl::StrFormat("%.1f GB/s", roof / 1e9), "none", "right");
  Line("ways to copy with wrong bits", absl::StrCat(wrong), "0", wrong == 0 ? "right" : "WRONG");
  Line("aligned sets of 64 MB or more below 90 % of one copy", absl::StrCat(missed), "0",
       missed == 0 ? "right" : "below the goal");
  return wrong > 0 ? Verdict::kWrong : missed > 0 ? Verdict::kGoalMissed : Verdict::kRight;
}

}  // namespace bucketd::agent
