// What a store is told when it is opened, and what it says of its own doings, whatever engine it
// is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "server/store/audit.h"

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
  // Listens to nothing.
  static StoreObserver& Nobody() {
    static StoreObserver nobody;
    return nobody;
  }
  // `why`: one line for people where it is not a hit, a miss or kOk; else "".
  virtual void Read(StoreValue /*value*/, StoreRead /*result*/, absl::string_view /*why*/) {}
  virtual void Wrote(StoreWrite /*result*/, absl::string_view /*why*/) {}
  virtual void Evicted(int64_t /*plans*/, int64_t /*bytes*/) {}
  // Anything else, for people; one line. `damage`: something that was stored is gone.
  virtual void Problem(bool /*damage*/, absl::string_view /*text*/) {}
};

// Read() and Wrote() of what came of it. A race that was lost, and what was not there to be held,
// are no trouble of the store.
void TellRead(StoreObserver& observer, StoreValue value, const absl::Status& status, bool found);
void TellWrote(StoreObserver& observer, const absl::Status& status);

// What every engine is opened with.
struct StoreOptions {
  // Of plans and their keys; files are somewhat larger. Beyond: what was used longest ago goes.
  int64_t max_bytes = int64_t{4} << 30;
  // Of plans since their last use; 0: any age.
  std::chrono::milliseconds max_age{std::chrono::hours(24 * 30)};
  AuditRetention audit = {};  // kept by Maintain()
  // Between runs of Maintain() on a thread of the store; 0: the owner calls it.
  std::chrono::milliseconds maintenance{0};
  bool read_only = false;                              // makes nothing and writes nothing
  std::function<WallTime()> clock = {};                // the engine's if empty
  StoreObserver* observer = &StoreObserver::Nobody();  // outlives the store
};

}  // namespace bucketd
