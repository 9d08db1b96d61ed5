#include "server/plans/planning_switch.h"

#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

// "<milliseconds since 1970> <why>".
constexpr char kKey[] = "planning-off";

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

PlanningSwitch::State Parse(const std::string& record) {
  PlanningSwitch::State state;
  state.enabled = false;
  state.why = record;
  const size_t space = record.find(' ');
  if (space != std::string::npos && absl::SimpleAtoi(record.substr(0, space), &state.since_ms)) {
    state.why = record.substr(space + 1);
  }
  return state;
}

constexpr char kDamaged[] = "the setting was damaged; planning was off, and why is lost";

}  // namespace

PlanningSwitch::PlanningSwitch(Store& store, bool durable, prometheus::Gauge& enabled)
    : store_(store), durable_(durable), gauge_(enabled) {
  gauge_.Set(1);
  const absl::Status known = Look();
  if (known.ok()) return;
  State state;
  state.why = absl::StrCat("unknown, the store cannot be read: ", known.message());
  spdlog::warn("planning is on: {}", state.why);
  Adopt(std::move(state));
}

absl::StatusOr<PlanningSwitch::State> PlanningSwitch::Load() {
  const absl::StatusOr<std::optional<std::string>> record =
      store_.GetRecord(Shelf::kSettings, kKey);
  State state;
  if (record.ok()) {
    if (record->has_value()) state = Parse(**record);
  } else if (absl::IsDataLoss(record.status())) {
    // The store has taken it away: unless it is written anew, the next look would find planning on.
    state = Parse(absl::StrCat(NowMs(), " ", kDamaged));
    unmended_ = true;
  } else {
    return record.status();
  }
  state.persisted = durable_;
  return state;
}

absl::Status PlanningSwitch::Look() {
  const absl::MutexLock setting(&setting_);
  if (unmended_) return Mend();
  const absl::StatusOr<int64_t> version = store_.Version();
  if (version.ok() && seen_ == *version) return absl::OkStatus();
  seen_.reset();
  ASSIGN_OR_RETURN(State found, Load());
  if (version.ok()) seen_ = *version;
  const State now = Get();
  if (found.enabled && !now.enabled) {
    found.since_ms = NowMs();
    spdlog::warn("planning is on again");
  } else if (!found.enabled && (now.enabled || found.why != now.why)) {
    spdlog::warn("planning is off: {}", found.why);
  } else if (found.persisted == now.persisted) {
    return absl::OkStatus();  // what is known here says more
  }
  Adopt(std::move(found));
  return unmended_ ? Mend() : absl::OkStatus();
}

absl::Status PlanningSwitch::Mend() {
  unmended_ = !store_.PutRecord(Shelf::kSettings, kKey, absl::StrCat(NowMs(), " ", kDamaged)).ok();
  return absl::OkStatus();  // it is known: off
}

void PlanningSwitch::Adopt(State state) {
  const absl::MutexLock lock(&mutex_);
  enabled_ = state.enabled;
  gauge_.Set(state.enabled ? 1 : 0);
  state_ = std::move(state);
}

std::optional<std::string> PlanningSwitch::WhyDisabled() const {
  if (enabled_) return std::nullopt;
  const absl::MutexLock lock(&mutex_);
  if (state_.enabled) return std::nullopt;
  return state_.why;
}

PlanningSwitch::State PlanningSwitch::Get() const {
  const absl::MutexLock lock(&mutex_);
  return state_;
}

absl::Status PlanningSwitch::Set(bool enabled, absl::string_view why) {
  if (why.size() > kMaxWhyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("why: at most ", kMaxWhyBytes, " bytes are kept, this has ", why.size()));
  }
  // Two operators at once leave one of the two settings, whole.
  const absl::MutexLock setting(&setting_);
  const int64_t now = NowMs();
  RETURN_IF_ERROR(enabled ? store_.EraseRecord(Shelf::kSettings, kKey)
                          : store_.PutRecord(Shelf::kSettings, kKey, absl::StrCat(now, " ", why)));
  unmended_ = false;
  Adopt({enabled, std::string(why), now, durable_});
  spdlog::warn("planning switched {}: {}", enabled ? "on" : "off", std::string(why));
  return absl::OkStatus();
}

}  // namespace bucketd
