// Uploads that broke off in the middle, kept so that they can go on where they stopped: what was
// decoded and hashed so far, by graph, codec and content. Thread-safe.
//
// What is kept counts against max_upload_bytes and gives way, the oldest first, to what arrives;
// nothing is kept longer than `keep`, and never more than `max_count` at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/base/digest.h"
#include "server/base/metrics.h"
#include "server/base/timers.h"
#include "server/graphs/graph_decoder.h"
#include "server/graphs/graph_intake.h"

namespace bucketd {

struct PartialUpload {
  std::unique_ptr<GraphDecoder> decoder;
  std::unique_ptr<GraphIntake::Reservation> held;  // of what the decoder holds
};

class PartialUploads {
 public:
  // All outlive this; no timer runs any more when this dies. `keep` 0: nothing is kept.
  PartialUploads(Timers& timers, ServerMetrics& metrics, std::chrono::milliseconds keep,
                 int max_count);

  // Other bytes of the same graph, or the same bytes in another codec, cannot go on where these
  // stopped. `codec` is a v1::Codec.
  static std::string Key(absl::string_view graph_key, int codec, const Digest& content_sha256);

  // Keeps it unless a longer one is here. Anything but the decoder of an upload
  // whose every Append was OK would be kept in vain.
  void Keep(const std::string& key, PartialUpload upload);
  // Encoded bytes that are held; 0 if none are.
  int64_t CommittedSize(absl::string_view key);
  // Hands out what is held if it has `offset` encoded bytes and announced `size`; UPLOAD_PROTOCOL
  // otherwise, and it stays.
  absl::StatusOr<PartialUpload> Resume(absl::string_view key, int64_t offset, int64_t size);
  void Drop(absl::string_view key);
  // To make room. False if nothing was held.
  bool DropOldest();

 private:
  using Order = std::map<uint64_t, std::string>;  // keys, the oldest first
  struct Entry {
    PartialUpload upload;
    uint64_t id = 0;
    Timers::Id timer = 0;
  };
  using Entries = absl::flat_hash_map<std::string, Entry>;

  Entry TakeOut(Entries::iterator at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire(uint64_t id);

  Timers& timers_;
  ServerMetrics& metrics_;
  const std::chrono::milliseconds keep_;
  const size_t max_count_;
  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  Order order_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bucketd
