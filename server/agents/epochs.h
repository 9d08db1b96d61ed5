// Numbers of epochs: never given twice by all the servers that share a store, and by each server
// always greater than before; another server's may be smaller. Agents of a group ask the same
// server as long as it lives (client/addresses.h). Each server takes blocks of them by
// compare-and-set, ahead of need, so that Next() never waits. Where the store gives none, and where
// it is forgotten with the process, they come from the clock: then two servers may give the same.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "server/store/store.h"

namespace bucketd {

class Epochs {
 public:
  // `store` outlives this. `now_ms` is Unix time: below it there is no number, so that a store that
  // was lost, or a server of a version that asked the clock alone, does not bring old ones back.
  Epochs(Store& store, std::function<int64_t()> now_ms);

  // Takes a block if less than half of one is left. May block on the disk; errors are the store's.
  absl::Status Take();
  uint64_t Next();

 private:
  Store& store_;
  const std::function<int64_t()> now_ms_;
  absl::Mutex taking_ ABSL_ACQUIRED_BEFORE(mutex_);  // over the disk
  absl::Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0, end_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bucketd
