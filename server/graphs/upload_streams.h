// Which uploads of one kind are under way, and for how long they may be waited for. A stream begins
// with `stall` of patience; waiting for its next message uses it up, what comes restores it at
// `least_rate`. Where all places are taken, the stream that has been waited for most gives way,
// else the newest of whoever has most. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"

#include "server/base/clock.h"
#include "server/base/shares.h"

namespace bucketd {

struct UploadStreamLimits {
  int64_t max_streams = 64;
  std::chrono::milliseconds stall{10'000};
  std::chrono::milliseconds deadline{600'000};  // of a whole stream
  int64_t least_rate = 16 << 10;                // encoded bytes a second
  const char* what = "uploads";                 // for people
};

class UploadStreams {
 public:
  using Id = uint64_t;  // 0: none

  // `displaced`, which outlives this, counts those that gave way.
  UploadStreams(const UploadStreamLimits& limits, prometheus::Counter& displaced)
      : limits_(limits), displaced_(displaced) {}

  // OVERLOADED if all places are taken. Close() whatever was opened. `share`: whose it is, of equal
  // length for all.
  absl::StatusOr<Id> Open(const Shares::Path& share);
  // OVERLOADED of both: the stream gave way to another meanwhile.
  // The wait for the next message begins, and has to end then.
  absl::StatusOr<SteadyTime> BeginWait(Id id);
  // It came, with so many encoded bytes.
  absl::Status Came(Id id, int64_t bytes);
  void Close(Id id);

 private:
  struct Stream {
    Shares::Path share;
    SteadyTime deadline;
    std::chrono::nanoseconds patience;
    SteadyTime waits_since = SteadyTime::max();  // max: it is being worked on
  };
  using Streams = absl::flat_hash_map<Id, Stream>;

  std::chrono::nanoseconds PatienceOf(const Stream& stream, SteadyTime now) const;
  Id GivesWayTo(const Shares::Path& share, SteadyTime now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOut(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Full() const;

  const UploadStreamLimits limits_;
  prometheus::Counter& displaced_;
  absl::Mutex mutex_;
  Streams streams_ ABSL_GUARDED_BY(mutex_);
  Shares shares_ ABSL_GUARDED_BY(mutex_);
  Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bucketd
