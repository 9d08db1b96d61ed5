// Cost profiles by name and version. A version never changes; one version of each name is promoted,
// which is what NAME@latest means. Built-in profiles are version 1 of their names, whatever a store
// says.
//
// A name alone is its first version: what it stands for never moves, so ranks that ask at different
// times get the same numbers. Only "latest" moves, and whoever asks for it records what came out
// (ProfileId), once a generation.
//
// A version that the store lost is remembered by its name's record: it is answered
// PROFILE_UNREADABLE, never another version in its place. So is `latest` where the record of what
// was promoted is lost, until something is promoted.
//
// Every change begins by reading what the store holds, and is written only if that is still so:
// while two servers have it open neither gives a number away that the other one has given, or
// undoes what it has promoted. What others change is known once Follow() has looked.
//
// Thread-safe. Resolve, List and Names look into memory; the others may block on the store and wait
// for each other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/cost/profile.h"
#include "server/costs/cost_metrics.h"
#include "server/costs/cost_names.h"
#include "server/store/store.h"

namespace bucketd {

enum class ProfileOrigin { kBuiltIn = 1, kImported = 2, kMeasured = 3 };  // v1::ProfileOrigin

struct ProfileInfo {
  std::string name;
  int32_t version = 0;
  ProfileOrigin origin = ProfileOrigin::kBuiltIn;
  bool promoted = false;
  bool readable = true;
  std::string about;
  std::string by;
  int64_t created_unix_ms = 0;  // 0: with the program
  int32_t links = 0;
};

struct CostCatalogLimits {
  int32_t names = 64;
  // Stored versions of a name. Beyond: the oldest that was never promoted goes, else the one that
  // was promoted longest ago. The first one stays, and what is promoted now and was before that.
  int32_t versions = 64;
};

class CostCatalog {
 public:
  using ProfilePtr = std::shared_ptr<const KeyedProfile>;

  // Both outlive this.
  CostCatalog(Store& store, CostMetrics& metrics, const CostCatalogLimits& limits = {});

  // Reads the store, what another server wrote included. Until it has succeeded the built-in
  // versions are known, everything else is STORE_UNAVAILABLE.
  absl::Status Load();
  // Load(), if another server has changed something. Errors are the store's.
  absl::Status Follow();

  // "NAME", "NAME@VERSION", "NAME@latest"; "" and "latest": of h100_nvlink, on device "cpu" of
  // cpu_loopback. PROFILE_UNKNOWN lists what is known. Never blocks.
  absl::StatusOr<ProfilePtr> Resolve(absl::string_view spec, absl::string_view device_type) const;

  std::vector<std::string> Names() const;
  // By name and version; of one name, or of all for "".
  std::vector<ProfileInfo> List(absl::string_view name) const;
  absl::StatusOr<ProfileInfo> Info(absl::string_view name, int32_t version) const;

  struct Added {
    ProfileInfo info;
    bool already_there = false;  // a version with these numbers: `info` is that one
  };
  // As the next version of profile.name; promoted only if it is the first. PROFILE_INVALID,
  // PROFILE_LIMIT.
  absl::StatusOr<Added> Add(CostProfile profile, ProfileOrigin origin, absl::string_view by,
                            const Actor& actor = {});

  struct Switched {
    ProfileInfo info;    // what is promoted now
    int32_t before = 0;  // 0: unknown
  };
  absl::StatusOr<Switched> Promote(absl::string_view name, int32_t version, PromotionKind kind,
                                   const Actor& actor = {});
  // To what was promoted before. NO_EARLIER_VERSION.
  absl::StatusOr<Switched> Rollback(absl::string_view name, const Actor& actor = {});

 private:
  struct Version {
    ProfilePtr profile;  // null: unreadable
    ProfileOrigin origin = ProfileOrigin::kBuiltIn;
    std::string by;
    int64_t created_unix_ms = 0;
  };
  struct Entry {
    std::map<int32_t, Version> versions;
    std::vector<int32_t> promoted;  // the last one is now; empty: unknown
    int32_t next_version = 1;
    std::optional<std::string> stored;  // the name's record, as it was read or written
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  static Entries BuiltIns();
  static ProfileInfo InfoOf(const std::string& name, const Entry& entry, int32_t version);
  absl::Status Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(changing_);
  absl::Status ReadNames(Entries& entries);
  absl::Status ReadVersions(Entries& entries);
  absl::Status FindLostNames(Entries& entries);
  // REQUIRES: changing_.
  void Unreadable(absl::string_view key, absl::string_view why);
  absl::Status PutVersion(const std::string& name, int32_t number, const Version& version);
  // ABORTED of both: another server was faster.
  absl::Status PutName(const std::string& name, Entry& entry, const AuditLine& line);
  template <typename Change>
  std::invoke_result_t<Change> UntilFirst(Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(changing_);
  absl::StatusOr<Added> AddOnce(CostProfile profile, ProfileOrigin origin, absl::string_view by,
                                const Actor& actor, int32_t& written)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changing_);
  absl::StatusOr<int32_t> MakeRoom(Entry& entry) const;
  absl::StatusOr<Entry> Copy(absl::string_view name) const;
  absl::StatusOr<Switched> Commit(const std::string& name, Entry entry, int32_t before,
                                  PromotionKind kind, const Actor& actor);
  void Publish(const std::string& name, Entry entry);
  void CountProfiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status UnknownName(absl::string_view name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  Store& store_;
  CostMetrics& metrics_;
  const CostCatalogLimits limits_;
  absl::Mutex changing_
      ABSL_ACQUIRED_BEFORE(mutex_);  // one change at a time, store and all; before `mutex_`
  std::set<std::string> reported_ ABSL_GUARDED_BY(changing_);  // unreadable records
  std::optional<int64_t> seen_ ABSL_GUARDED_BY(changing_);     // the version of the store
  mutable absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bucketd
