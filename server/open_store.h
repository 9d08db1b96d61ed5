// The store of a server, with what counts it. The one place that knows which engine it is: another
// engine is a Store of its own and a branch in open_store.cc.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/registry.h"

#include "server/config/options.h"
#include "server/store/store.h"
#include "server/store/store_metrics.h"

namespace bucketd {

struct OpenedStore {  // each outlives the next
  std::string place;  // for people, without a password; "": in memory
  std::unique_ptr<prometheus::Registry> registry;
  std::unique_ptr<StoreMetrics> metrics;
  std::unique_ptr<Store> store;
};

// As the options say; errors name the flag. A store that cannot be opened is no store to go on
// without: jobs would get other plans than those that are pinned in it.
absl::StatusOr<OpenedStore> OpenStore(const ServerOptions& options);
// What is wrong with the address alone, whatever is there.
absl::Status CheckStoreAddress(const ServerOptions& options);

}  // namespace bucketd
