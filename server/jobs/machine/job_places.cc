#include "server/jobs/machine/job_places.h"

#include <utility>

#include "server/jobs/machine/job.h"
#include "server/jobs/machine/scope.h"

namespace bucketd {

void JobPlaces::Add(Job& job) {
  job.number = ++last_number_;
  by_number_.emplace(job.number, &job);
  jobs_.Add(job.share, job.number);
  bytes_.Add(job.share, job.number, job.kept_bytes);
}

void JobPlaces::Remove(Job& job) {
  SetNeeded(job);
  jobs_.Remove(job.share, job.number);
  bytes_.Remove(job.share, job.number, job.kept_bytes);
  kept_bytes_ -= job.kept_bytes;
  by_number_.erase(job.number);
}

void JobPlaces::Use(Job& job) {
  SetNeeded(job);
  if (job.waiting == 0) SetSpare(job);
}

void JobPlaces::Wait(Job& job) {
  if (job.waiting++ == 0) SetNeeded(job);
}

void JobPlaces::Answered(Job& job) {
  if (--job.waiting == 0) SetSpare(job);
}

void JobPlaces::Keep(Job& job, int64_t bytes) {
  if (bytes == 0) return;
  bytes_.Remove(job.share, job.number, job.kept_bytes);
  job.kept_bytes += bytes;
  kept_bytes_ += bytes;
  bytes_.Add(job.share, job.number, job.kept_bytes);
}

// Whoever keeps most itself loses what it does not need.
Job* JobPlaces::BytesGiveWayTo(const Shares::Path& newcomer) const {
  const Shares::Id number = bytes_.GivesWayTo(newcomer);
  return Of(number != 0 ? number : jobs_.SpareOf(newcomer));
}

Job* JobPlaces::Of(Shares::Id number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

void JobPlaces::SetSpare(Job& job) {
  job.spare_since = ++last_use_;
  jobs_.SetSpare(job.share, job.number, job.spare_since);
}

void JobPlaces::SetNeeded(Job& job) {
  const uint64_t since = std::exchange(job.spare_since, 0);
  if (since != 0) jobs_.SetNeeded(job.share, job.number, since);
}

}  // namespace bucketd
