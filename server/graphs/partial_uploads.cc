#include "server/graphs/partial_uploads.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/base/errors.h"

namespace bucketd {

PartialUploads::PartialUploads(Timers& timers, ServerMetrics& metrics,
                               std::chrono::milliseconds keep, int max_count)
    : timers_(timers), metrics_(metrics), keep_(keep), max_count_(static_cast<size_t>(max_count)) {}

std::string PartialUploads::Key(absl::string_view graph_key, int codec,
                                const Digest& content_sha256) {
  return absl::StrCat(graph_key, AsBytes(content_sha256), codec);
}

// Needs the lock. What is handed back should die without it.
PartialUploads::Entry PartialUploads::TakeOut(Entries::iterator at) {
  Entry entry = std::move(at->second);
  timers_.Cancel(entry.timer);
  order_.erase(entry.id);
  entries_.erase(at);
  metrics_.partial_uploads.Set(static_cast<double>(entries_.size()));
  return entry;
}

void PartialUploads::Keep(const std::string& key, PartialUpload upload) {
  const int64_t received = upload.decoder->received_bytes();
  if (keep_.count() == 0 || received == 0) return;
  std::vector<Entry> dropped;
  const absl::MutexLock lock(&mutex_);
  const auto existing = entries_.find(key);
  if (existing != entries_.end()) {
    if (existing->second.upload.decoder->received_bytes() >= received) return;
    dropped.push_back(TakeOut(existing));
  }
  while (entries_.size() >= max_count_) {
    dropped.push_back(TakeOut(entries_.find(order_.begin()->second)));
    metrics_.partial_uploads_dropped.Increment();
  }
  const uint64_t id = ++last_id_;
  Entry& entry = entries_[key];
  entry.upload = std::move(upload);
  entry.id = id;
  entry.timer =
      timers_.Schedule(std::chrono::steady_clock::now() + keep_, [this, id] { Expire(id); });
  order_.emplace(id, key);
  metrics_.partial_uploads.Set(static_cast<double>(entries_.size()));
}

int64_t PartialUploads::CommittedSize(absl::string_view key) {
  const absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? 0 : found->second.upload.decoder->received_bytes();
}

absl::StatusOr<PartialUpload> PartialUploads::Resume(absl::string_view key, int64_t offset,
                                                     int64_t size) {
  const absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  const int64_t held = found == entries_.end() ? 0 : found->second.upload.decoder->received_bytes();
  if (held == 0 || held != offset) {
    return MakeError(Reason::kUploadProtocol,
                     absl::StrCat("resume_offset: ", offset, "; of this content ", held,
                                  " encoded bytes are held. Go on at ", held,
                                  held == 0 ? ": start over" : " or start over at 0"),
                     {.limit = held, .actual = offset});
  }
  const int64_t announced = found->second.upload.decoder->announced_bytes();
  if (announced != size) {
    return MakeError(Reason::kUploadProtocol,
                     absl::StrCat("size: ", size, "; the upload that this one goes on with had ",
                                  "announced ", announced, ". Start over at 0"),
                     {.limit = announced, .actual = size});
  }
  metrics_.uploads_resumed.Increment();
  return TakeOut(found).upload;
}

void PartialUploads::Drop(absl::string_view key) {
  Entry dropped;
  const absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end()) dropped = TakeOut(found);
}

bool PartialUploads::DropOldest() {
  Entry dropped;
  const absl::MutexLock lock(&mutex_);
  if (order_.empty()) return false;
  dropped = TakeOut(entries_.find(order_.begin()->second));
  metrics_.partial_uploads_dropped.Increment();
  return true;
}

void PartialUploads::Expire(uint64_t id) {
  Entry dropped;
  const absl::MutexLock lock(&mutex_);
  const auto found = order_.find(id);
  if (found == order_.end()) return;  // resumed, or gone for room
  dropped = TakeOut(entries_.find(found->second));
  metrics_.partial_uploads_dropped.Increment();
}

}  // namespace bucketd
