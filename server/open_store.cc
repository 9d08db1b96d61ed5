#include "server/open_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/store/postgres/pg_connection.h"
#include "server/store/postgres/postgres_store.h"
#include "server/store/sqlite_store.h"

namespace bucketd {
namespace {

// In memory there are only the plans that jobs have pinned.
constexpr int64_t kMemoryBytes = int64_t{256} << 20;
constexpr std::chrono::seconds kMaintenance{60};
// Twice what the log holds when it is merged: all of that may have to go into the file first.
constexpr int64_t kReserveBytes = int64_t{8} << 20;

StoreOptions OptionsOf(const ServerOptions& options, const OpenedStore& opened) {
  StoreOptions store;
  store.max_bytes = options.store_bytes;
  store.max_age = options.store_max_age;
  store.audit = {options.audit_lines, options.audit_age};
  store.maintenance = kMaintenance;
  store.observer = opened.metrics.get();
  return store;
}

absl::Status OpenPostgres(const ServerOptions& options, OpenedStore& opened) {
  PostgresStoreOptions store{OptionsOf(options, opened)};
  store.url = options.store_dir;
  ASSIGN_OR_RETURN(std::unique_ptr<PostgresStore> made, PostgresStore::Open(std::move(store)));
  opened.place = made->place();
  opened.store = std::move(made);
  return absl::OkStatus();
}

absl::Status OpenSqlite(const ServerOptions& options, OpenedStore& opened) {
  const bool in_memory = options.store_dir.empty();
  SqliteStoreOptions store{OptionsOf(options, opened)};
  store.directory = options.store_dir;
  if (in_memory) store.max_bytes = std::min(store.max_bytes, kMemoryBytes);
  store.reserve_bytes = kReserveBytes;
  ASSIGN_OR_RETURN(opened.store, SqliteStore::Open(std::move(store)));
  opened.place = options.store_dir;
  return absl::OkStatus();
}

absl::Status AsOfFlag(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--store: ", status.message()));
}

}  // namespace

absl::Status CheckStoreAddress(const ServerOptions& options) {
  return IsDatabase(options.store_dir) ? AsOfFlag(PgTarget::Parse(options.store_dir).status())
                                       : absl::OkStatus();
}

absl::StatusOr<OpenedStore> OpenStore(const ServerOptions& options) {
  OpenedStore opened;
  opened.registry = std::make_unique<prometheus::Registry>();
  opened.metrics = std::make_unique<StoreMetrics>(*opened.registry);
  const bool in_database = IsDatabase(options.store_dir);
  const absl::Status made =
      in_database ? OpenPostgres(options, opened) : OpenSqlite(options, opened);
  if (!made.ok()) return AsOfFlag(made);
  return opened;
}

}  // namespace bucketd
