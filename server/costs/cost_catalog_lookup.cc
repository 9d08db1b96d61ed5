// What the catalogue answers from memory: names, versions, and what a request's name stands for.

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "server/base/errors.h"
#include "server/costs/cost_catalog.h"

namespace bucketd {
namespace {

// Not cut inside of a character: an error's details have to be UTF-8, or their reader has none.
std::string Shown(absl::string_view name) { return absl::CHexEscape(name.substr(0, 128)); }

}  // namespace

absl::Status CostCatalog::UnknownName(absl::string_view name) const {
  if (!loaded_) {
    return MakeError(Reason::kStoreUnavailable,
                     absl::StrCat("cost_profile: whether there is a \"", Shown(name),
                                  "\" is not known: the store cannot be read"));
  }
  return MakeError(Reason::kProfileUnknown,
                   absl::StrCat("cost_profile: there is no \"", Shown(name), "\"; known are ",
                                absl::StrJoin(entries_, ", ", [](std::string* out, const auto& e) {
                                  absl::StrAppend(out, e.first);
                                })));
}

absl::StatusOr<CostCatalog::ProfilePtr> CostCatalog::Resolve(absl::string_view spec,
                                                             absl::string_view device_type) const {
  const ProfileSpec wanted = ParseProfileSpec(spec, device_type);
  const absl::ReaderMutexLock lock(&mutex_);
  const auto found = entries_.find(wanted.name);
  if (found == entries_.end()) return UnknownName(wanted.name);
  const Entry& entry = found->second;
  if (!loaded_ && (wanted.latest || wanted.version > 1)) return UnknownName(spec);

  int32_t number = wanted.version;
  if (wanted.latest) {
    if (entry.promoted.empty()) {
      return MakeError(Reason::kProfileUnreadable,
                       absl::StrCat("cost_profile: which version of ", found->first,
                                    " is promoted was lost; promote one, or name one"));
    }
    number = entry.promoted.back();
  } else if (wanted.version_text.empty()) {
    number = entry.versions.empty() ? 0 : entry.versions.begin()->first;
  }
  const auto version = entry.versions.find(number);
  if (version == entry.versions.end()) {
    std::vector<int32_t> known;
    for (const auto& [v, unused] : entry.versions) known.push_back(v);
    return MakeError(Reason::kProfileUnknown,
                     absl::StrCat("cost_profile: there is no \"", Shown(spec), "\"; ", found->first,
                                  " has versions ", absl::StrJoin(known, ", "), " and latest"));
  }
  if (version->second.profile == nullptr) {
    return MakeError(Reason::kProfileUnreadable,
                     absl::StrCat("cost_profile: ", found->first, "@", number,
                                  " was stored and cannot be read any more; no other version "
                                  "takes its place"));
  }
  return version->second.profile;
}

std::vector<std::string> CostCatalog::Names() const {
  const absl::ReaderMutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

ProfileInfo CostCatalog::InfoOf(const std::string& name, const Entry& entry, int32_t number) {
  const Version& version = entry.versions.at(number);
  ProfileInfo info{name, number,     version.origin,          false, version.profile != nullptr,
                   "",   version.by, version.created_unix_ms, 0};
  info.promoted = !entry.promoted.empty() && entry.promoted.back() == number;
  if (info.readable) {
    info.about = version.profile->about;
    info.links = static_cast<int32_t>(version.profile->links.size());
  }
  return info;
}

std::vector<ProfileInfo> CostCatalog::List(absl::string_view only) const {
  const absl::ReaderMutexLock lock(&mutex_);
  std::vector<ProfileInfo> all;
  for (const auto& [name, entry] : entries_) {
    if (!only.empty() && only != name) continue;
    for (const auto& [number, unused] : entry.versions) all.push_back(InfoOf(name, entry, number));
  }
  return all;
}

absl::StatusOr<ProfileInfo> CostCatalog::Info(absl::string_view name, int32_t version) const {
  const absl::ReaderMutexLock lock(&mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return UnknownName(name);
  if (!found->second.versions.contains(version)) {
    return MakeError(Reason::kProfileUnknown,
                     absl::StrCat("cost_profile: ", name, " has no version ", version));
  }
  return InfoOf(found->first, found->second, version);
}

}  // namespace bucketd
