#include "server/graphs/upload_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

}  // namespace

absl::Status UploadStreams::Full() const {
  return MakeError(Reason::kOverloaded,
                   absl::StrCat(limits_.max_streams, " ", limits_.what, " are under way"),
                   {.limit = limits_.max_streams});
}

absl::StatusOr<UploadStreams::Id> UploadStreams::Open(const Shares::Path& share) {
  const SteadyTime now = Clock::now();
  const absl::MutexLock lock(&mutex_);
  if (static_cast<int64_t>(streams_.size()) >= limits_.max_streams) {
    const Id displaced = GivesWayTo(share, now);
    if (displaced == 0) return Full();
    TakeOut(displaced);
    displaced_.Increment();
  }
  const Id id = ++last_id_;
  streams_.emplace(id, Stream{share, now + limits_.deadline, limits_.stall});
  shares_.Add(share, id);
  return id;
}

nanoseconds UploadStreams::PatienceOf(const Stream& stream, SteadyTime now) const {
  return stream.patience - std::max(nanoseconds(0), now - stream.waits_since);
}

UploadStreams::Id UploadStreams::GivesWayTo(const Shares::Path& share, SteadyTime now) const {
  Id slowest = 0;
  nanoseconds least = limits_.stall * 3 / 4;
  for (const auto& [id, stream] : streams_) {
    const nanoseconds patience = PatienceOf(stream, now);
    if (patience >= least) continue;
    least = patience;
    slowest = id;
  }
  return slowest != 0 ? slowest : shares_.GivesWayTo(share);
}

absl::StatusOr<SteadyTime> UploadStreams::BeginWait(Id id) {
  const SteadyTime now = Clock::now();
  const absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(id);
  if (found == streams_.end()) return Full();
  found->second.waits_since = now;
  return std::min(now + found->second.patience, found->second.deadline);
}

absl::Status UploadStreams::Came(Id id, int64_t bytes) {
  const absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(id);
  if (found == streams_.end()) return Full();
  Stream& stream = found->second;
  const auto gained = nanoseconds(bytes * 1'000'000'000 / limits_.least_rate);
  stream.patience = std::min<nanoseconds>(limits_.stall, PatienceOf(stream, Clock::now()) + gained);
  stream.waits_since = SteadyTime::max();
  return absl::OkStatus();
}

void UploadStreams::TakeOut(Id id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  shares_.Remove(found->second.share, id);
  streams_.erase(found);
}

void UploadStreams::Close(Id id) {
  const absl::MutexLock lock(&mutex_);
  TakeOut(id);
}

}  // namespace bucketd
