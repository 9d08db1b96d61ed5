#include "server/jobs/pins.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

#include "passes/base/status_macros.h"
#include "proto/pins.pb.h"
#include "server/base/errors.h"

namespace bucketd {
namespace {

constexpr uint32_t kFormat = 1;
constexpr int32_t kPage = 256;
constexpr int kUpdates = 16;  // of a record that others write at the same time

WallTime Now() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}
int64_t Millis(WallTime time) { return time.time_since_epoch().count(); }
WallTime FromMillis(int64_t millis) { return WallTime(std::chrono::milliseconds(millis)); }

// What another version wrote, or something else damaged behind the checksum's back, is none.
template <typename Message>
std::optional<Message> Parse(const Record& record) {
  Message message;
  if (!message.ParseFromString(record.value) || message.format_version() != kFormat) {
    spdlog::warn("a pin in the store cannot be read, key={}", record.key);
    return std::nullopt;
  }
  return message;
}

struct Kept {
  WallTime expires;
  uint32_t ranks = 0;
};

std::optional<Kept> KeptBy(const Record& record) {
  if (IsPin(record.key)) {
    const auto pin = Parse<v1::PinRecord>(record);
    if (pin.has_value()) return Kept{FromMillis(pin->expires_ms()), pin->size()};
  } else if (const auto job = Parse<v1::JobRecord>(record); job.has_value()) {
    return Kept{FromMillis(job->expires_ms()), job->ranks()};
  }
  return std::nullopt;
}

std::optional<Pin> PinIn(const std::string& key, const std::optional<std::string>& value) {
  if (!value.has_value()) return std::nullopt;
  const auto record = Parse<v1::PinRecord>({key, *value});
  if (!record.has_value() || FromMillis(record->expires_ms()) <= Now()) return std::nullopt;
  const absl::StatusOr<Digest> sha = DigestFromBytes(record->plan_sha256());
  if (!sha.ok()) return std::nullopt;
  return Pin{.generation = record->generation(),
             .size = record->size(),
             .plan_key = record->plan_key(),
             .profile_as_asked = record->cost_profile(),
             .plan_sha256 = *sha};
}

std::optional<JobMemory> MemoryIn(const std::string& key, const std::optional<std::string>& value) {
  if (!value.has_value()) return std::nullopt;
  const auto record = Parse<v1::JobRecord>({key, *value});
  if (!record.has_value() || FromMillis(record->expires_ms()) <= Now()) return std::nullopt;
  JobMemory memory{.generation = record->generation(),
                   .unplanned = {},
                   .profiles = {},
                   .last_scope = record->last_scope(),
                   .ranks = record->ranks()};
  if (record->unplanned()) memory.unplanned = record->unplanned_why();
  for (const v1::FixedProfile& profile : record->profiles()) {
    memory.profiles.emplace_back(profile.asked(), profile.resolved());
  }
  return memory;
}

// Of one generation: what the first one said, and of the second one what that leaves open.
JobMemory Merge(JobMemory first, const JobMemory& second) {
  std::map<std::string, std::string> fixed(first.profiles.begin(), first.profiles.end());
  fixed.insert(second.profiles.begin(), second.profiles.end());
  first.profiles.assign(fixed.begin(), fixed.end());
  if (!second.last_scope.empty()) first.last_scope = second.last_scope;
  first.ranks = std::max(first.ranks, second.ranks);
  return first;
}

std::string Serialize(const Pin& pin, WallTime expires) {
  v1::PinRecord record;
  record.set_format_version(kFormat);
  record.set_generation(pin.generation);
  record.set_size(pin.size);
  record.set_plan_key(pin.plan_key);
  record.set_cost_profile(pin.profile_as_asked);
  record.set_plan_sha256(std::string(AsBytes(pin.plan_sha256)));
  record.set_agreed_ms(Millis(Now()));
  record.set_expires_ms(Millis(expires));
  return record.SerializeAsString();
}

std::string Serialize(const JobMemory& memory, WallTime expires) {
  v1::JobRecord record;
  record.set_format_version(kFormat);
  record.set_generation(memory.generation);
  record.set_unplanned(memory.unplanned.has_value());
  record.set_unplanned_why(memory.unplanned.value_or(""));
  for (const auto& [asked, resolved] : memory.profiles) {
    v1::FixedProfile& profile = *record.add_profiles();
    profile.set_asked(asked);
    profile.set_resolved(resolved);
  }
  record.set_expires_ms(Millis(expires));
  record.set_last_scope(memory.last_scope);
  record.set_ranks(memory.ranks);
  return record.SerializeAsString();
}

absl::Status LaterGeneration(uint64_t generation) {
  return absl::AbortedError(
      absl::StrCat("another server has begun generation ", generation, " of this job"));
}

std::string InWords(const Pin& pin) {
  return absl::StrCat("plan ", ToHex(pin.plan_sha256).substr(0, 12), ", generation ",
                      pin.generation, ", ", pin.size, pin.size == 1 ? " rank" : " ranks");
}

std::string InWords(const JobMemory& memory) {
  std::string words = absl::StrCat("generation ", memory.generation);
  if (memory.unplanned.has_value()) {
    absl::StrAppend(&words, ", unplanned: ", *memory.unplanned);
  }
  for (const auto& [asked, resolved] : memory.profiles) {
    absl::StrAppend(&words, ", ", asked.empty() ? "the default profile" : asked, " is ", resolved);
  }
  return words;
}

std::string InWords(WallTime time) {
  return absl::FormatTime(absl::RFC3339_sec, absl::FromChrono(time), absl::UTCTimeZone());
}

// Of a record that goes.
std::string WhatStands(const Record& record) {
  if (IsPin(record.key)) {
    const std::optional<Pin> pin = PinIn(record.key, record.value);
    return pin.has_value() ? InWords(*pin) : "a pin that has expired";
  }
  const std::optional<JobMemory> memory = MemoryIn(record.key, record.value);
  return memory.has_value() ? InWords(*memory) : "a job that has expired";
}

AuditLine LineAbout(absl::string_view key, absl::string_view what, const Actor& by) {
  return {by, std::string(TenantOf(key)), std::string(what), SubjectOf(key), "", ""};
}

// A damaged record was counted and taken away by the store.
absl::StatusOr<std::optional<std::string>> ReadRecord(Store& store, const std::string& key) {
  absl::StatusOr<std::optional<std::string>> value = store.GetRecord(Shelf::kPins, key);
  if (value.status().code() == absl::StatusCode::kDataLoss) return std::optional<std::string>();
  return value;
}

}  // namespace

