// Pins as jobs read, write and let go of them.
#include "server/jobs/pins.h"

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "passes/base/status_macros.h"
#include "server/jobs/pin_records.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using Value = std::optional<std::string>;

constexpr int32_t kPage = 256;
constexpr int kUpdates = 16;  // of a record that others write at the same time
constexpr size_t kMostSeen = 4096;

// A damaged record was counted and taken away by the store.
absl::StatusOr<Value> UndamagedOr(absl::StatusOr<Value> value) {
  if (absl::IsDataLoss(value.status())) return Value();
  return value;
}

absl::StatusOr<Value> ReadRecord(Store& store, const std::string& key) {
  return UndamagedOr(store.GetRecord(Shelf::kPins, key));
}

}  // namespace

WallTime Pins::Expiry() const { return WallNow() + time_to_live_; }

absl::Status Pins::Open() { return Sweep(); }

void Pins::DropExpired() {
  const absl::Status swept = Sweep();
  if (!swept.ok()) spdlog::warn("expired pins cannot be dropped: {}", swept.ToString());
}

void Pins::ForgetJob(absl::string_view tenant, absl::string_view job) {
  ForgetAll(JobPrefix(tenant, job));
}

std::vector<std::string> Pins::Jobs(absl::string_view tenant) const {
  const absl::MutexLock lock(&mutex_);
  return index_.Jobs(tenant);
}

Pins::Loaded Pins::LoadScope(absl::string_view tenant, absl::string_view job,
                             absl::string_view scope, const ScopeRecords* records) {
  const Names names{JobKey(tenant, job), PinKey(tenant, job, scope)};
  const Found found = records == nullptr ? Read(names)
                                         : Found{UndamagedOr(records->values[0]),
                                                 UndamagedOr(records->values[1]), false};
  See(names, found);
  Loaded loaded;
  if (found.job.ok()) {
    loaded.job = MemoryIn(names.job, *found.job);
  } else {
    loaded.job = found.job.status();
  }
  if (found.pin.ok()) {
    loaded.pin = PinIn(names.pin, *found.pin);
  } else {
    loaded.pin = found.pin.status();
  }
  return loaded;
}

std::vector<RecordName> Pins::NamesOf(absl::string_view tenant, absl::string_view job,
                                      absl::string_view scope) {
  return {{Shelf::kPins, JobKey(tenant, job)}, {Shelf::kPins, PinKey(tenant, job, scope)}};
}

Pins::Found Pins::Read(const Names& names) {
  auto values = store_.GetRecords({{Shelf::kPins, names.job},
                                   {Shelf::kPins, names.pin},
                                   {Shelf::kSettings, kPlanningOffSetting}});
  return {UndamagedOr(std::move(values[0])), UndamagedOr(std::move(values[1])),
          !values[2].ok() || values[2]->has_value()};
}

void Pins::See(const Names& names, const Found& found) {
  if (found.job.ok()) See(names.job, *found.job);
  if (found.pin.ok()) See(names.pin, *found.pin);
}

void Pins::See(const std::string& key, const Value& value) {
  const absl::MutexLock lock(&mutex_);
  if (seen_.size() >= kMostSeen) seen_.clear();
  seen_[key] = value;
}

std::optional<Pins::Found> Pins::Seen(const Names& names) const {
  const absl::MutexLock lock(&mutex_);
  const auto job = seen_.find(names.job), pin = seen_.find(names.pin);
  if (job == seen_.end() || pin == seen_.end()) return std::nullopt;
  return Found{job->second, pin->second, false};
}

absl::StatusOr<std::string> Pins::LoadPlan(const Pin& pin) {
  ASSIGN_OR_RETURN(std::optional<std::string> plan, store_.GetPlan(pin.plan_key));
  if (!plan.has_value()) return absl::NotFoundError("the pinned plan is not in the store");
  if (Sha256(*plan) != pin.plan_sha256) {
    return absl::DataLossError("the store has another plan under the pinned plan's key");
  }
  return *std::move(plan);
}

