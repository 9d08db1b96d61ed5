// Bytes that callers may make the server hold, bounded in all and for each peer: nobody may hold
// more than is still free, so that a peer alone gets half of it, two a third each, and whoever
// comes next finds as much as each of them. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace bucketd {

class ByteRoom {
 public:
  // What one request holds; given back when this dies. Not thread-safe.
  class Held {
   public:
    Held() = default;  // of no room; Resize(0) alone is allowed
    // Of nothing yet. `room` outlives this.
    Held(ByteRoom& room, std::string peer) : room_(&room), peer_(std::move(peer)) {}
    Held(Held&& other) noexcept { *this = std::move(other); }
    Held& operator=(Held&& other) noexcept;
    ~Held() { Resize(0).IgnoreError(); }

    // OVERLOADED, with the limit of a peer that is alone, if that is more than the room has for
    // this one; then nothing has changed. Less is always possible.
    absl::Status Resize(int64_t bytes);
    int64_t bytes() const { return bytes_; }
    // REQUIRES: bytes <= what is held. Lives on its own.
    Held Split(int64_t bytes);

   private:
    ByteRoom* room_ = nullptr;
    std::string peer_;
    int64_t bytes_ = 0;
  };

  explicit ByteRoom(int64_t capacity) : capacity_(capacity) {}

  int64_t used() const;

 private:
  absl::Status Take(const std::string& peer, int64_t more);

  const int64_t capacity_;
  mutable absl::Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int64_t> by_peer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