int64_t Pins::LimitOf(absl::string_view tenant) const {
  return limits_.quotas == nullptr ? limits_.per_tenant
                                   : limits_.quotas->LimitOf(Quota::kPins, tenant);
}

void Pins::ShowUse(absl::string_view tenant) {
  metrics_.pins.Set(static_cast<double>(index_.pins()));
  if (limits_.quotas != nullptr) limits_.quotas->Set(Quota::kPins, tenant, index_.UsedBy(tenant));
}

absl::Status Pins::Refused(Quota quota, absl::string_view tenant) {
  int64_t used = 0;
  {
    const absl::MutexLock lock(&mutex_);
    used = index_.UsedBy(tenant);
  }
  if (limits_.quotas != nullptr) {
    if (quota != Quota::kPins) used = limits_.quotas->UsedOf(quota, tenant);
    return limits_.quotas->Refuse(quota, tenant, used, /*lasting=*/true);
  }
  return MakeError(Reason::kQuotaUsedUp,
                   absl::StrCat("tenant \"", tenant, "\" has ", limits_.per_tenant,
                                " pins or jobs, its limit, and none of fewer ranks"),
                   {.limit = limits_.per_tenant, .actual = used, .node = {}, .lasting = true});
}

// Of what the tenant's jobs hold and others may not take.
bool Pins::HasRoomForPlan(absl::string_view tenant, int64_t bytes) const {
  if (limits_.quotas == nullptr) return true;
  const int64_t most = limits_.quotas->LimitOf(Quota::kPlanBytes, tenant);
  if (most == kUnbounded) return true;
  const absl::StatusOr<int64_t> kept =
      store_.KeepWithin(tenant, std::max<int64_t>(0, most - bytes));
  return !kept.ok() || *kept + bytes <= most;
}

WallTime Pins::Expiry() const { return Now() + limits_.time_to_live; }

absl::Status Pins::Open() { return Sweep(); }

void Pins::DropExpired() {
  const absl::Status swept = Sweep();
  if (!swept.ok()) spdlog::warn("expired pins cannot be dropped: {}", swept.ToString());
}