absl::Status Pins::Update(const std::string& key, const Actor& by, Next next) {
  for (int attempt = 0; attempt < kUpdates; ++attempt) {
    ASSIGN_OR_RETURN(const std::optional<std::string> before, ReadRecord(store_, key));
    AuditLine line = LineAbout(key, "", by);
    ASSIGN_OR_RETURN(const std::string after, next(before, line));
    const absl::Status written =
        store_.ReplaceRecord(Shelf::kPins, key, before, after, line.what.empty() ? nullptr : &line);
    if (!absl::IsAborted(written)) return written;
  }
  return absl::UnavailableError("others write the same record again and again");
}

absl::StatusOr<JobMemory> Pins::PutJob(absl::string_view tenant, absl::string_view job,
                                       const JobMemory& memory, const Actor& by) {
  const WallTime expires = Expiry();
  const std::string key = JobKey(tenant, job);
  JobMemory stands;
  const absl::MutexLock writing(&writing_.Of(tenant));
  RETURN_IF_ERROR(MakeRoom(tenant, key, memory.ranks));
  RETURN_IF_ERROR(
      Update(key, by, [&](const auto& before, AuditLine& line) -> absl::StatusOr<std::string> {
        ASSIGN_OR_RETURN(stands, NextMemory(key, before, memory, line));
        return Serialize(stands, expires);
      }));
  Count(key, expires, stands.ranks);
  return stands;
}

absl::StatusOr<Agreed> Pins::Agree(const Agreeing& what) {
  const auto& [tenant, job] = what.job;
  const Names names{JobKey(tenant, job), PinKey(tenant, job, what.scope)};
  const absl::MutexLock writing(&writing_.Of(tenant));
  RETURN_IF_ERROR(MakeRoom(tenant, names.job, what.memory.ranks));
  // Where there is no room for the pin, the generation is kept all the same.
  absl::Status pinned = MakeRoom(tenant, names.pin, what.pin.size);
  std::optional<Found> found = Seen(names);
  for (int attempt = 0; attempt < kUpdates; ++attempt) {
    const bool is_fresh = !found.has_value();
    if (is_fresh) {
      found = Read(names);
      See(names, *found);
      RETURN_IF_ERROR(found->job.status());
      RETURN_IF_ERROR(found->pin.status());
      if (what.unless_planning_is_off && found->planning_is_off) return Agreed{true, {}, {}};
    }
    Draft draft = Over(*found, names, what);
    found.reset();
    if (!draft.agreed.ok() || draft.agreed->elsewhere.has_value()) {
      if (is_fresh) return draft.agreed;
      continue;  // what was seen a while ago decides nothing
    }
    // Perhaps it is the plan that is not there.
    if (attempt > 0 && pinned.ok()) pinned = StorePlan(what);
    if (!pinned.ok()) {
      draft.changes.hold.reset();
      draft.changes.records.pop_back();
    }
    CrashPoint("agreement: to be kept");
    const absl::Status written = store_.WriteTogether(draft.changes);
    if (written.ok()) {
      CrashPoint("agreement: kept");
      for (const RecordChange& change : draft.changes.records) Written(change);
      RETURN_IF_ERROR(pinned);
      return draft.agreed;
    }
    if (!absl::IsAborted(written)) return written;
  }
  return absl::UnavailableError("others write the same records again and again");
}

Pins::Draft Pins::Over(const Found& found, const Names& names, const Agreeing& what) const {
  const WallTime expires = Expiry();
  Draft draft;
  RecordChange job{{Shelf::kPins, names.job}, *found.job, "", LineAbout(names.job, "", what.by)};
  RecordChange scope{{Shelf::kPins, names.pin}, *found.pin, "", LineAbout(names.pin, "", what.by)};
  const absl::StatusOr<JobMemory> memory = NextMemory(names.job, *found.job, what.memory, job.line);
  const absl::StatusOr<Pin> pin = NextPin(names.pin, *found.pin, what.pin, scope.line);
  if (!memory.ok() || !pin.ok()) {
    draft.agreed = memory.ok() ? pin.status() : memory.status();
    return draft;
  }
  if (!Holds(what.memory, *memory)) {
    draft.agreed = Agreed{false, MemoryIn(names.job, *found.job), {}};
    return draft;
  }
  draft.agreed = Agreed{false, {}, *pin};
  if (what.unless_planning_is_off) {
    draft.changes.unless = {Shelf::kSettings, kPlanningOffSetting};
  }
  job.after = Serialize(*memory, expires);
  scope.after = Serialize(*pin, expires);
  draft.changes.records = {std::move(job), std::move(scope)};
  draft.changes.hold = {what.pin.plan_key, JobPrefix(what.job.first, what.job.second), expires};
  return draft;
}

