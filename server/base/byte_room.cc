#include "server/base/byte_room.h"

#include <utility>

#include "server/base/errors.h"

namespace bucketd {

ByteRoom::Held& ByteRoom::Held::operator=(Held&& other) noexcept {
  if (this == &other) return *this;
  Resize(0).IgnoreError();
  room_ = std::exchange(other.room_, nullptr);
  peer_ = std::move(other.peer_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

absl::Status ByteRoom::Held::Resize(int64_t bytes) {
  if (bytes == bytes_) return absl::OkStatus();
  absl::Status taken = room_->Take(peer_, bytes - bytes_);
  if (taken.ok()) bytes_ = bytes;
  return taken;
}

ByteRoom::Held ByteRoom::Held::Split(int64_t bytes) {
  Held part;
  part.room_ = room_;
  part.peer_ = peer_;
  part.bytes_ = bytes;
  bytes_ -= bytes;
  return part;
}

absl::Status ByteRoom::Take(const std::string& peer, int64_t more) {
  const absl::MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  const int64_t mine = (found == by_peer_.end() ? 0 : found->second) + more;
  const int64_t others = used_ + more - mine;
  const int64_t limit = (capacity_ - others) / 2;
  if (more > 0 && mine > limit) {
    return MakeError(
        Reason::kOverloaded,
        "the requests of your host hold too many bytes: they may hold half of what nobody else "
        "does",
        {.limit = capacity_ / 2, .actual = mine});
  }
  used_ += more;
  if (mine == 0) {
    by_peer_.erase(peer);
  } else {
    by_peer_[peer] = mine;
  }
  return absl::OkStatus();
}

int64_t ByteRoom::used() const {
  const absl::MutexLock lock(&mutex_);
  return used_;
}

}  // namespace bucketd
