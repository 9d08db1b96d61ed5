// The bytes that are live while a step of the search goes on: exactly the simulator's.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/auto/launch_cost.h"
#include "passes/auto/problem.h"

namespace bucketd::search {

// Counts the uses of every storage that are still to come. Not thread-safe; the problem outlives
// it.
class LiveMemory {
 public:
  explicit LiveMemory(const Problem& problem);

  // As a step begins.
  void Reset();

  // Each returns the most bytes that were live on the way. Amortised O(storages touched).
  int64_t Run(LeaderId leader);  // that is no start and no wait
  int64_t Start(const Batch& batch, const LaunchCost& cost);
  int64_t Wait(const Batch& batch, const LaunchCost& cost);

  // What a start takes until its wait, or until its copy-in has read the inputs; what a wait takes
  // on the way; and whether there is less live behind a wait than before it, but for its result.
  int64_t NeededByStart(const Batch& batch, const LaunchCost& cost) const;
  int64_t NeededByWait(const Batch& batch, const LaunchCost& cost) const;
  bool WaitFrees(const Batch& batch) const;

  int64_t live() const { return live_; }
  // Bytes that nothing but this leader keeps alive.
  int64_t HeldBy(LeaderId leader) const;

 private:
  struct Storage {
    int64_t bytes = 0;  // that go with its last use; 0 if it is kept
    int32_t uses_left = 0;
    int32_t shared = -1;  // the shared buffer it is part of
  };
  struct SharedBuffer {
    int64_t bytes = 0;
    int32_t parts_left = 0;
    bool kept = false;
  };
  void Allocate(int64_t bytes);
  void Use(StorageId s);
  void Release(LeaderId l);
  void ReleaseInputs(LeaderId start);
  void ShareResults(const Batch& batch, int64_t bytes);

  const Problem& problem_;
  std::vector<Storage> fresh_, storages_;
  std::vector<SharedBuffer> buffers_;
  int64_t live_ = 0, most_ = 0;
};

}  // namespace bucketd::search
