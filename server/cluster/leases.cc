#include "server/cluster/leases.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "passes/base/digest.h"
#include "passes/base/status_macros.h"
#include "proto/cluster.pb.h"
#include "server/base/named.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

constexpr uint32_t kLeaseFormat = 1;
constexpr char kLeasePrefix[] = "lease/";
constexpr std::array<Named<LeaseOf>, kLeaseKinds> kKindPrefixes = {{
    {LeaseOf::kJob, "lease/job/"},
    {LeaseOf::kPlan, "lease/plan/"},
}};
static_assert(IsByPosition(kKindPrefixes));
constexpr int kLeaseTries = 8;
constexpr int32_t kSweptAtOnce = 1000;
// Of a store: that refuses says so sooner.
constexpr std::chrono::milliseconds kNoAnswer{500};
constexpr int kMaxReleases = 1 << 16;

size_t Index(LeaseOf of) { return static_cast<size_t>(of); }

std::string KeyOf(const LeaseName& name) {
  return absl::StrCat(kKindPrefixes[Index(name.of)].name, name.key);
}

// What another version wrote is nobody's: nothing depends on it but work.
std::optional<Lease> ParseLease(const std::optional<std::string>& value) {
  v1::LeaseRecord record;
  if (!value.has_value() || !record.ParseFromString(*value) ||
      record.format_version() != kLeaseFormat) {
    return std::nullopt;
  }
  return Lease{{record.holder(), record.incarnation()}, record.term(), false};
}

std::string Serialize(const ReplicaId& holder, uint64_t term) {
  v1::LeaseRecord record;
  record.set_format_version(kLeaseFormat);
  record.set_holder(holder.address);
  record.set_incarnation(holder.incarnation);
  record.set_term(term);
  return record.SerializeAsString();
}

}  // namespace

// Neither may contain a NUL.
LeaseName JobLease(absl::string_view tenant, absl::string_view job) {
  return {LeaseOf::kJob, absl::StrCat(tenant, absl::string_view("\0", 1), job)};
}

LeaseName PlanLease(absl::string_view plan_key) {
  return {LeaseOf::kPlan, ToHex(Sha256(plan_key))};
}

Leases::Leases(Store& store, Membership& membership, ClusterMetrics& metrics, Membership::Now now)
    : store_(store),
      membership_(membership),
      metrics_(metrics),
      now_(std::move(now)),
      releases_(1, kMaxReleases) {}

Leases::~Leases() { Stop(); }

void Leases::Stop() { releases_.Stop(); }

bool Leases::HoldsNow(const LeaseName& name) const {
  const auto found = held_.find(name);
  return found != held_.end() && found->second.session == membership_.session() &&
         !membership_.lapsed();
}

bool Leases::IsOf(uint64_t session, const LeaseName& name) const {
  const absl::MutexLock lock(&mutex_);
  const auto found = held_.find(name);
  return found != held_.end() && found->second.session == session;
}

bool Leases::Holds(const LeaseName& name) const {
  const absl::MutexLock lock(&mutex_);
  return HoldsNow(name);
}

bool Leases::Use(const LeaseName& name) {
  const absl::MutexLock lock(&mutex_);
  if (!HoldsNow(name)) return false;
  held_[name].used = now_();
  return true;
}

size_t Leases::held(LeaseOf of) const {
  const absl::MutexLock lock(&mutex_);
  return static_cast<size_t>(std::count_if(
      held_.begin(), held_.end(), [&](const auto& entry) { return entry.first.of == of; }));
}

void Leases::Keep(const LeaseName& name, uint64_t session, uint64_t term) {
  const absl::MutexLock lock(&mutex_);
  const bool is_new = held_.insert_or_assign(name, Held{session, term, ++takes_, now_()}).second;
  if (is_new) metrics_.held(name.of).Increment();
}

std::optional<uint64_t> Leases::Drop(const LeaseName& name) {
  const absl::MutexLock lock(&mutex_);
  const auto found = held_.find(name);
  if (found == held_.end()) return std::nullopt;
  const uint64_t term = found->second.term;
  held_.erase(found);
  metrics_.held(name.of).Decrement();
  return term;
}

absl::StatusOr<Lease> Leases::Take(const LeaseName& name, ReadBehind* behind, bool is_others) {
  const absl::MutexLock busy(&writing_.Of(name.key));
  for (int attempt = 0; attempt < kLeaseTries; ++attempt) {
    if (behind != nullptr) behind->Forget();
    absl::StatusOr<Lease> lease = TakeOnce(name, behind, is_others);
    if (!absl::IsAborted(lease.status())) return lease;
  }
  return absl::UnavailableError("others take the same lease again and again");
}

