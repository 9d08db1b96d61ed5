#include "server/plans/planning_switch.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "passes/base/status_macros.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

// "<milliseconds since 1970> <why>".
constexpr const char* kKey = kPlanningOffSetting;
constexpr int kTries = 8;  // while others write the same setting

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

constexpr char kDamaged[] =
    "what the store says of planning is damaged, and what is unknown is off; `bucketctl enable` "
    "switches it on";

std::string OnOrOff(const PlanningSwitch::State& state) {
  return state.enabled ? "on" : absl::StrCat("off: ", state.why);
}

std::string RecordOf(const PlanningSwitch::State& state) {
  return absl::StrCat(state.since_ms, " ", state.why);
}

}  // namespace

std::string PlanningSwitch::State::InWords() const {
  const std::string off = enabled ? "" : absl::StrCat("planning is off: ", why);
  if (not_stored.empty()) return off;
  return absl::StrCat(enabled ? "planning is on" : off,
                      "; that is not in the store yet, so that a restart or another server does "
                      "not know it: ",
                      not_stored);
}

PlanningSwitch::PlanningSwitch(Store& store, bool durable, prometheus::Gauge& enabled)
    : store_(store), durable_(durable), gauge_(enabled) {
  gauge_.Set(1);
  const absl::Status known = Look();
  if (known.ok()) return;
  State state;
  state.enabled = false;
  state.persisted = durable_;
  state.why = absl::StrCat(
      "whether planning was switched off cannot be read, and what is unknown is off; `bucketctl "
      "enable` switches it on, `bucketctl store verify` says what is damaged: ",
      known.message());
  spdlog::error("planning is off: {}", state.why);
  Adopt(std::move(state), 0);
}

PlanningSwitch::Told PlanningSwitch::Last() const {
  const absl::MutexLock lock(&mutex_);
  return told_;
}

void PlanningSwitch::Show(State state) {
  enabled_ = state.enabled;
  gauge_.Set(state.enabled ? 1 : 0);
  told_.state = std::move(state);
}

bool PlanningSwitch::Adopt(State state, int64_t times) {
  const absl::MutexLock lock(&mutex_);
  if (told_.times != times) return false;
  told_.owed = !state.not_stored.empty();
  Show(std::move(state));
  return true;
}

absl::Status PlanningSwitch::Look() {
  const absl::MutexLock setting(&setting_);
  const Told last = Last();
  if (last.owed) return Settle(last);
  const absl::StatusOr<int64_t> version = store_.Version();
  if (version.ok() && seen_ == *version) return absl::OkStatus();
  seen_.reset();
  ASSIGN_OR_RETURN(const bool settled, Follow(last));
  if (settled && version.ok()) seen_ = *version;
  return absl::OkStatus();
}

absl::StatusOr<bool> PlanningSwitch::Follow(const Told& last) {
  const absl::StatusOr<std::optional<std::string>> record =
      store_.GetRecord(Shelf::kSettings, kKey);
  const bool damaged = absl::IsDataLoss(record.status());
  if (!record.ok() && !damaged) return record.status();
  known_.clear();
  State found;
  if (damaged) {
    found = {.enabled = false, .why = kDamaged, .since_ms = WallNowMs()};
  } else if (record->has_value()) {
    found = Parse(**record);
    known_.insert(**record);
  }
  found.persisted = durable_;
  const State& now = last.state;
  if (found.enabled && !now.enabled) {
    found.since_ms = WallNowMs();
    spdlog::warn("planning is on again");
  } else if (!found.enabled && (now.enabled || found.why != now.why)) {
    spdlog::warn("planning is off: {}", found.why);
  } else if (found.persisted == now.persisted) {
    found = now;  // what is known here says more
  }
  Adopt(found, last.times);
  if (!damaged) return true;
  known_.insert(RecordOf(found));
  // Until that succeeds the damaged record stays, and says the same.
  return store_.ReplaceRecord(Shelf::kSettings, kKey, std::nullopt, RecordOf(found)).ok();
}

absl::Status PlanningSwitch::Replace(const std::optional<std::string>& before, const Told& last) {
  std::optional<std::string> after;
  if (!last.state.enabled) after = RecordOf(last.state);
  if (after.has_value()) known_.insert(*after);
  const AuditLine line = LineOf(last);
  return store_.ReplaceRecord(Shelf::kSettings, kKey, before, after, &line);
}

// Another server may have been told to switch off meanwhile, and have said that it is done.
absl::Status PlanningSwitch::Settle(const Told& last) {
  ASSIGN_OR_RETURN(const std::optional<std::string> before,
                   store_.FindRecord(Shelf::kSettings, kKey));
  if (last.state.enabled && before.has_value() && !known_.contains(*before)) {
    State found = Parse(*before);
    found.persisted = durable_;
    spdlog::warn("planning is off: {}", found.why);
    known_ = {*before};
    Adopt(std::move(found), last.times);
    return absl::OkStatus();
  }
  return Stored(last, Replace(before, last));
}

// Over what stands, whatever that is; compared all the same, so that a write whose answer was lost
// does not arrive behind what somebody has said since.
absl::Status PlanningSwitch::Write(const Told& last) {
  absl::Status written;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    ASSIGN_OR_RETURN(const std::optional<std::string> before,
                     store_.FindRecord(Shelf::kSettings, kKey));
    known_.clear();
    if (before.has_value()) known_.insert(*before);
    written = Replace(before, last);
    if (!absl::IsAborted(written)) break;
  }
  return written;
}

AuditLine PlanningSwitch::LineOf(const Told& told) {
  return {told.by,    kAllTenants, told.state.enabled ? "enable" : "disable",
          "planning", told.before, OnOrOff(told.state)};
}

// What has become of writing it.
absl::Status PlanningSwitch::Stored(const Told& last, const absl::Status& written) {
  State state = last.state;
  state.persisted = written.ok() && durable_;
  state.not_stored = std::string(written.message());
  Adopt(std::move(state), last.times);
  return written;
}

std::optional<std::string> PlanningSwitch::WhyDisabled() const {
  if (enabled_) return std::nullopt;
  const absl::MutexLock lock(&mutex_);
  if (told_.state.enabled) return std::nullopt;
  return told_.state.why;
}

PlanningSwitch::State PlanningSwitch::Get() const { return Last().state; }

absl::Status PlanningSwitch::Set(bool enabled, absl::string_view why, const Actor& by) {
  if (why.size() > kMaxWhyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("why: at most ", kMaxWhyBytes, " bytes are kept, this has ", why.size()));
  }
  {
    const absl::MutexLock lock(&mutex_);
    ++told_.times;
    told_.owed = true;
    told_.by = by;
    told_.before = OnOrOff(told_.state);
    Show({.enabled = enabled, .why = std::string(why), .since_ms = WallNowMs()});
  }
  spdlog::warn("planning switched {}: {}", enabled ? "on" : "off", std::string(why));
  // Of two operators at once the one who was heard last here is the one who is stored last.
  const absl::MutexLock setting(&setting_);
  const Told last = Last();
  CrashPoint("switch: to be kept");
  const absl::Status written = Write(last);
  CrashPoint("switch: kept");
  if (!Stored(last, written).ok()) {
    spdlog::error("planning: {}", Get().InWords());
  }
  return absl::OkStatus();
}

}  // namespace bucketd