absl::Status Pins::Sweep() {
  std::map<std::string, WallTime> unseen;
  {
    const absl::MutexLock lock(&mutex_);
    unseen = index_.expiries();
  }
  std::string after;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<Record> page,
                     store_.ListRecords(Shelf::kPins, "", after, kPage));
    if (page.empty()) break;
    for (const Record& record : page) {
      unseen.erase(record.key);
      RETURN_IF_ERROR(SweepRecord(record));
    }
    after = page.back().key;
  }
  for (const auto& [key, expires] : unseen) Forget(key, expires);  // released by another server
  return absl::OkStatus();
}

absl::Status Pins::SweepRecord(const Record& record) {
  const std::optional<Kept> kept = KeptBy(record);
  if (!kept.has_value()) return absl::OkStatus();
  const absl::MutexLock writing(&writing_);
  if (kept->expires > Now()) {
    Count(record.key, kept->expires, kept->ranks);
    return absl::OkStatus();
  }
  const absl::Status gone =
      store_.ReplaceRecord(Shelf::kPins, record.key, record.value, std::nullopt);
  if (absl::IsAborted(gone)) return absl::OkStatus();  // renewed meanwhile
  RETURN_IF_ERROR(gone);
  Forget(record.key, std::nullopt);
  return absl::OkStatus();
}

void Pins::Count(const std::string& key, WallTime expires, uint32_t ranks) {
  const absl::MutexLock lock(&mutex_);
  index_.Put(key, expires, ranks);
  ShowUse(TenantOf(key));
}

void Pins::Forget(const std::string& key, const std::optional<WallTime>& expires) {
  const absl::MutexLock lock(&mutex_);
  const auto found = index_.expiries().find(key);
  if (found == index_.expiries().end()) return;
  if (expires.has_value() && found->second != *expires) return;
  index_.Erase(key);
  ShowUse(TenantOf(key));
}

// What another server has released counts here until then.
void Pins::ForgetAll(const std::string& prefix) {
  const absl::MutexLock lock(&mutex_);
  const auto& expiries = index_.expiries();
  auto at = expiries.lower_bound(prefix);
  while (at != expiries.end() && absl::StartsWith(at->first, prefix)) {
    const std::string key = (at++)->first;
    index_.Erase(key);
  }
  ShowUse(TenantOf(prefix));
}

std::vector<std::string> Pins::Jobs(absl::string_view tenant) const {
  const absl::MutexLock lock(&mutex_);
  return index_.Jobs(tenant);
}

absl::StatusOr<std::optional<JobMemory>> Pins::LoadJob(absl::string_view tenant,
                                                       absl::string_view job) {
  const std::string key = JobKey(tenant, job);
  ASSIGN_OR_RETURN(const std::optional<std::string> value, ReadRecord(store_, key));
  return MemoryIn(key, value);
}

absl::StatusOr<std::optional<Pin>> Pins::LoadPin(absl::string_view tenant, absl::string_view job,
                                                 absl::string_view scope) {
  const std::string key = PinKey(tenant, job, scope);
  ASSIGN_OR_RETURN(const std::optional<std::string> value, ReadRecord(store_, key));
  return PinIn(key, value);
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
  const absl::MutexLock writing(&writing_);
  RETURN_IF_ERROR(MakeRoom(tenant, key, memory.ranks));
  RETURN_IF_ERROR(
      Update(key, by, [&](const auto& before, AuditLine& line) -> absl::StatusOr<std::string> {
        const std::optional<JobMemory> other = MemoryIn(key, before);
        if (other.has_value() && other->generation > memory.generation) {
          return LaterGeneration(other->generation);
        }
        const bool same = other.has_value() && other->generation == memory.generation;
        stands = same ? Merge(*other, memory) : memory;
        if (!same) {
          line.what = "generation";
          line.before = other.has_value() ? InWords(*other) : "";
          line.after = InWords(stands);
        }
        return Serialize(stands, expires);
      }));
  Count(key, expires, stands.ranks);
  return stands;
}

absl::Status Pins::MakeRoom(absl::string_view tenant, const std::string& key, uint32_t ranks) {
  // What an operator asked to keep expires later than what was agreed on just now.
  constexpr std::chrono::minutes kClocksDiffer{1};
  while (true) {
    std::optional<std::string> weakest;
    {
      const absl::MutexLock lock(&mutex_);
      if (index_.HasRoom(key)) return absl::OkStatus();
      weakest = index_.Weakest(key, ranks, Expiry() + kClocksDiffer);
    }
    if (!weakest.has_value()) {
      return Refused(Quota::kPins, tenant);
    }
    RETURN_IF_ERROR(ReleaseAll(*weakest, "displace", ServerItself()).status());
    metrics_.tally(Tally::kDisplaced).Increment();
  }
}

