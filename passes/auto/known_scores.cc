#include "passes/auto/known_scores.h"

#include <cstddef>

namespace bucketd::search {

uint64_t HashOf(const Partition& partition) {
  uint64_t hash = 1;
  const auto add = [&](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  for (const int32_t bucket : partition.bucket_of) add(bucket);
  for (size_t b = 0; b < partition.form_of.size(); ++b) {
    if (partition.size_of[b] > 1) add(static_cast<int64_t>(partition.form_of[b]));
  }
  return hash;
}

const Score* KnownScores::Find(uint64_t partition, const Settings& settings, int64_t cap,
                               int64_t cutoff_ps) const {
  const auto known = known_.find(partition);
  if (known == known_.end()) return nullptr;
  for (const Known& k : known->second) {
    const bool exact = !k.score.over && k.score.first <= k.cutoff_ps;
    if ((exact || cutoff_ps <= k.cutoff_ps) && k.cap.Covers(cap) && k.settings.Covers(settings)) {
      return &k.score;
    }
  }
  return nullptr;
}

}  // namespace bucketd::search