void Pins::Written(const RecordChange& change) {
  const Record record{change.record.key, change.after};
  See(record.key, record.value);
  const std::optional<Kept> kept = KeptBy(record);
  if (kept.has_value()) Count(record.key, kept->expires, kept->ranks);
}

// Nearly always it is there: it was stored when it was computed.
absl::Status Pins::StorePlan(const Agreeing& what) {
  const auto& [tenant, job] = what.job;
  const absl::Status held = store_.HoldPlan(what.pin.plan_key, JobPrefix(tenant, job), Expiry());
  if (!absl::IsNotFound(held)) return held;
  const auto bytes = static_cast<int64_t>(what.pin.plan_key.size() + what.plan.size());
  if (!HasRoomForPlan(tenant, bytes)) return Refused(Quota::kPlanBytes, tenant);
  return store_.PutPlan(what.pin.plan_key, tenant, what.plan);
}

absl::StatusOr<bool> Pins::ExtendRecord(const std::string& key, const std::string& holder,
                                        WallTime expires, const Actor& by) {
  std::optional<Kept> stands;
  const auto extend = [&](const std::optional<std::string>& before,
                          AuditLine& line) -> absl::StatusOr<std::string> {
    stands = before.has_value() ? KeptBy({key, *before}) : std::nullopt;
    if (!stands.has_value()) return absl::CancelledError();
    if (stands->expires >= expires) return *before;
    line.what = "keep";
    line.before = absl::StrCat("until ", InWords(stands->expires));
    line.after = absl::StrCat("until ", InWords(expires));
    stands->expires = expires;
    if (IsPin(key)) {
      RETURN_IF_ERROR(store_.HoldPlan(PlanKeyIn({key, *before}), holder, expires));
    }
    return WithExpiry({key, *before}, expires);
  };
  const absl::Status written = Update(key, by, extend);
  if (absl::IsCancelled(written)) return false;
  RETURN_IF_ERROR(written);
  Count(key, stands->expires, stands->ranks);
  return true;
}

absl::StatusOr<int64_t> Pins::Extend(absl::string_view tenant, absl::string_view job,
                                     WallTime expires, const Actor& by) {
  const absl::MutexLock writing(&writing_.Of(tenant));
  const std::string prefix = JobPrefix(tenant, job);
  int64_t pins = 0;
  RETURN_IF_ERROR(
      store_.ForEachRecord(Shelf::kPins, prefix, kPage, [&](const Record& record) -> absl::Status {
        ASSIGN_OR_RETURN(const bool kept, ExtendRecord(record.key, prefix, expires, by));
        pins += kept && IsPin(record.key) ? 1 : 0;
        return absl::OkStatus();
      }));
  return pins;
}

absl::StatusOr<int64_t> Pins::Release(absl::string_view tenant, absl::string_view job,
                                      const Actor& by) {
  const absl::MutexLock writing(&writing_.Of(tenant));
  return ReleaseAll(JobPrefix(tenant, job), by);
}

// What is written meanwhile is listed again, and goes, too.
absl::StatusOr<int64_t> Pins::ReleaseAll(const std::string& prefix, const Actor& by) {
  int64_t released = 0;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<Record> page,
                     store_.ListRecords(Shelf::kPins, prefix, "", kPage));
    if (page.empty()) break;
    for (const Record& record : page) {
      const absl::Status gone = EraseRecord(record, "release", by);
      if (absl::IsAborted(gone)) continue;
      RETURN_IF_ERROR(gone);
      CrashPoint("release: one record gone");
      released += IsPin(record.key) ? 1 : 0;
    }
  }
  CrashPoint("release: holds to go");
  RETURN_IF_ERROR(store_.ReleaseHolds(prefix));
  ForgetAll(prefix);
  return released;
}

}  // namespace bucketd