absl::Status Leases::MayTake(LeaseOf of) const {
  const absl::MutexLock lock(&mutex_);
  if (handed_over_[Index(of)]) return absl::FailedPreconditionError("this replica drains");
  if (membership_.lapsed()) return absl::FailedPreconditionError(membership_.Trouble());
  return absl::OkStatus();
}

absl::StatusOr<Leases::Found> Leases::Put(const LeaseName& name, ReadBehind* behind) {
  const SteadyTime begun = now_();
  CrashPoint("lease: to be taken");
  absl::StatusOr<Standing> stands =
      store_.PutIfAbsent(Shelf::kReplicas, KeyOf(name), Serialize(membership_.self(), 1), behind);
  if (stands.ok()) return Found{std::move(stands->value), stands->put, absl::OkStatus()};
  // A store that takes no writes may say who has it; one that has not answered would be waited for
  // once more.
  if (absl::IsAborted(stands.status()) || now_() - begun >= kNoAnswer) return stands.status();
  absl::StatusOr<Found> found = Find(name);
  if (found.ok()) found->refused = stands.status();
  return found;
}

absl::StatusOr<Leases::Found> Leases::Find(const LeaseName& name) {
  ASSIGN_OR_RETURN(std::optional<std::string> value,
                   store_.FindRecord(Shelf::kReplicas, KeyOf(name)));
  return Found{std::move(value), false, absl::OkStatus()};
}

// Nobody, or who holds it no more.
absl::StatusOr<Lease> Leases::TakeFrom(const LeaseName& name,
                                       const std::optional<std::string>& value,
                                       const std::optional<Lease>& was) {
  const ReplicaId& self = membership_.self();
  const uint64_t term = was.has_value() ? was->term + 1 : 1;
  RETURN_IF_ERROR(
      store_.ReplaceRecord(Shelf::kReplicas, KeyOf(name), value, Serialize(self, term)));
  if (was.has_value()) CrashPoint("lease: taken over");
  if (was.has_value() && was->holder != self) metrics_.taken_over(name.of).Increment();
  return Lease{self, term, true};
}

absl::StatusOr<Lease> Leases::TakeOnce(const LeaseName& name, ReadBehind* behind, bool is_others) {
  const uint64_t session = membership_.session();
  const bool puts = !is_others && MayTake(name.of).ok();
  ASSIGN_OR_RETURN(const Found found, puts ? Put(name, behind) : Find(name));
  const ReplicaId& self = membership_.self();
  std::optional<Lease> stands = ParseLease(found.value);
  if (stands.has_value() && stands->holder != self) {
    ASSIGN_OR_RETURN(const bool gone, membership_.IsGone(stands->holder));
    if (!gone) return *stands;
  }
  // One from before this replica lapsed is written anew: another one that found it gone may be
  // about to write over it.
  if (found.put) {
    CrashPoint("lease: taken");
  } else {
    RETURN_IF_ERROR(MayTake(name.of));
    if (!stands.has_value() || stands->holder != self || !IsOf(session, name)) {
      RETURN_IF_ERROR(found.refused);
      ASSIGN_OR_RETURN(stands, TakeFrom(name, found.value, stands));
      if (behind != nullptr) behind->Forget();  // it was read before
    }
  }
  stands->mine = true;
  Keep(name, session, stands->term);
  return *stands;
}

std::optional<Record> Leases::RecordOf(const LeaseName& name) const {
  const absl::MutexLock lock(&mutex_);
  if (!HoldsNow(name)) return std::nullopt;
  return Record{KeyOf(name), Serialize(membership_.self(), held_.at(name).term)};
}

// Without its stripe, over which others wait for the store: whoever says so has answers to give.
void Leases::GaveBack(const LeaseName& name) { Drop(name); }

// Whoever holds it knows what stands in the store, unless another one has taken it by now.
void Leases::Release(const LeaseName& name) {
  const absl::MutexLock busy(&writing_.Of(name.key));
  ReleaseNow(name);
}

void Leases::ReleaseNow(const LeaseName& name) {
  const std::string key = KeyOf(name);
  const std::optional<uint64_t> term = Drop(name);
  const absl::StatusOr<std::optional<std::string>> stands =
      term.has_value() ? Serialize(membership_.self(), *term) : OwnRecord(key);
  if (!stands.ok()) Owe(name);
  if (!stands.ok() || !stands->has_value()) return;
  CrashPoint("lease: to be given back");
  const absl::Status gone = store_.ReplaceRecord(Shelf::kReplicas, key, *stands, std::nullopt);
  CrashPoint("lease: given back");
  if (!gone.ok() && !absl::IsAborted(gone)) Owe(name);
}

void Leases::Owe(const LeaseName& name) {
  const absl::MutexLock lock(&mutex_);
  owed_.insert(name);
}

