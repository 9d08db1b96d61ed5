#include "server/open_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "server/store/sqlite_store.h"

namespace bucketd {
namespace {

// In memory there are only the plans that jobs have pinned.
constexpr int64_t kMemoryBytes = int64_t{256} << 20;
constexpr std::chrono::seconds kMaintenance{60};
// Twice what the log holds when it is merged: all of that may have to go into the file first.
constexpr int64_t kReserveBytes = int64_t{8} << 20;

}  // namespace

absl::StatusOr<OpenedStore> OpenStore(const ServerOptions& options) {
  OpenedStore opened;
  opened.registry = std::make_unique<prometheus::Registry>();
  opened.metrics = std::make_unique<StoreMetrics>(*opened.registry);
  const bool in_memory = options.store_dir.empty();
  SqliteStoreOptions store;
  store.directory = options.store_dir;
  store.max_bytes = in_memory ? std::min(options.store_bytes, kMemoryBytes) : options.store_bytes;
  store.max_age = std::chrono::duration_cast<std::chrono::hours>(options.store_max_age);
  store.maintenance = kMaintenance;
  store.reserve_bytes = kReserveBytes;
  store.observer = opened.metrics.get();
  absl::StatusOr<std::unique_ptr<SqliteStore>> made = SqliteStore::Open(std::move(store));
  if (made.ok()) {
    opened.store = *std::move(made);
    return opened;
  }
  return absl::Status(made.status().code(), absl::StrCat("--store-dir: ", made.status().message()));
}

}  // namespace bucketd
