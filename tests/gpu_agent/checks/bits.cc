#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"

#include "gpu_agent/cuda/pack_kernels.h"
#include "gpu_agent/pack/segments.h"
#include "tests/gpu_agent/checks/checks.h"
#include "tests/gpu_agent/checks/rivals.h"
#include "tests/gpu_agent/checks/say.h"

namespace bucketd::agent {
namespace {

struct Free {
  void operator()(std::byte* memory) const { Must(cudaFree(memory), "cudaFree"); }
};
using GpuMemory = std::unique_ptr<std::byte, Free>;

GpuMemory Allocate(size_t bytes) {
  void* memory = nullptr;
  Must(cudaMalloc(&memory, bytes), "cudaMalloc");
  return GpuMemory(static_cast<std::byte*>(memory));
}

// A tensor on both sides that begins so many bytes into an allocation and ends with it.
struct Tensor {
  size_t begin = 0;
  std::vector<std::byte> host;
  GpuMemory gpu;

  Tensor(size_t begin_at, size_t bytes) : begin(begin_at), host(begin_at + bytes) {
    gpu = Allocate(std::max<size_t>(host.size(), 1));
  }
  void Upload() const {
    Must(cudaMemcpy(gpu.get(), host.data(), host.size(), cudaMemcpyHostToDevice), "upload");
  }
  // Whether the GPU's bytes are the host's.
  bool Same() const {
    std::vector<std::byte> back(host.size());
    Must(cudaMemcpy(back.data(), gpu.get(), back.size(), cudaMemcpyDeviceToHost), "download");
    return back == host;
  }
};

struct List {
  std::vector<Tensor> sources, targets;
  std::vector<Segment> on_gpu, on_host;
};

List RandomList(std::mt19937_64& random, int segments) {
  static constexpr uint32_t kAwkward[] = {0x80000000, 1,          0x007fffff, 0x7f800000,
                                          0x7f800001, 0xffc00000, 0x7f7fffff, 0x3f808000};
  List list;
  for (int k = 0; k < segments; ++k) {
    const Move move = static_cast<Move>(random() % 4);
    const bool cast = move == Move::kF32ToBf16 || move == Move::kBf16ToF32;
    const int64_t count = static_cast<int64_t>(random() % (k % 8 == 0 ? 200000 : 3000));
    const Segment sizes{nullptr, nullptr, count, move};
    Tensor& source = list.sources.emplace_back(random() % 16 * (cast ? ReadSize(move) : 1),
                                               static_cast<size_t>(BytesRead(sizes)));
    Tensor& target = list.targets.emplace_back(random() % 16 * (cast ? WriteSize(move) : 1),
                                               static_cast<size_t>(BytesWritten(sizes)));
    for (size_t at = 0; at + 4 <= source.host.size(); at += 4) {
      const uint32_t bits =
          random() % 4 == 0 ? kAwkward[random() % 8] : static_cast<uint32_t>(random());
      std::memcpy(&source.host[at], &bits, 4);
    }
    std::fill(target.host.begin(), target.host.end(), std::byte{0xab});
    source.Upload();
    target.Upload();
    const bool zero = move == Move::kZero;
    list.on_gpu.push_back({zero ? nullptr : source.gpu.get() + source.begin,
                           target.gpu.get() + target.begin, count, move});
    list.on_host.push_back({zero ? nullptr : source.host.data() + source.begin,
                            target.host.data() + target.begin, count, move});
  }
  return list;
}

template <class T>
GpuMemory UploadAll(const std::vector<T>& items) {
  GpuMemory memory = Allocate(items.size() * sizeof(T));
  Must(cudaMemcpy(memory.get(), items.data(), items.size() * sizeof(T), cudaMemcpyHostToDevice),
       "upload");
  return memory;
}

// `blocks` 0: all that the GPU has.
void RunTiles(const std::vector<Segment>& segments, int blocks) {
  if (blocks == 0) Must(ResidentBlocks(blocks), "the grid");
  const std::vector<Tile> tiles = *Cut(segments);
  const GpuMemory table = UploadAll(tiles);
  Must(LaunchTiles(reinterpret_cast<const Tile*>(table.get()), static_cast<uint32_t>(tiles.size()),
                   blocks, nullptr),
       "the tile kernel");
  Must(cudaDeviceSynchronize(), "the tile kernel");
}

void RunSegments(const std::vector<Segment>& segments) {
  std::vector<Segment> some;
  std::vector<uint32_t> first;
  uint32_t tiles = 0;
  for (const Segment& segment : segments) {
    if (segment.count == 0) continue;
    some.push_back(segment);
    first.push_back(tiles);
    tiles += static_cast<uint32_t>(Cutting(segment, kTileBytes).tiles());
  }
  const GpuMemory table = UploadAll(some);
  const GpuMemory sums = UploadAll(first);
  int blocks = 0;
  Must(ResidentBlocks(blocks), "the grid");
  Must(LaunchSegments(reinterpret_cast<const Segment*>(table.get()),
                      reinterpret_cast<const uint32_t*>(sums.get()),
                      static_cast<uint32_t>(some.size()), tiles, blocks, nullptr),
       "the segment kernel");
  Must(cudaDeviceSynchronize(), "the segment kernel");
}

}  // namespace

Verdict CheckBits() {
  std::mt19937_64 random(1);
  int64_t segments = 0, wrong = 0;
  // A sanitizer takes its time.
  const char* said = std::getenv("GPU_CHECKS_TIMES");
  const int rounds = said == nullptr ? 12 : std::min(12, 4 * std::atoi(said));
  for (int round = 0; round < rounds; ++round) {
    List list = RandomList(random, 150);
    if (round % 4 == 3) {
      RunSegments(list.on_gpu);
    } else {
      RunTiles(list.on_gpu, round % 4 == 0 ? 0 : round % 4 == 1 ? 1 : 7);
    }
    CopyOnHost(*Cut(list.on_host));
    for (const Tensor& target : list.targets) wrong += target.Same() ? 0 : 1;
    segments += static_cast<int64_t>(list.targets.size());
  }
  Line("segments of random size, alignment and move",
       absl::StrCat(wrong, " of ", segments, " differ from the host's"), "0",
       wrong == 0 ? "right" : "WRONG");
  return wrong == 0 ? Verdict::kRight : Verdict::kWrong;
}

}  // namespace bucketd::agent