void Leases::GiveBackOwed() {
  std::set<LeaseName> owed;
  {
    const absl::MutexLock lock(&mutex_);
    owed.swap(owed_);
  }
  while (!owed.empty()) {
    const LeaseName name = std::move(owed.extract(owed.begin()).value());
    const absl::MutexLock busy(&writing_.Of(name.key));
    if (TakenAs(name) == 0) ReleaseNow(name);
    const absl::MutexLock lock(&mutex_);
    if (owed_.contains(name)) owed_.merge(owed);  // the store is not back
  }
}

// Nothing: there is none of this process.
absl::StatusOr<std::optional<std::string>> Leases::OwnRecord(const std::string& key) {
  absl::StatusOr<std::optional<std::string>> value = store_.GetRecord(Shelf::kReplicas, key);
  RETURN_IF_ERROR(value.status());
  const std::optional<Lease> stands = ParseLease(*value);
  if (!stands.has_value() || stands->holder != membership_.self()) value = std::nullopt;
  return value;
}

void Leases::ReleaseSoon(const LeaseName& name) {
  const bool submitted = releases_.TrySubmit([this, name, taken = TakenAs(name)] {
    const absl::MutexLock busy(&writing_.Of(name.key));
    if (TakenAs(name) == taken) ReleaseNow(name);
  });
  if (submitted) return;
  Drop(name);
  Owe(name);
}

uint64_t Leases::TakenAs(const LeaseName& name) const {
  const absl::MutexLock lock(&mutex_);
  const auto found = held_.find(name);
  return found == held_.end() ? 0 : found->second.taken;
}

std::vector<LeaseName> Leases::HeldWhere(
    const std::function<bool(const LeaseName&, const Held&)>& fits) const {
  const absl::MutexLock lock(&mutex_);
  std::vector<LeaseName> names;
  for (const auto& [name, held] : held_) {
    if (fits(name, held)) names.push_back(name);
  }
  return names;
}

void Leases::HandOver(LeaseOf of) {
  {
    const absl::MutexLock lock(&mutex_);
    handed_over_[Index(of)] = true;
  }
  for (const LeaseName& name :
       HeldWhere([of](const LeaseName&held, const Held&) { return held.of == of; })) {
    Release(name);
  }
}

void Leases::Sweep(std::chrono::milliseconds idle) {
  const SteadyTime now = now_();
  const uint64_t session = membership_.session();
  // Those of an earlier session may be another one's by now: whoever needs one asks again.
  for (const LeaseName& name :
       HeldWhere([&](const LeaseName&, const Held& held) { return held.session != session; })) {
    Drop(name);
  }
  for (const LeaseName& name : HeldWhere([&](const LeaseName&held, const Held&use) {
         return held.of == LeaseOf::kJob && now - use.used > idle;
       })) {
    Release(name);
  }
  if (membership_.lapsed()) return;  // others may have ended this one, and it nobody
  const absl::StatusOr<std::vector<Record>> page =
      store_.ListRecords(Shelf::kReplicas, kLeasePrefix, swept_, kSweptAtOnce);
  if (!page.ok()) return;  // counted and logged by the store's observer
  // A page that lacks damaged records is short, and not the last one.
  swept_ = page->empty() ? "" : KeyBehind(page->back().key);
  for (const Record& record : *page) SweepRecord(record);
}

// Of a replica that has ended, or of this one from before it lapsed.
void Leases::SweepRecord(const Record& record) {
  const std::optional<LeaseName> name = NameIn(record.key);
  const std::optional<Lease> stands = ParseLease(record.value);
  if (!name.has_value() || !stands.has_value()) return;
  if (stands->holder != membership_.self()) {
    const absl::StatusOr<bool> gone = membership_.IsGone(stands->holder);
    if (!gone.ok() || !*gone) return;
    CrashPoint("sweep: a lease to go");
    store_.ReplaceRecord(Shelf::kReplicas, record.key, record.value, std::nullopt).IgnoreError();
    CrashPoint("sweep: a lease gone");
    return;
  }
  const absl::MutexLock busy(&writing_.Of(name->key));
  {
    const absl::MutexLock lock(&mutex_);
    if (held_.contains(*name)) return;
  }
  store_.ReplaceRecord(Shelf::kReplicas, record.key, record.value, std::nullopt).IgnoreError();
}

std::optional<LeaseName> Leases::NameIn(absl::string_view key) {
  for (size_t kind = 0; kind < kLeaseKinds; ++kind) {
    if (absl::ConsumePrefix(&key, kKindPrefixes[kind].name)) {
      return LeaseName{static_cast<LeaseOf>(kind), std::string(key)};
    }
  }
  return std::nullopt;
}

}  // namespace bucketd
