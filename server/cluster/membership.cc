#include "server/cluster/membership.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "passes/base/status_macros.h"
#include "proto/cluster.pb.h"
#include "server/base/named.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kReplicaFormat = 1;
constexpr char kReplicaPrefix[] = "replica/";
constexpr int32_t kMostReplicas = 1000;
constexpr int kBeatTries = 3;
constexpr std::array<Named<ReplicaState>, kReplicaStates> kStateNames = {{
    {ReplicaState::kServing, "serving"},
    {ReplicaState::kDraining, "draining"},
    {ReplicaState::kSilent, "silent"},
}};
static_assert(IsByPosition(kStateNames));

std::string KeyOf(absl::string_view address) { return absl::StrCat(kReplicaPrefix, address); }

Digest WeightOf(absl::string_view address, absl::string_view name) {
  return Sha256(absl::StrCat(address, "\n", name));
}

// What another version wrote is nobody's word.
std::optional<v1::ReplicaRecord> ParseReplica(const std::optional<std::string>& value) {
  v1::ReplicaRecord record;
  if (!value.has_value() || !record.ParseFromString(*value) ||
      record.format_version() != kReplicaFormat) {
    return std::nullopt;
  }
  return record;
}

}  // namespace

absl::string_view Name(ReplicaState state) { return kStateNames[static_cast<size_t>(state)].name; }

Membership::Membership(Store& store, ReplicaId self, milliseconds dead_after, Now now)
    : store_(store), self_(std::move(self)), dead_after_(dead_after), now_(std::move(now)) {}

absl::Status Membership::Beat() {
  const absl::MutexLock beating(&beating_);
  absl::Status done = Renew();
  if (done.ok() || absl::IsAlreadyExists(done)) done.Update(Look());
  const absl::MutexLock lock(&mutex_);
  error_ = std::string(done.message());
  return done;
}

absl::Status Membership::Renew() {
  if (left_) return absl::FailedPreconditionError("this replica has left");
  const SteadyTime began = now_();
  v1::ReplicaRecord record;
  record.set_format_version(kReplicaFormat);
  record.set_incarnation(self_.incarnation);
  record.set_beat(++beat_);
  record.set_dead_ms(static_cast<uint32_t>(dead_after_.count()));
  bool is_first = false;
  {
    const absl::MutexLock lock(&mutex_);
    if (superseded_) return absl::AlreadyExistsError("another server has this address");
    record.set_draining(draining_);
    is_first = session_ == 0;
  }
  // Whoever had this address before does not come back; later, a stranger's record ends this one.
  const std::string key = KeyOf(self_.address);
  if (is_first) {
    ASSIGN_OR_RETURN(written_, store_.FindRecord(Shelf::kReplicas, key));
  }
  const std::string value = record.SerializeAsString();
  // What a lost answer left behind is a record of this process, and no word of it.
  was_ended_ = was_ended_ || !written_.has_value();
  absl::Status wrote;
  for (int attempt = 0; attempt < kBeatTries; ++attempt) {
    CrashPoint("beat: to be written");
    wrote = store_.ReplaceRecord(Shelf::kReplicas, key, written_, value);
    if (!absl::IsAborted(wrote)) break;
    ASSIGN_OR_RETURN(written_, store_.FindRecord(Shelf::kReplicas, key));
    const auto stands = ParseReplica(written_);
    if (!is_first && stands.has_value() && stands->incarnation() != self_.incarnation) {
      const absl::MutexLock lock(&mutex_);
      superseded_ = true;
      return absl::AlreadyExistsError(
          absl::StrCat("another server has taken the address ", self_.address));
    }
    was_ended_ = was_ended_ || !written_.has_value();
  }
  RETURN_IF_ERROR(wrote);
  CrashPoint("beat: written");
  written_ = value;
  const absl::MutexLock lock(&mutex_);
  if (std::exchange(was_ended_, false)) ++session_;
  renewed_ = began;
  return absl::OkStatus();
}

absl::Status Membership::Look() {
  ASSIGN_OR_RETURN(const std::vector<Record> records,
                   store_.ListRecords(Shelf::kReplicas, kReplicaPrefix, "", kMostReplicas));
  std::vector<std::pair<std::string, std::string>> dead;  // address, record
  {
    const absl::MutexLock lock(&mutex_);
    const SteadyTime now = now_();
    // Nobody could write while nobody could read.
    const bool was_blind = now - looked_ > dead_after_ / 2;
    looked_ = now;
    const std::map<std::string, Seen> before = std::exchange(others_, {});
    for (const Record& record : records) {
      const std::string address(absl::StripPrefix(record.key, kReplicaPrefix));
      if (address == self_.address) continue;
      const auto known = before.find(address);
      if (known != before.end() && !was_blind) others_.insert(*known);
      See(record, now);
    }
    for (const auto& [address, seen] : others_) {
      if (IsDead(seen, now)) dead.emplace_back(address, seen.value);
    }
  }
  for (const auto& [address, value] : dead) {
    CrashPoint("death: to be written");
    const absl::Status ended =
        store_.ReplaceRecord(Shelf::kReplicas, KeyOf(address), value, std::nullopt);
    if (absl::IsAborted(ended)) continue;  // it lives, or another one has ended it
    RETURN_IF_ERROR(ended);
    CrashPoint("death: written");
    const absl::MutexLock lock(&mutex_);
    others_.erase(address);
  }
  return absl::OkStatus();
}

