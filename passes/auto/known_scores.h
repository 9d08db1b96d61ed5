// What candidates of a search scored, and which other candidates would have scored the same.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "passes/auto/decoder.h"
#include "passes/auto/settings.h"
#include "passes/auto/watched.h"

namespace bucketd::search {

// Better is smaller: within the limit, then less time, then less memory; above it, less memory.
struct Score {
  bool over = true;
  int64_t first = kNever, second = kNever;
  friend auto operator<=>(const Score&, const Score&) = default;
};

// The same on every machine.
uint64_t HashOf(const Partition& partition);

// Not thread-safe. Partitions are told apart by their hashes; 0: none was given.
class KnownScores {
 public:
  // Null if nothing is known. A score that ended at a cutoff is a lower bound: it answers only who
  // asks for no more.
  const Score* Find(uint64_t partition, const Settings& settings, int64_t cap,
                    int64_t cutoff_ps) const;

  // All settings and caps that these cover scored the same, as far as `cutoff_ps`.
  void Add(uint64_t partition, const WatchedSettings& settings, const Watched& cap,
           int64_t cutoff_ps, const Score& score) {
    known_[partition].push_back({settings, cap, cutoff_ps, score});
  }

 private:
  struct Known {
    WatchedSettings settings;
    Watched cap;
    int64_t cutoff_ps = 0;
    Score score;
  };
  absl::flat_hash_map<uint64_t, std::vector<Known>> known_;
};

}  // namespace bucketd::search
