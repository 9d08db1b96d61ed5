// The operator's kill switch. While planning is off, new generations of jobs are left unplanned
// (all ranks alike: rank agreement asks once a generation) and calls without a job are refused with
// PLANNING_DISABLED, hits too: without agreement some ranks of a run would get a plan and others
// none. Generations that have agreed go on with what they have.
//
// The setting lives in the store under Shelf::kSettings, as a record that is there while planning
// is off; so a damaged one means "off", until somebody switches it on. A server whose store is in
// memory forgets it when it ends. Servers that share a store follow each other: each looks every
// kLookEvery.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/gauge.h"

#include "server/store/store.h"

namespace bucketd {

class PlanningSwitch {
 public:
  struct State {
    bool enabled = true;
    std::string why;
    int64_t since_ms = 0;  // 0: since the start
    bool persisted = false;
  };

  // Reads the setting. Both outlive this. `durable`: the store outlives the process. If the store
  // cannot be read, planning stays on and `why` says that the setting is unknown. `enabled` shows 1
  // or 0.
  PlanningSwitch(Store& store, bool durable, prometheus::Gauge& enabled);

  // Why, if planning is off. Cheap while it is on. Thread-safe, as is everything here.
  std::optional<std::string> WhyDisabled() const;
  State Get() const;
  // First in the store, then here. May block on the disk. On an error nothing has changed.
  // INVALID_ARGUMENT: `why` is longer than kMaxWhyBytes.
  absl::Status Set(bool enabled, absl::string_view why);
  // Takes over what another server has set. Reads the setting only if something was written to the
  // store since. May block on the disk. UNAVAILABLE: it cannot be read; what was known last holds.
  absl::Status Look();

  static constexpr std::chrono::seconds kLookEvery{1};
  static constexpr size_t kMaxWhyBytes = 500;

 private:
  // UNAVAILABLE: not known.
  absl::StatusOr<State> Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(setting_);
  absl::Status Mend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(setting_);
  void Adopt(State state);

  Store& store_;
  const bool durable_;
  prometheus::Gauge& gauge_;
  std::atomic<bool> enabled_{true};
  absl::Mutex setting_ ABSL_ACQUIRED_BEFORE(mutex_);       // held by Set and Look, over the disk
  std::optional<int64_t> seen_ ABSL_GUARDED_BY(setting_);  // the version of the store that was read
  bool unmended_ ABSL_GUARDED_BY(setting_) =
      false;  // it was damaged, and that is not in the store yet
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
