// What the store counts, as metrics and log lines; like metrics.h.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

#include "server/base/add_metric.h"
#include "server/store/store.h"
#include "server/store/store_observer.h"

namespace bucketd {

// What does not work, from the first failure to the next success; and what has been counted.
struct StoreTrouble {
  std::string why;  // of the last failure
  WallTime since;
};
struct StoreHealth {
  std::optional<StoreTrouble> reading, writing;
  int64_t failed_reads = 0, failed_writes = 0, damage = 0;

  bool ok() const { return !reading.has_value() && !writing.has_value(); }
  // For people, one line: "reading fails since ...: ...". "" if all is well.
  std::string InWords() const;
};

class StoreMetrics final : public StoreObserver {
 public:
  // `registry` outlives this.
  explicit StoreMetrics(prometheus::Registry& registry);

  void Read(StoreValue value, StoreRead result, absl::string_view why) override;
  void Wrote(StoreWrite result, absl::string_view why) override;
  void Evicted(int64_t plans, int64_t bytes) override;
  // Damage is logged whenever it is met, a store that does not work once a minute.
  void Problem(bool damage, absl::string_view text) override;

  StoreHealth Health() const;

  // Sets the gauges.
  void Show(const StoreStats& stats, WallTime now);

 private:
  prometheus::Registry& registry_;
  std::array<std::array<prometheus::Counter*, kStoreReads>, kStoreValues> reads_{};
  CounterBy<StoreWrite> writes_;
  prometheus::Counter& evictions_ =
      AddCounter(registry_, "bucketd_store_evictions_total",
                 "Plans that left the store for room, for age, or on demand.");
  prometheus::Counter& evicted_bytes_ =
      AddCounter(registry_, "bucketd_store_evicted_bytes_total", "Of plans that left the store.");
  prometheus::Counter& damage_ =
      AddCounter(registry_, "bucketd_store_damage_total",
                 "Times that something stored was found damaged or gone.");
  prometheus::Gauge& plans_ = AddGauge(registry_, "bucketd_store_plans", "Plans in the store.");
  prometheus::Gauge& bytes_ =
      AddGauge(registry_, "bucketd_store_bytes", "Of plans in the store, keys included.");
  prometheus::Gauge& file_bytes_ =
      AddGauge(registry_, "bucketd_store_file_bytes", "Of the store on disk, with its log.");
  prometheus::Gauge& held_plans_ =
      AddGauge(registry_, "bucketd_store_held_plans", "Plans that no eviction takes, for jobs.");
  prometheus::Gauge& records_ =
      AddGauge(registry_, "bucketd_store_records", "Pins, profiles, samples and settings.");
  prometheus::Gauge& oldest_use_seconds_ =
      AddGauge(registry_, "bucketd_store_oldest_use_seconds",
               "Since the last use of the plan used longest ago: what the "
               "bounds of the store leave of retention.");

  void Note(std::atomic<bool>& failing, std::optional<StoreTrouble> StoreMetrics::*which,
            absl::string_view why);

  // Beside the troubles, so that a success in good times takes no lock.
  std::atomic<bool> reading_fails_{false}, writing_fails_{false};
  mutable absl::Mutex mutex_;
  std::optional<StoreTrouble> reading_ ABSL_GUARDED_BY(mutex_), writing_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point quiet_until_ ABSL_GUARDED_BY(mutex_);
  int64_t suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bucketd
