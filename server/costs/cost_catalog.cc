#include "server/costs/cost_catalog.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "spdlog/spdlog.h"

#include "passes/base/status_macros.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"
#include "proto/cost_store.pb.h"
#include "server/base/errors.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

constexpr uint32_t kProfileFormatVersion = 1;
constexpr int32_t kProfilePage = 256;
constexpr size_t kMaxHistory = 64;
constexpr int kProfileAttempts = 16;  // of a change that others make at the same time
constexpr char kNamePrefix[] = "name/";
constexpr char kVersionPrefix[] = "version/";

std::string NameKey(absl::string_view name) { return absl::StrCat(kNamePrefix, name); }

std::string VersionKey(absl::string_view name, int32_t version) {
  return absl::StrCat(kVersionPrefix, name, "/", absl::StrFormat("%010d", version));
}

// Calls `take` with every record whose key begins with `prefix`.
template <typename Take>
absl::Status ForEachRecord(Store& store, absl::string_view prefix, const Take& take) {
  const absl::Status read =
      store.ForEachRecord(Shelf::kProfiles, prefix, kProfilePage, [&](const Record& record) {
        take(record);
        return absl::OkStatus();
      });
  return read.ok() ? read : WithReason(Reason::kStoreUnavailable, read);
}

absl::Status Written(const absl::Status& put) {
  return put.ok() || absl::IsAborted(put) ? put : WithReason(Reason::kStoreUnavailable, put);
}

}  // namespace

CostCatalog::CostCatalog(Store& store, CostMetrics& metrics, const CostCatalogLimits& limits)
    : store_(store), metrics_(metrics), limits_(limits), entries_(BuiltIns()) {
  CountProfiles();
}

CostCatalog::Entries CostCatalog::BuiltIns() {
  Entries entries;
  for (const CostProfile& profile : BuiltInProfiles()) {
    Entry& entry = entries[profile.name];
    entry.versions[1] = {std::make_shared<const KeyedProfile>(profile), ProfileOrigin::kBuiltIn, "",
                         0};
    entry.promoted = {1};
    entry.next_version = 2;
  }
  return entries;
}

absl::Status CostCatalog::Load() {
  const absl::MutexLock lock(&changing_);
  return Refresh();
}

// Every change writes a name: theirs are compared with what is known, and all of them are few.
absl::Status CostCatalog::Follow() {
  const absl::MutexLock changing(&changing_);
  const absl::StatusOr<int64_t> version = store_.Version();
  if (version.ok() && seen_ == *version) return absl::OkStatus();
  std::map<std::string, std::string> theirs, known;
  RETURN_IF_ERROR(ForEachRecord(store_, kNamePrefix, [&](const Record& record) {
    theirs.emplace(absl::StripPrefix(record.key, kNamePrefix), record.value);
  }));
  {
    const absl::ReaderMutexLock lock(&mutex_);
    for (const auto& [name, entry] : entries_) {
      if (entry.stored.has_value()) known.emplace(name, *entry.stored);
    }
  }
  if (theirs != known) RETURN_IF_ERROR(Refresh());
  if (version.ok()) seen_ = *version;
  return absl::OkStatus();
}

absl::Status CostCatalog::Refresh() {
  Entries entries = BuiltIns();
  RETURN_IF_ERROR(ReadNames(entries));
  RETURN_IF_ERROR(ReadVersions(entries));
  RETURN_IF_ERROR(FindLostNames(entries));
  const absl::MutexLock lock(&mutex_);
  entries_ = std::move(entries);
  loaded_ = true;
  CountProfiles();
  return absl::OkStatus();
}

absl::Status CostCatalog::ReadNames(Entries& entries) {
  return ForEachRecord(store_, kNamePrefix, [&](const Record& record) {
    const absl::string_view name = absl::StripPrefix(record.key, kNamePrefix);
    v1::StoredProfileName stored;
    if (!CheckProfileName(name).ok() || !stored.ParseFromString(record.value) ||
        stored.format_version() != kProfileFormatVersion) {
      Unreadable(record.key, "not a record of a name that this version reads");
      if (CheckProfileName(name).ok()) {
        entries[std::string(name)].promoted.clear();
        entries[std::string(name)].stored = record.value;
      }
      return;
    }
    Entry& entry = entries[std::string(name)];
    // Unreadable, all of them, until their own records are found.
    for (const uint32_t v : stored.versions()) {
      entry.versions.try_emplace(static_cast<int32_t>(v),
                                 Version{nullptr, ProfileOrigin::kImported, "", 0});
    }
    entry.promoted.assign(stored.promoted().begin(), stored.promoted().end());
    entry.stored = record.value;
    entry.next_version = std::max(entry.next_version, static_cast<int32_t>(stored.next_version()));
  });
}

