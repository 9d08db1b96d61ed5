#include "server/planning_switch.h"

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

PlanningSwitch::State Load(Store& store, bool durable) {
  PlanningSwitch::State state;
  const absl::StatusOr<std::optional<std::string>> record = store.GetRecord(Shelf::kSettings, kKey);
  if (record.ok()) {
    if (record->has_value()) state = Parse(**record);
    state.persisted = durable;
  } else if (record.status().code() == absl::StatusCode::kDataLoss) {
    state.enabled = false;
    state.why = "the setting was damaged; planning was off, and why is lost";
  } else {
    state.why = absl::StrCat("unknown, the store cannot be read: ", record.status().message());
  }
  return state;
}

}  // namespace

PlanningSwitch::PlanningSwitch(Store& store, bool durable, prometheus::Gauge& enabled)
    : store_(store), durable_(durable), gauge_(enabled) {
  Adopt(Load(store, durable));
  if (!state_.why.empty()) {
    spdlog::warn("planning is {}: {}", state_.enabled ? "on" : "off", state_.why);
  }
}

void PlanningSwitch::Adopt(State state) {
  const std::lock_guard lock(mutex_);
  enabled_ = state.enabled;
  gauge_.Set(state.enabled ? 1 : 0);
  state_ = std::move(state);
}

std::optional<std::string> PlanningSwitch::WhyDisabled() const {
  if (enabled_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (state_.enabled) return std::nullopt;
  return state_.why;
}

PlanningSwitch::State PlanningSwitch::Get() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

absl::Status PlanningSwitch::Set(bool enabled, absl::string_view why) {
  if (why.size() > kMaxWhyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("why: at most ", kMaxWhyBytes, " bytes are kept, this has ", why.size()));
  }
  // Two operators at once leave one of the two settings, whole.
  const std::lock_guard setting(setting_);
  const int64_t now = NowMs();
  RETURN_IF_ERROR(enabled ? store_.EraseRecord(Shelf::kSettings, kKey)
                          : store_.PutRecord(Shelf::kSettings, kKey, absl::StrCat(now, " ", why)));
  Adopt({enabled, std::string(why), now, durable_});
  spdlog::warn("planning switched {}: {}", enabled ? "on" : "off", std::string(why));
  return absl::OkStatus();
}

}  // namespace bucketd
