// Where a store is, as bucketctl's users write it: a folder, or the URL of a database.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "server/store/sqlite_store.h"
#include "server/store/store.h"

namespace bucketd::ctl {

struct OpenedPlace {
  std::string name;  // for people, without a password
  std::unique_ptr<Store> store;
  SqliteStore* folder = nullptr;  // `store`, where it is one
};

// For reading alone: changes nothing, makes nothing. NOT_FOUND: there is no store.
absl::StatusOr<OpenedPlace> OpenForReading(const std::string& place);
// Makes what is not there. Takes whatever is put in it: a server that opens it has bounds.
absl::StatusOr<OpenedPlace> OpenForWriting(const std::string& place);

}  // namespace bucketd::ctl