absl::Status CostCatalog::ReadVersions(Entries& entries) {
  RETURN_IF_ERROR(ForEachRecord(store_, kVersionPrefix, [&](const Record& record) {
    v1::StoredProfile stored;
    if (!stored.ParseFromString(record.value) || stored.format_version() != kProfileFormatVersion) {
      Unreadable(record.key, "not a record of a profile that this version reads");
      return;
    }
    absl::StatusOr<CostProfile> profile = ProfileFromProto(stored.profile());
    if (!profile.ok()) {
      Unreadable(record.key, profile.status().message());
      return;
    }
    const int32_t number = profile->version;
    if (!CheckProfileName(profile->name).ok() || record.key != VersionKey(profile->name, number)) {
      Unreadable(record.key, absl::StrCat("holds ", ProfileId(*profile)));
      return;
    }
    Entry& entry = entries[profile->name];
    Version& version = entry.versions[number];
    if (version.profile != nullptr) return;  // built in
    version.origin = stored.origin() == v1::PROFILE_ORIGIN_MEASURED ? ProfileOrigin::kMeasured
                                                                    : ProfileOrigin::kImported;
    version.by = stored.by();
    version.created_unix_ms = stored.created_unix_ms();
    version.profile = std::make_shared<const KeyedProfile>(*std::move(profile));
    // A version without its name's record was being added when the process ended.
    entry.next_version = std::max(entry.next_version, number + 1);
  }));
  for (const auto& [name, entry] : entries) {
    for (const auto& [number, version] : entry.versions) {
      if (version.profile == nullptr) Unreadable(VersionKey(name, number), "lost");
    }
  }
  return absl::OkStatus();
}

// Lists leave damaged records out; asking for one by its key tells damage from absence. What was
// promoted is unknown then, and stays so across restarts.
absl::Status CostCatalog::FindLostNames(Entries& entries) {
  for (auto& [name, entry] : entries) {
    const auto record = store_.GetRecord(Shelf::kProfiles, NameKey(name));
    if (record.ok()) continue;
    if (record.status().code() != absl::StatusCode::kDataLoss) {
      return WithReason(Reason::kStoreUnavailable, record.status());
    }
    Unreadable(NameKey(name), record.status().message());
    entry.promoted.clear();
    const absl::Status put =
        PutName(name, entry,
                {ServerItself(), kAllTenants, "repair", absl::StrCat("cost profile ", name), "",
                 "the list of its versions was lost, and is made anew of those that are there"});
    if (!absl::IsAborted(put)) RETURN_IF_ERROR(put);
  }
  return absl::OkStatus();
}

void CostCatalog::Unreadable(absl::string_view key, absl::string_view why) {
  changing_.AssertHeld();
  if (!reported_.insert(std::string(key)).second) return;
  metrics_.records_unreadable.Increment();
  spdlog::warn("cost profile record {} cannot be read: {}", std::string(key), std::string(why));
}

void CostCatalog::CountProfiles() {
  int readable = 0, lost = 0;
  for (const auto& [name, entry] : entries_) {
    for (const auto& [number, version] : entry.versions) {
      ++(version.profile != nullptr ? readable : lost);
    }
  }
  metrics_.profiles.Set(readable);
  metrics_.profiles_unreadable.Set(lost);
}

absl::Status CostCatalog::PutVersion(const std::string& name, int32_t number,
                                     const Version& version) {
  v1::StoredProfile stored;
  stored.set_format_version(kProfileFormatVersion);
  ProfileToProto(*version.profile, *stored.mutable_profile());
  stored.set_origin(static_cast<v1::ProfileOrigin>(version.origin));
  stored.set_by(version.by);
  stored.set_created_unix_ms(version.created_unix_ms);
  return Written(store_.ReplaceRecord(Shelf::kProfiles, VersionKey(name, number), std::nullopt,
                                      stored.SerializeAsString()));
}

