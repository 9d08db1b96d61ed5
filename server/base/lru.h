// A map from string to shared value that forgets what was used longest ago once the bytes it holds
// exceed its capacity. The newest entry always stays, however large. Not thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace bucketd {

template <typename Value>
class Lru {
 public:
  using Ptr = std::shared_ptr<const Value>;

  explicit Lru(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // Null if absent. Counts as a use.
  Ptr Get(absl::string_view key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second);
    found->second->used = true;
    return found->second->value;
  }

  bool Contains(absl::string_view key) const { return index_.contains(key); }

  // Replaces. `bytes` is what the value holds; key and bookkeeping are added here.
  void Put(const std::string& key, Ptr value, int64_t bytes) {
    Erase(key);
    bytes += static_cast<int64_t>(2 * key.size()) + kEntryOverheadBytes;
    order_.push_front({key, std::move(value), bytes, false});
    index_.emplace(order_.front().key, order_.begin());
    bytes_ += bytes;
    while (bytes_ > capacity_bytes_ && order_.size() > 1) {
      EraseAt(std::prev(order_.end()));
      ++evictions_;
    }
  }

  bool Erase(absl::string_view key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return false;
    EraseAt(found->second);
    return true;
  }

  // Calls `visit(key, value, bytes)`, the most recently used first; counts as no use.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Entry& entry : order_) visit(entry.key, *entry.value, entry.bytes);
  }

  // Of the entries whose key begins with `prefix` the oldest go until they hold at most `most`; the
  // newest of them stays. O(n). What they hold then.
  int64_t KeepWithin(absl::string_view prefix, int64_t most) {
    int64_t held = 0;
    const auto is_of = [&](const Entry& entry) { return absl::StartsWith(entry.key, prefix); };
    bool newest = true;
    for (auto at = order_.begin(); at != order_.end();) {
      const auto entry = at++;
      if (!is_of(*entry)) continue;
      if (std::exchange(newest, false) || held + entry->bytes <= most) {
        held += entry->bytes;
        continue;
      }
      most = held;  // what is older goes, too
      EraseAt(entry);
      ++evictions_;
    }
    return held;
  }

  // The keys of at most `limit` entries that were used since the last call that named them. O(n).
  std::vector<std::string> TakeUsed(size_t limit) {
    std::vector<std::string> keys;
    for (auto entry = order_.begin(); entry != order_.end() && keys.size() < limit; ++entry) {
      if (std::exchange(entry->used, false)) keys.push_back(entry->key);
    }
    return keys;
  }

  int64_t bytes() const { return bytes_; }
  int64_t entries() const { return static_cast<int64_t>(order_.size()); }
  int64_t evictions() const { return evictions_; }

 private:
  struct Entry {
    std::string key;
    Ptr value;
    int64_t bytes;
    bool used = false;  // since TakeUsed
  };
  using Order = std::list<Entry>;  // most recent first
  static constexpr int64_t kEntryOverheadBytes = 160;

  void EraseAt(typename Order::iterator at) {
    bytes_ -= at->bytes;
    index_.erase(at->key);
    order_.erase(at);
  }

  const int64_t capacity_bytes_;
  Order order_;
  absl::flat_hash_map<std::string, typename Order::iterator> index_;
  int64_t bytes_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace bucketd
