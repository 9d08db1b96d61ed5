#include "gpu_agent/cuda/cuda_copier.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "gpu_agent/cuda/pack_kernels.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr absl::Duration kUploadLimit = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<CudaCopier>> CudaCopier::Create(int device) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> uploads, CudaStream::Start(device));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> frees, CudaStream::Start(device));
  const CurrentDevice current(device);
  int blocks = 0;
  RETURN_IF_ERROR(CudaStatus(ResidentBlocks(blocks), "the kernel's grid"));
  return std::unique_ptr<CudaCopier>(new CudaCopier(blocks, std::move(uploads), std::move(frees)));
}

CudaCopier::~CudaCopier() {
  const CurrentDevice current(uploads_->device());
  for (const auto& [owner, table] : tables_) Free(table);
}

// Copies of an executor that has failed may still run: their errors do not matter, their ends do.
void CudaCopier::Free(const Table& table) {
  frees_->AfterEnd(*table.uploaded);
  for (const auto& [id, event] : table.used) frees_->AfterEnd(*event);
  cudaFreeAsync(table.tiles, frees_->get());
}

absl::Status CudaCopier::Copy(Stream& stream, const TileList& tiles) {
  CudaStream* cuda = AsCudaStream(stream, uploads_->device());
  if (cuda == nullptr) return absl::InvalidArgumentError("a stream of another device");
  if (tiles->size() > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(tiles->size(), " tiles are too many"));
  }
  if (tiles->empty() || !cuda->status().ok()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint64_t capture, cuda->Capture());
  const CurrentDevice current(uploads_->device());
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(Table * table, Find(tiles));
  if (capture != 0) {
    RETURN_IF_ERROR(Freeze(*table, tiles));
  } else if (!table->used.contains(cuda->id())) {
    cuda->After(table->uploaded);  // a stream that has used it is past its upload
  }
  const absl::Status launched = CudaStatus(
      LaunchTiles(table->tiles, static_cast<uint32_t>(tiles->size()), blocks_, cuda->get()),
      absl::StrCat("a copy of ", tiles->size(), " tiles"));
  if (!launched.ok()) cuda->Fail(launched);
  if (capture == 0) table->used[cuda->id()] = cuda->Record();
  return launched;
}

// Once for each table and graph: no event of outside orders what is in a capture, so the host waits
// until the table is there.
absl::Status CudaCopier::Freeze(Table& table, const TileList& owner) {
  if (table.frozen != nullptr) return absl::OkStatus();
  const BesideCaptures beside;
  table.frozen = owner;
  return uploads_->Drain(absl::Now() + kUploadLimit);
}

absl::StatusOr<CudaCopier::Table*> CudaCopier::Find(const TileList& tiles) {
  const auto found = tables_.find(tiles.get());
  // Another list may have come to lie where one was that is gone.
  if (found != tables_.end() && found->second.owner.lock() == tiles) return &found->second;
  Forget();
  Table table;
  table.owner = tiles;
  RETURN_IF_ERROR(Upload(*tiles, table));
  return &(tables_[tiles.get()] = std::move(table));
}

absl::Status CudaCopier::Upload(const std::vector<Tile>& tiles, Table& table) {
  const BesideCaptures beside;  // an upload is no part of any
  const size_t bytes = tiles.size() * sizeof(Tile);
  const std::string what = absl::StrCat("a table of ", tiles.size(), " tiles");
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMallocAsync(&memory, bytes, uploads_->get()), what));
  const absl::Status copied = CudaStatus(
      cudaMemcpyAsync(memory, tiles.data(), bytes, cudaMemcpyHostToDevice, uploads_->get()), what);
  if (!copied.ok()) {
    cudaFreeAsync(memory, uploads_->get());
    return copied;
  }
  table.tiles = static_cast<Tile*>(memory);
  table.uploaded = uploads_->Record();
  return absl::OkStatus();
}

void CudaCopier::Forget() {
  for (auto it = tables_.begin(); it != tables_.end();) {
    if (!it->second.owner.expired()) {
      ++it;
      continue;
    }
    Free(it->second);
    it = tables_.erase(it);
  }
}

}  // namespace bucketd::agent