absl::Status CostCatalog::PutName(const std::string& name, Entry& entry, const AuditLine& line) {
  v1::StoredProfileName stored;
  stored.set_format_version(kProfileFormatVersion);
  for (const auto& [number, version] : entry.versions) {
    if (version.origin != ProfileOrigin::kBuiltIn) {
      stored.add_versions(static_cast<uint32_t>(number));
    }
  }
  for (const int32_t v : entry.promoted) stored.add_promoted(static_cast<uint32_t>(v));
  stored.set_next_version(static_cast<uint32_t>(entry.next_version));
  std::string text = stored.SerializeAsString();
  RETURN_IF_ERROR(
      Written(store_.ReplaceRecord(Shelf::kProfiles, NameKey(name), entry.stored, text, &line)));
  entry.stored = std::move(text);
  return absl::OkStatus();
}

// A change is made anew, of what the store holds then, as long as another server is faster.
template <typename Change>
std::invoke_result_t<Change> CostCatalog::UntilFirst(Change change) {
  for (int attempt = 0; attempt < kProfileAttempts; ++attempt) {
    RETURN_IF_ERROR(Refresh());
    auto changed = change();
    if (!absl::IsAborted(changed.status())) return changed;
  }
  return MakeError(Reason::kStoreUnavailable,
                   "other servers change this cost profile again and again");
}

void CostCatalog::Publish(const std::string& name, Entry entry) {
  const absl::MutexLock lock(&mutex_);
  entries_[name] = std::move(entry);
  CountProfiles();
}

// The version that has to go for the newest one; 0: none.
absl::StatusOr<int32_t> CostCatalog::MakeRoom(Entry& entry) const {
  if (entry.versions.size() <= static_cast<size_t>(limits_.versions)) return 0;
  const int32_t first = entry.versions.begin()->first;
  const int32_t newest = entry.versions.rbegin()->first;
  std::vector<int32_t>& promoted = entry.promoted;
  for (const auto& [number, version] : entry.versions) {
    const bool was_promoted = std::count(promoted.begin(), promoted.end(), number) > 0;
    if (number != first && number != newest && !was_promoted) return number;
  }
  const auto recent = promoted.end() - std::min<ptrdiff_t>(2, std::ssize(promoted));
  for (auto at = promoted.begin(); at != recent; ++at) {
    const int32_t number = *at;
    if (number == first || number == newest || std::count(recent, promoted.end(), number) > 0) {
      continue;
    }
    promoted.erase(std::remove(promoted.begin(), promoted.end(), number), promoted.end());
    return number;
  }
  return MakeError(Reason::kProfileLimit,
                   absl::StrCat("all ", limits_.versions,
                                " versions of this name were promoted once; use another name"),
                   {.limit = limits_.versions});
}

absl::StatusOr<CostCatalog::Added> CostCatalog::Add(CostProfile profile, ProfileOrigin origin,
                                                    absl::string_view by, const Actor& actor) {
  RETURN_IF_ERROR(CheckProfileName(profile.name));
  RETURN_IF_ERROR(CheckProfileTexts(profile, by));
  const absl::MutexLock changing(&changing_);
  int32_t written = 0;
  return UntilFirst([&] {
    changing_.AssertHeld();
    return AddOnce(profile, origin, by, actor, written);
  });
}

