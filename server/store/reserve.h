// Room on the disk that a store keeps for its way out of a full one: to delete a plan SQLite has to
// write first. A file of blocks that are really there; what is given back to the disk is taken
// again when there is room. Several processes may share one.
#pragma once

#include <cstdint>
#include <string>

namespace bucketd {

class Reserve {
 public:
  // Of one release. A transaction that takes one plan away writes a few pages.
  static constexpr int64_t kStepBytes = int64_t{64} << 10;

  // At most `bytes`, and at most an eighth of the disk. Takes nothing yet.
  Reserve(const std::string& path, int64_t bytes);
  ~Reserve();
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;

  // As large as it should be, or as there is room for.
  void Fill();
  // One step back to the disk. False: there was nothing left.
  bool Release();
  int64_t bytes() const;

 private:
  int fd_ = -1;
  int64_t wanted_ = 0;
};

}  // namespace bucketd
