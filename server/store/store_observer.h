// What a store says of its own doings, whatever engine it is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace bucketd {

enum class StoreValue { kPlan, kRecord };
enum class StoreRead { kHit, kMiss, kDamaged, kError };
enum class StoreWrite { kOk, kNoSpace, kError };
inline constexpr size_t kStoreValues = static_cast<size_t>(StoreValue::kRecord) + 1;
inline constexpr size_t kStoreReads = static_cast<size_t>(StoreRead::kError) + 1;
inline constexpr size_t kStoreWrites = static_cast<size_t>(StoreWrite::kError) + 1;

// What happens, for metrics and logs. Called on any thread, with the store's locks held: must be
// short and must not call the store.
class StoreObserver {
 public:
  virtual ~StoreObserver() = default;
  // `why`: one line for people where it is not a hit, a miss or kOk; else "".
  virtual void Read(StoreValue /*value*/, StoreRead /*result*/, absl::string_view /*why*/) {}
  virtual void Wrote(StoreWrite /*result*/, absl::string_view /*why*/) {}
  virtual void Evicted(int64_t /*plans*/, int64_t /*bytes*/) {}
  // Anything else, for people; one line. `damage`: something that was stored is gone.
  virtual void Problem(bool /*damage*/, absl::string_view /*text*/) {}
};

}  // namespace bucketd