// `written`: the version that an attempt before this one has put into the store.
absl::StatusOr<CostCatalog::Added> CostCatalog::AddOnce(CostProfile profile, ProfileOrigin origin,
                                                        absl::string_view by, const Actor& actor,
                                                        int32_t& written) {
  const std::string name = profile.name;
  Entry entry;
  {
    const absl::ReaderMutexLock lock(&mutex_);
    const auto found = entries_.find(name);
    if (found != entries_.end()) entry = found->second;
    if (found == entries_.end() && entries_.size() >= static_cast<size_t>(limits_.names)) {
      return MakeError(Reason::kProfileLimit, "no further names of cost profiles are kept",
                       {.limit = limits_.names});
    }
  }
  profile.version = entry.next_version;
  const absl::Status valid = profile.Validate();
  if (!valid.ok()) return WithReason(Reason::kProfileInvalid, valid);
  const auto kept = std::make_shared<const KeyedProfile>(std::move(profile));
  int32_t number = 0;
  for (const auto& [known, version] : entry.versions) {
    const ProfilePtr& other = version.profile;
    if (other != nullptr && other->fingerprint == kept->fingerprint) number = known;
  }
  if (number != 0 && number != written) return Added{InfoOf(name, entry, number), true};
  if (number == 0) {
    number = entry.next_version++;
    entry.versions[number] = {kept, origin, std::string(by), WallNowMs()};
  }
  // A version without its name's record is another server's that is being added.
  if (!entry.stored.has_value() && entry.promoted.empty()) {
    entry.promoted = {entry.versions.begin()->first};
  }
  ASSIGN_OR_RETURN(const int32_t goes, MakeRoom(entry));
  if (number != written) RETURN_IF_ERROR(PutVersion(name, number, entry.versions[number]));
  CrashPoint("import: version kept, its name not");
  written = number;
  entry.versions.erase(goes);
  const char* what = origin == ProfileOrigin::kMeasured ? "measure" : "import";
  RETURN_IF_ERROR(PutName(name, entry,
                          {actor, kAllTenants, what, absl::StrCat("cost profile ", name), "",
                           absl::StrCat("version ", number, goes == 0 ? "" : ", and not ",
                                        goes == 0 ? "" : absl::StrCat("version ", goes))}));
  if (goes != 0) {
    // No longer listed: what is left of it is taken away, or read as an orphan after a restart.
    store_.EraseRecord(Shelf::kProfiles, VersionKey(name, goes)).IgnoreError();
  }
  const Added added{InfoOf(name, entry, number), false};
  Publish(name, std::move(entry));
  return added;
}

absl::StatusOr<CostCatalog::Entry> CostCatalog::Copy(absl::string_view name) const {
  const absl::ReaderMutexLock lock(&mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return UnknownName(name);
  return found->second;
}

// Durable first: what was answered holds after a crash.
absl::StatusOr<CostCatalog::Switched> CostCatalog::Commit(const std::string& name, Entry entry,
                                                          int32_t before, PromotionKind kind,
                                                          const Actor& actor) {
  const auto latest = [](int32_t version) { return absl::StrCat("latest is version ", version); };
  CrashPoint("promotion: to be kept");
  RETURN_IF_ERROR(
      PutName(name, entry,
              {actor, kAllTenants, kind == PromotionKind::kRollback ? "rollback" : "promote",
               absl::StrCat("cost profile ", name), before == 0 ? "" : latest(before),
               latest(entry.promoted.back())}));
  CrashPoint("promotion: kept");
  const Switched switched{InfoOf(name, entry, entry.promoted.back()), before};
  Publish(name, std::move(entry));
  metrics_.promotions(kind).Increment();
  spdlog::info("cost profile {}@latest is version {} now, was {}", name, switched.info.version,
               before);
  return switched;
}

absl::StatusOr<CostCatalog::Switched> CostCatalog::Promote(absl::string_view name, int32_t version,
                                                           PromotionKind kind, const Actor& actor) {
  const absl::MutexLock changing(&changing_);
  return UntilFirst([&]() -> absl::StatusOr<Switched> {
    ASSIGN_OR_RETURN(Entry entry, Copy(name));
    RETURN_IF_ERROR(Resolve(absl::StrCat(name, "@", version), "").status());
    const int32_t before = entry.promoted.empty() ? 0 : entry.promoted.back();
    if (before == version) return Switched{InfoOf(std::string(name), entry, version), before};
    entry.promoted.push_back(version);
    if (entry.promoted.size() > kMaxHistory) entry.promoted.erase(entry.promoted.begin());
    return Commit(std::string(name), std::move(entry), before, kind, actor);
  });
}

absl::StatusOr<CostCatalog::Switched> CostCatalog::Rollback(absl::string_view name,
                                                            const Actor& actor) {
  const absl::MutexLock changing(&changing_);
  return UntilFirst([&]() -> absl::StatusOr<Switched> {
    ASSIGN_OR_RETURN(Entry entry, Copy(name));
    if (entry.promoted.size() < 2) {
      return MakeError(Reason::kNoEarlierVersion,
                       absl::StrCat("cost profile ", name,
                                    ": nothing was promoted before what is promoted now"));
    }
    const int32_t before = entry.promoted.back();
    entry.promoted.pop_back();
    const int32_t now = entry.promoted.back();
    RETURN_IF_ERROR(Resolve(absl::StrCat(name, "@", now), "").status());
    return Commit(std::string(name), std::move(entry), before, PromotionKind::kRollback, actor);
  });
}

}  // namespace bucketd