void Membership::See(const Record& record, SteadyTime now) {
  Seen& seen = others_[std::string(absl::StripPrefix(record.key, kReplicaPrefix))];
  if (seen.value == record.value) return;
  const v1::ReplicaRecord said = ParseReplica(record.value).value_or(v1::ReplicaRecord());
  seen = {said.incarnation(), said.draining(), said.dead_ms(), now, record.value};
}

absl::StatusOr<bool> Membership::IsGone(const ReplicaId& id) {
  if (id == self_) return false;
  {
    const absl::MutexLock lock(&mutex_);
    // This one is about to end whoever had its address. Once it has, whoever has it came later.
    if (id.address == self_.address && session_ == 0) return true;
    const auto seen = others_.find(id.address);
    if (seen != others_.end() && seen->second.incarnation == id.incarnation &&
        !IsDead(seen->second, now_())) {
      return false;
    }
  }
  // It may have come, gone or been ended since this one looked.
  ASSIGN_OR_RETURN(const std::optional<std::string> value,
                   store_.FindRecord(Shelf::kReplicas, KeyOf(id.address)));
  const auto said = ParseReplica(value);
  return !said.has_value() || said->incarnation() != id.incarnation;
}

void Membership::Leave() {
  const absl::MutexLock beating(&beating_);
  left_ = true;
  const auto said = ParseReplica(written_);
  // Nothing, or the record of another server with this address.
  if (!said.has_value() || said->incarnation() != self_.incarnation) return;
  CrashPoint("leave: to be written");
  store_.ReplaceRecord(Shelf::kReplicas, KeyOf(self_.address), written_, std::nullopt)
      .IgnoreError();  // a stranger's stays; what stays of this one is found dead
  CrashPoint("leave: written");
}

void Membership::BeginDrain() {
  const absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool Membership::Lapsed(SteadyTime now) const {
  return superseded_ || !renewed_.has_value() || now - *renewed_ > dead_after_ * 4 / 5;
}

bool Membership::lapsed() const {
  const absl::MutexLock lock(&mutex_);
  return Lapsed(now_());
}

uint64_t Membership::session() const {
  const absl::MutexLock lock(&mutex_);
  return session_;
}

std::string Membership::Trouble() const {
  const absl::MutexLock lock(&mutex_);
  if (!Lapsed(now_())) return "";
  return absl::StrCat(superseded_ ? "takes nothing on: " : "cut off from the other replicas: ",
                      error_.empty() ? "the store does not answer" : error_);
}

std::string Membership::Mismatch() const {
  const absl::MutexLock lock(&mutex_);
  for (const auto& [address, seen] : others_) {
    if (seen.dead_ms == 0 || milliseconds(seen.dead_ms) == dead_after_) continue;
    return absl::StrCat("--cluster-dead-ms is ", dead_after_.count(), " here and ", seen.dead_ms,
                        " at ", address, "; give all replicas the same");
  }
  return "";
}

bool Membership::superseded() const {
  const absl::MutexLock lock(&mutex_);
  return superseded_ && !draining_;
}

std::vector<ReplicaView> Membership::List() const {
  const absl::MutexLock lock(&mutex_);
  const SteadyTime now = now_();
  std::vector<ReplicaView> all;
  const auto add = [&](const ReplicaId& id, bool draining, SteadyTime since, bool self) {
    const bool silent = now - since > dead_after_ / 2;
    all.push_back({id,
                   silent     ? ReplicaState::kSilent
                   : draining ? ReplicaState::kDraining
                              : ReplicaState::kServing,
                   std::chrono::duration_cast<milliseconds>(now - since), self});
  };
  for (const auto& [address, seen] : others_) {
    add({address, seen.incarnation}, seen.draining, seen.since, false);
  }
  if (renewed_.has_value()) add(self_, draining_, *renewed_, true);
  std::sort(all.begin(), all.end(),
            [](const ReplicaView& a, const ReplicaView& b) { return a.id.address < b.id.address; });
  return all;
}

// The highest of all hashes of name and address: where one goes, only what was its moves.
std::pair<std::optional<ReplicaId>, Digest> Membership::HighestOther(absl::string_view name) const {
  std::pair<std::optional<ReplicaId>, Digest> best;
  for (const auto& [address, seen] : others_) {
    const Digest its = WeightOf(address, name);
    if (!seen.draining && its > best.second) best = {ReplicaId{address, seen.incarnation}, its};
  }
  return best;
}

std::optional<ReplicaId> Membership::HashedOther(absl::string_view name) const {
  const absl::MutexLock lock(&mutex_);
  return HighestOther(name).first;
}

ReplicaId Membership::HashedOwner(absl::string_view name) const {
  const absl::MutexLock lock(&mutex_);
  const auto [other, its] = HighestOther(name);
  const bool takes_part = !draining_ && !superseded_;
  const bool is_ours = takes_part && WeightOf(self_.address, name) > its;
  return is_ours ? self_ : other.value_or(self_);
}

}  // namespace bucketd
