// The operator's kill switch. While planning is off, new generations of jobs are left unplanned
// (all ranks alike: rank agreement asks once a generation) and calls without a job are refused with
// PLANNING_DISABLED, hits too: without agreement some ranks of a run would get a plan and others
// none. Generations that have agreed go on with what they have.
//
// A setting holds in this server from the moment it is given, whatever the store does; then it is
// written, and if that fails again with every look. In the store it is a record under
// Shelf::kSettings that is there while planning is off. What is unknown is off: a damaged record,
// or a store that cannot be read at the start, until somebody switches planning on or the store can
// be read. A server whose store is in memory forgets the setting when it ends. Servers that share a
// store follow each other: each looks every kLookEvery. "On" that is still to be written gives way
// to an "off" that this server had not read when it was told: no clock says which of the two was
// later, and planning that is off does no harm.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
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
    std::string not_stored = {};  // why it could not be written yet; "" if nothing is owed

    // For people, one line: what of this is out of the ordinary. "" if nothing is.
    std::string InWords() const;
  };

  // Reads the setting. Both outlive this. `durable`: the store outlives the process. `enabled`
  // shows 1 or 0.
  PlanningSwitch(Store& store, bool durable, prometheus::Gauge& enabled);

  // Why, if planning is off. Cheap while it is on. Thread-safe, as is everything here.
  std::optional<std::string> WhyDisabled() const;
  State Get() const;
  // First here, then in the store: State says whether it is there, too. May block on the disk.
  // INVALID_ARGUMENT: `why` is longer than kMaxWhyBytes; nothing has changed.
  absl::Status Set(bool enabled, absl::string_view why, const Actor& by);
  // Writes what is owed to the store, or takes over what another server has set. Reads the setting
  // only if something was written to the store since. May block on the disk. On an error what was
  // known last holds.
  absl::Status Look();

  static constexpr std::chrono::seconds kLookEvery{1};
  static constexpr size_t kMaxWhyBytes = 500;

 private:
  // What this server was told last, and how often it has been told something.
  struct Told {
    State state;
    int64_t times = 0;
    bool owed = false;
    Actor by = {};  // who told it, and what stood then
    std::string before;
  };
  Told Last() const;
  // Unless this server has been told something else since.
  bool Adopt(State state, int64_t times);
  void Show(State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: the store is to be asked again, even if nothing is written to it.
  absl::StatusOr<bool> Follow(const Told& last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(setting_);
  absl::Status Replace(const std::optional<std::string>& before, const Told& last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(setting_);
  absl::Status Write(const Told& last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(setting_);
  absl::Status Settle(const Told& last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(setting_);
  static AuditLine LineOf(const Told& told);
  absl::Status Stored(const Told& last, const absl::Status& written)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(setting_);

  Store& store_;
  const bool durable_;
  prometheus::Gauge& gauge_;
  std::atomic<bool> enabled_{true};
  absl::Mutex setting_ ABSL_ACQUIRED_BEFORE(mutex_);       // held by Set and Look, over the disk
  std::optional<int64_t> seen_ ABSL_GUARDED_BY(setting_);  // the version of the store that was read
  // What the store may say without anybody having said something since this server was told: what
  // was read last, and what was written since, whether or not there was an answer.
  std::set<std::string> known_ ABSL_GUARDED_BY(setting_);
  mutable absl::Mutex mutex_;
  Told told_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
