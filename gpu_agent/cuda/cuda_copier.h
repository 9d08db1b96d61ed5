// Copies by the tile kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/cuda/cuda_device.h"
#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

// Thread-safe. Tables of tiles go to the GPU when they are first used, on a stream of their own,
// and stay there as long as their owner keeps them: a plan's tables are uploaded once. Nothing is
// asked of CUDA on the way: a table that is gone is freed on another stream, behind its last
// copies. A table that a capture has used stays to the end: the graph reads it at each replay.
class CudaCopier {
 public:
  static absl::StatusOr<std::unique_ptr<CudaCopier>> Create(int device);
  ~CudaCopier();
  CudaCopier(const CudaCopier&) = delete;
  CudaCopier& operator=(const CudaCopier&) = delete;

  // As Device::CopyTiles.
  absl::Status Copy(Stream& stream, const TileList& tiles);

 private:
  struct Table {
    std::weak_ptr<const std::vector<Tile>> owner;
    TileList frozen;  // the owner, of a table in a graph
    Tile* tiles = nullptr;
    std::shared_ptr<Event> uploaded;
    std::map<uint64_t, std::shared_ptr<Event>> used;  // the last time, by the stream's id
  };

  CudaCopier(int blocks, std::unique_ptr<CudaStream> uploads, std::unique_ptr<CudaStream> frees)
      : blocks_(blocks), uploads_(std::move(uploads)), frees_(std::move(frees)) {}
  absl::StatusOr<Table*> Find(const TileList& tiles);
  absl::Status Upload(const std::vector<Tile>& tiles, Table& table);
  absl::Status Freeze(Table& table, const TileList& owner);
  void Free(const Table& table);
  void Forget();

  const int blocks_;
  std::mutex mutex_;
  const std::unique_ptr<CudaStream> uploads_, frees_;
  std::map<const std::vector<Tile>*, Table> tables_;
};

}  // namespace bucketd::agent
