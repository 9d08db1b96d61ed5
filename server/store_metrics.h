// What the store counts, as metrics and log lines; like metrics.h.
#pragma once

#include <array>
#include <chrono>
#include <mutex>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

#include "server/store/sqlite_store.h"

namespace bucketd {

class StoreMetrics final : public StoreObserver {
 public:
  // `registry` outlives this.
  explicit StoreMetrics(prometheus::Registry& registry);

  void Read(StoreValue value, StoreRead result) override;
  void Wrote(StoreWrite result) override;
  void Evicted(int64_t plans, int64_t bytes) override;
  // Damage is logged whenever it is met, a store that does not work once a minute.
  void Problem(bool damage, absl::string_view text) override;

  // Sets the gauges.
  void Show(const StoreStats& stats, WallTime now);

 private:
  std::array<std::array<prometheus::Counter*, 4>, 2> reads_{};
  std::array<prometheus::Counter*, 3> writes_{};
  prometheus::Counter& evictions_;
  prometheus::Counter& evicted_bytes_;
  prometheus::Counter& damage_;
  prometheus::Gauge& plans_;
  prometheus::Gauge& bytes_;
  prometheus::Gauge& file_bytes_;
  prometheus::Gauge& held_plans_;
  prometheus::Gauge& records_;
  prometheus::Gauge& oldest_use_seconds_;

  std::mutex mutex_;
  std::chrono::steady_clock::time_point quiet_until_;
  int64_t suppressed_ = 0;
};

}  // namespace bucketd
