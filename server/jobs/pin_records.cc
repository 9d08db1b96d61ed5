#include "server/jobs/pin_records.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

#include "proto/pins.pb.h"
#include "server/jobs/pin_index.h"

namespace bucketd {
namespace {

constexpr uint32_t kFormat = 1;

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

// Of one generation: what the first one said, and of the second one what that leaves open.
JobMemory Merge(JobMemory first, const JobMemory& second) {
  std::map<std::string, std::string> fixed(first.profiles.begin(), first.profiles.end());
  fixed.insert(second.profiles.begin(), second.profiles.end());
  first.profiles.assign(fixed.begin(), fixed.end());
  if (!second.last_scope.empty()) first.last_scope = second.last_scope;
  first.ranks = std::max(first.ranks, second.ranks);
  return first;
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

template <typename Message>
std::string SetExpiry(const Record& record, WallTime expires) {
  std::optional<Message> message = Parse<Message>(record);
  if (!message.has_value()) return record.value;
  message->set_expires_ms(MsOf(expires));
  return message->SerializeAsString();
}

}  // namespace

std::optional<Kept> KeptBy(const Record& record) {
  if (IsPin(record.key)) {
    const auto pin = Parse<v1::PinRecord>(record);
    if (pin.has_value()) return Kept{WallAt(pin->expires_ms()), pin->size()};
  } else if (const auto job = Parse<v1::JobRecord>(record); job.has_value()) {
    return Kept{WallAt(job->expires_ms()), job->ranks()};
  }
  return std::nullopt;
}

std::optional<Pin> PinIn(const std::string& key, const std::optional<std::string>& value) {
  if (!value.has_value()) return std::nullopt;
  const auto record = Parse<v1::PinRecord>({key, *value});
  if (!record.has_value()) return std::nullopt;
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
  if (!record.has_value()) return std::nullopt;
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

std::string Serialize(const Pin& pin, WallTime expires) {
  v1::PinRecord record;
  record.set_format_version(kFormat);
  record.set_generation(pin.generation);
  record.set_size(pin.size);
  record.set_plan_key(pin.plan_key);
  record.set_cost_profile(pin.profile_as_asked);
  record.set_plan_sha256(std::string(AsBytes(pin.plan_sha256)));
  record.set_agreed_ms(WallNowMs());
  record.set_expires_ms(MsOf(expires));
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
  record.set_expires_ms(MsOf(expires));
  record.set_last_scope(memory.last_scope);
  record.set_ranks(memory.ranks);
  return record.SerializeAsString();
}

std::string InWords(WallTime time) {
  return absl::FormatTime(absl::RFC3339_sec, absl::FromChrono(time), absl::UTCTimeZone());
}

// Of a record that goes.
std::string WhatStands(const Record& record) {
  if (IsPin(record.key)) {
    const std::optional<Pin> pin = PinIn(record.key, record.value);
    return pin.has_value() ? InWords(*pin) : "a pin that cannot be read";
  }
  const std::optional<JobMemory> memory = MemoryIn(record.key, record.value);
  return memory.has_value() ? InWords(*memory) : "a job that cannot be read";
}

AuditLine LineAbout(absl::string_view key, absl::string_view what, const Actor& by) {
  if (what == "release" && by.in_passing) what = "finish";
  return {by, std::string(TenantOf(key)), std::string(what), SubjectOf(key), "", ""};
}

std::string WithExpiry(const Record& record, WallTime expires) {
  return IsPin(record.key) ? SetExpiry<v1::PinRecord>(record, expires)
                           : SetExpiry<v1::JobRecord>(record, expires);
}

std::string PlanKeyIn(const Record& record) {
  const auto pin = Parse<v1::PinRecord>(record);
  return pin.has_value() ? pin->plan_key() : "";
}

absl::StatusOr<JobMemory> NextMemory(const std::string& key,
                                     const std::optional<std::string>& before,
                                     const JobMemory& memory, AuditLine& line) {
  const std::optional<JobMemory> other = MemoryIn(key, before);
  if (other.has_value() && other->generation > memory.generation) {
    return LaterGeneration(other->generation);
  }
  if (other.has_value() && other->generation == memory.generation) return Merge(*other, memory);
  line.what = "generation";
  line.before = other.has_value() ? InWords(*other) : "";
  line.after = InWords(memory);
  return memory;
}

absl::StatusOr<Pin> NextPin(const std::string& key, const std::optional<std::string>& before,
                            const Pin& pin, AuditLine& line) {
  const std::optional<Pin> other = PinIn(key, before);
  if (other.has_value() && other->generation > pin.generation) {
    return LaterGeneration(other->generation);
  }
  if (other.has_value() && other->generation == pin.generation && other->size == pin.size) {
    return *other;
  }
  line.what = "pin";
  line.before = other.has_value() ? InWords(*other) : "";
  line.after = InWords(pin);
  return pin;
}

bool Holds(const JobMemory& here, const JobMemory& stands) {
  const std::map<std::string, std::string> fixed(stands.profiles.begin(), stands.profiles.end());
  return here.unplanned.has_value() == stands.unplanned.has_value() &&
         std::all_of(here.profiles.begin(), here.profiles.end(), [&](const auto& profile) {
           const auto found = fixed.find(profile.first);
           return found != fixed.end() && found->second == profile.second;
         });
}

}  // namespace bucketd
