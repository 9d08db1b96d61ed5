// How many pins a tenant has, which have expired, and which job makes room for another one.
#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/jobs/pin_records.h"
#include "server/jobs/pins.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

constexpr int32_t kPage = 256;
// How long what other servers of the store pin and release may be unknown here; and how often the
// store is asked where there seems to be no room.
constexpr std::chrono::minutes kCountAgain{1};
constexpr std::chrono::seconds kCountForRoom{1};
constexpr size_t kMostCounted = 4096;  // tenants
// Several servers may have pinned more than a quota before they heard of each other.
constexpr int kDisplacedAtOnce = 16;

}  // namespace

void Pins::ShowUse(absl::string_view tenant) {
  metrics_.pins.Set(static_cast<double>(index_.pins()));
  quotas_.Set(Quota::kPins, tenant, index_.UsedBy(tenant));
}

absl::Status Pins::Refused(Quota quota, absl::string_view tenant) {
  return quotas_.Refuse(quota, tenant, quotas_.UsedOf(quota, tenant), /*lasting=*/true);
}

// Of what the tenant's jobs hold and others may not take.
bool Pins::HasRoomForPlan(absl::string_view tenant, int64_t bytes) const {
  const int64_t most = quotas_.LimitOf(Quota::kPlanBytes, tenant);
  if (most == kUnbounded) return true;
  const absl::StatusOr<int64_t> kept =
      store_.KeepWithin(tenant, std::max<int64_t>(0, most - bytes));
  return !kept.ok() || *kept + bytes <= most;
}

absl::Status Pins::Sweep() {
  std::map<std::string, WallTime> unseen;
  {
    const absl::MutexLock lock(&mutex_);
    unseen = index_.expiries();
  }
  RETURN_IF_ERROR(store_.ForEachRecord(Shelf::kPins, "", kPage, [&](const Record& record) {
    unseen.erase(record.key);
    return SweepRecord(record);
  }));
  for (const auto& [key, expires] : unseen) Forget(key, expires);  // released by another server
  return absl::OkStatus();
}

absl::Status Pins::SweepRecord(const Record& record) {
  const std::optional<Kept> kept = KeptBy(record);
  if (!kept.has_value()) return absl::OkStatus();
  const absl::MutexLock writing(&writing_.Of(TenantOf(record.key)));
  if (kept->expires > WallNow()) {
    Count(record.key, kept->expires, kept->ranks);
    return absl::OkStatus();
  }
  CrashPoint("sweep: a pin to go");
  const absl::Status gone =
      store_.ReplaceRecord(Shelf::kPins, record.key, record.value, std::nullopt);
  if (absl::IsAborted(gone)) return absl::OkStatus();  // renewed meanwhile
  RETURN_IF_ERROR(gone);
  CrashPoint("sweep: a pin gone");
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
  EraseAll(prefix);
  ShowUse(TenantOf(prefix));
}

void Pins::EraseAll(const std::string& prefix) {
  const auto& expiries = index_.expiries();
  auto at = expiries.lower_bound(prefix);
  while (at != expiries.end() && absl::StartsWith(at->first, prefix)) {
    const std::string key = (at++)->first;
    index_.Erase(key);
  }
}

bool Pins::CountIfDue(absl::string_view tenant, bool has_room) {
  const SteadyTime now = std::chrono::steady_clock::now();
  const auto is_due = [now](SteadyTime& last, SteadyTime::duration period) {
    if (last != SteadyTime() && now - last < period) return false;
    last = now;
    return true;
  };
  {
    const absl::MutexLock lock(&mutex_);
    if (counted_.size() >= kMostCounted) counted_.clear();
    Counted& counted = counted_[std::string(tenant)];
    if (!is_due(counted.at, kCountAgain) &&
        (has_room || !is_due(counted.for_room, kCountForRoom))) {
      return false;
    }
  }
  CountAgain(absl::StrCat(tenant, "\n"));
  return true;
}

void Pins::CountAgain(const std::string& prefix) {
  std::map<std::string, Kept> there;
  const absl::Status listed =
      store_.ForEachRecord(Shelf::kPins, prefix, kPage, [&](const Record& record) {
        const std::optional<Kept> kept = KeptBy(record);
        if (kept.has_value() && kept->expires > WallNow()) there.emplace(record.key, *kept);
        return absl::OkStatus();
      });
  if (!listed.ok()) return;  // what was known counts; the error is counted and logged by the store
  const absl::MutexLock lock(&mutex_);
  EraseAll(prefix);
  for (const auto& [key, kept] : there) index_.Put(key, kept.expires, kept.ranks);
  ShowUse(TenantOf(prefix));
}

absl::Status Pins::MakeRoom(absl::string_view tenant, const std::string& key, uint32_t ranks) {
  // What an operator asked to keep expires later than what was agreed on just now.
  constexpr std::chrono::minutes kClocksDiffer{1};
  bool is_counted = false;
  for (int tried = 0; tried < kDisplacedAtOnce;) {
    std::optional<std::string> weakest;
    bool has_room = false;
    {
      const absl::MutexLock lock(&mutex_);
      if (index_.expiries().contains(key)) return absl::OkStatus();
      has_room = index_.HasRoom(key);
      weakest = index_.Weakest(key, ranks, Expiry() + kClocksDiffer);
    }
    if (!is_counted && CountIfDue(tenant, has_room)) {
      is_counted = true;
      continue;
    }
    if (has_room) return absl::OkStatus();
    if (!weakest.has_value()) return Refused(Quota::kPins, tenant);
    RETURN_IF_ERROR(Displace(*weakest));
    ++tried;
  }
  return absl::OkStatus();  // others go, or were used just now; the next one goes on
}

absl::Status Pins::EraseRecord(const Record& record, absl::string_view what, const Actor& by) {
  AuditLine line = LineAbout(record.key, what, by);
  line.before = WhatStands(record);
  RETURN_IF_ERROR(
      store_.ReplaceRecord(Shelf::kPins, record.key, record.value, std::nullopt, &line));
  Forget(record.key, std::nullopt);
  return absl::OkStatus();
}

// What has expired counts for nothing.
bool Pins::IsAsCounted(const Record& record) const {
  const std::optional<Kept> kept = KeptBy(record);
  if (!kept.has_value() || kept->expires <= WallNow()) return true;
  const absl::MutexLock lock(&mutex_);
  const auto counted = index_.expiries().find(record.key);
  return counted != index_.expiries().end() && counted->second == kept->expires;
}

// The job was the weakest by what is counted here. If another server has used it since, it is not,
// and nothing of it goes.
absl::Status Pins::Displace(const std::string& prefix) {
  std::vector<Record> records;
  bool is_unused = true;
  RETURN_IF_ERROR(store_.ForEachRecord(Shelf::kPins, prefix, kPage, [&](const Record& record) {
    is_unused = is_unused && IsAsCounted(record);
    records.push_back(record);
    return absl::OkStatus();
  }));
  for (size_t i = 0; is_unused && i < records.size(); ++i) {
    const absl::Status gone = EraseRecord(records[i], "displace", ServerItself());
    is_unused = !absl::IsAborted(gone);
    if (is_unused) RETURN_IF_ERROR(gone);
  }
  if (!is_unused) {
    CountAgain(prefix);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(store_.ReleaseHolds(prefix));
  ForgetAll(prefix);
  metrics_.tally(Tally::kDisplaced).Increment();
  return absl::OkStatus();
}

}  // namespace bucketd