absl::StatusOr<Pin> Pins::PutPin(absl::string_view tenant, absl::string_view job,
                                 absl::string_view scope, const Pin& pin, absl::string_view plan,
                                 const Actor& by) {
  const std::string key = PinKey(tenant, job, scope);
  const absl::MutexLock writing(&writing_);
  RETURN_IF_ERROR(MakeRoom(tenant, key, pin.size));
  const WallTime expires = Expiry();
  absl::Status held = store_.HoldPlan(pin.plan_key, JobPrefix(tenant, job), expires);
  if (held.code() == absl::StatusCode::kNotFound) {
    const auto bytes = static_cast<int64_t>(pin.plan_key.size() + plan.size());
    if (!HasRoomForPlan(tenant, bytes)) return Refused(Quota::kPlanBytes, tenant);
    RETURN_IF_ERROR(store_.PutPlan(pin.plan_key, tenant, plan));
    held = store_.HoldPlan(pin.plan_key, JobPrefix(tenant, job), expires);
  }
  RETURN_IF_ERROR(held);
  Pin stands = pin;
  RETURN_IF_ERROR(
      Update(key, by, [&](const auto& before, AuditLine& line) -> absl::StatusOr<std::string> {
        const std::optional<Pin> other = PinIn(key, before);
        if (other.has_value() && other->generation > pin.generation) {
          return LaterGeneration(other->generation);
        }
        const bool first =
            !other.has_value() || other->generation < pin.generation || other->size != pin.size;
        stands = first ? pin : *other;
        if (first) {
          line.what = "pin";
          line.before = other.has_value() ? InWords(*other) : "";
          line.after = InWords(pin);
        }
        return Serialize(stands, expires);
      }));
  Count(key, expires, stands.size);
  return stands;
}

absl::Status Pins::EraseRecord(const Record& record, absl::string_view what, const Actor& by) {
  AuditLine line = LineAbout(record.key, what, by);
  line.before = WhatStands(record);
  RETURN_IF_ERROR(store_.EraseRecord(Shelf::kPins, record.key, &line));
  Forget(record.key, std::nullopt);
  return absl::OkStatus();
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
      auto pin = *Parse<v1::PinRecord>({key, *before});
      RETURN_IF_ERROR(store_.HoldPlan(pin.plan_key(), holder, expires));
      pin.set_expires_ms(Millis(expires));
      return pin.SerializeAsString();
    }
    auto job = *Parse<v1::JobRecord>({key, *before});
    job.set_expires_ms(Millis(expires));
    return job.SerializeAsString();
  };
  const absl::Status written = Update(key, by, extend);
  if (absl::IsCancelled(written)) return false;
  RETURN_IF_ERROR(written);
  Count(key, stands->expires, stands->ranks);
  return true;
}

absl::StatusOr<int64_t> Pins::Extend(absl::string_view tenant, absl::string_view job,
                                     WallTime expires, const Actor& by) {
  const absl::MutexLock writing(&writing_);
  int64_t pins = 0;
  std::string after;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<Record> page,
                     store_.ListRecords(Shelf::kPins, JobPrefix(tenant, job), after, kPage));
    if (page.empty()) return pins;
    for (const Record& record : page) {
      ASSIGN_OR_RETURN(const bool kept,
                       ExtendRecord(record.key, JobPrefix(tenant, job), expires, by));
      pins += kept && IsPin(record.key) ? 1 : 0;
    }
    after = page.back().key;
  }
}

absl::StatusOr<int64_t> Pins::Release(absl::string_view tenant, absl::string_view job,
                                      const Actor& by) {
  const absl::MutexLock writing(&writing_);
  return ReleaseAll(JobPrefix(tenant, job), "release", by);
}

absl::StatusOr<int64_t> Pins::ReleaseAll(const std::string& prefix, absl::string_view what,
                                         const Actor& by) {
  int64_t released = 0;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<Record> page,
                     store_.ListRecords(Shelf::kPins, prefix, "", kPage));
    if (page.empty()) break;
    for (const Record& record : page) {
      RETURN_IF_ERROR(EraseRecord(record, what, by));
      released += IsPin(record.key) ? 1 : 0;
    }
  }
  RETURN_IF_ERROR(store_.ReleaseHolds(prefix));
  ForgetAll(prefix);
  return released;
}

}  // namespace bucketd
