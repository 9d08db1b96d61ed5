// Who has how much of what all jobs share: places for jobs, and bytes that scopes keep. Where
// either is used up it says which job gives way (base/shares.h): one that nobody waits for before
// one whose ranks do, and of the latter those that keep most, or the newest. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"

#include "server/base/shares.h"

namespace bucketd {

struct Job;

class JobPlaces {
 public:
  // Of whoever made the first call of the job (Job::share). It is in use from now on, until nobody
  // waits for it.
  void Add(Job& job);
  void Remove(Job& job);
  // A call has come just now.
  void Use(Job& job);
  // One call more that waits, or less.
  void Wait(Job& job);
  void Answered(Job& job);
  // So many bytes more, or less.
  void Keep(Job& job, int64_t bytes);

  // Where there are too many jobs, or too many bytes are kept. Null: nobody has to.
  Job* JobGivesWayTo(const Shares::Path& newcomer) const { return Of(jobs_.GivesWayTo(newcomer)); }
  Job* BytesGiveWayTo(const Shares::Path& newcomer) const;

  int64_t kept_bytes() const { return kept_bytes_; }

 private:
  Job* Of(Shares::Id number) const;
  void SetSpare(Job& job);
  void SetNeeded(Job& job);

  Shares jobs_, bytes_;
  absl::flat_hash_map<Shares::Id, Job*> by_number_;
  Shares::Id last_number_ = 0;
  uint64_t last_use_ = 0;
  int64_t kept_bytes_ = 0;
};

}  // namespace bucketd
