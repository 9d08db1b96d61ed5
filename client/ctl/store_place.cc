#include "client/ctl/store_place.h"

#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/match.h"

#include "passes/base/status_macros.h"
#include "server/store/postgres/postgres_store.h"

namespace bucketd::ctl {
namespace {

constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();
constexpr std::chrono::hours kAnyAge{0};
// Nobody waits for an answer here, and a server that uses the store is done in moments.
constexpr std::chrono::minutes kPatience{1};

absl::StatusOr<OpenedPlace> OpenDatabase(const std::string& url, bool read_only) {
  PostgresStoreOptions options;
  options.url = url;
  options.max_bytes = kNoBound;
  options.max_age = kAnyAge;
  options.connections = 1;
  options.call_timeout = kPatience;
  options.read_only = read_only;
  ASSIGN_OR_RETURN(std::unique_ptr<PostgresStore> store, PostgresStore::Open(std::move(options)));
  OpenedPlace opened;
  opened.name = store->place();
  opened.store = std::move(store);
  return opened;
}

absl::StatusOr<OpenedPlace> OpenFolder(const std::string& directory, bool read_only) {
  SqliteStoreOptions options;
  options.directory = directory;
  options.busy_timeout = kPatience;
  options.read_only = read_only;
  if (!read_only) {
    options.max_bytes = kNoBound;
    options.max_age = kAnyAge;
    options.maintenance = std::chrono::minutes(1);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteStore> store, SqliteStore::Open(std::move(options)));
  OpenedPlace opened;
  opened.name = directory;
  opened.folder = store.get();
  opened.store = std::move(store);
  return opened;
}

absl::StatusOr<OpenedPlace> Open(const std::string& place, bool read_only) {
  return absl::StrContains(place, "://") ? OpenDatabase(place, read_only)
                                         : OpenFolder(place, read_only);
}

}  // namespace

absl::StatusOr<OpenedPlace> OpenForReading(const std::string& place) { return Open(place, true); }
absl::StatusOr<OpenedPlace> OpenForWriting(const std::string& place) { return Open(place, false); }

}  // namespace bucketd::ctl
