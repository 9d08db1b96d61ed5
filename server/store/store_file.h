// The folder of a store: what is in it, how it is made, and what is refused.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/store/sqlite_db.h"

namespace bucketd {

// Of the database's header ("application_id", "user_version"). A change of the tables that an older
// program would get wrong is another format; a program reads its own format alone.
inline constexpr int32_t kStoreApplicationId = 0x62636b74;  // "bckt"
inline constexpr int32_t kStoreFormat = 1;

struct StorePaths {
  explicit StorePaths(const std::string& directory)
      : database(directory + "/store.db"),
        log(database + "-wal"),
        acknowledged(directory + "/acknowledged"),
        reserve(directory + "/reserve") {}
  std::string database, log, acknowledged, reserve;
};

// Makes the folder (0700) if it is absent.
//   FAILED_PRECONDITION  no folder, or one that everybody may write to: whoever does would decide
//                        which plans jobs run with
//   UNAVAILABLE          cannot be made
absl::Status MakeStoreFolder(const std::string& directory);

// Makes an empty store in a folder (0600), if there is none. Two processes may do so at once. A
// store appears whole or not at all. `page_size`: of a new store, a power of two from 512. Of one
// that is there nothing stays readable to everybody.
//   UNAVAILABLE          cannot be written; RESOURCE_EXHAUSTED: no space
absl::Status CreateStoreIfAbsent(const std::string& directory, int32_t page_size);

// Whether a store of our format is there, by its first page alone.
//   NOT_FOUND            nothing there
//   FAILED_PRECONDITION  another program's file, or a later version's store
//   DATA_LOSS            the first page is damaged
//   UNAVAILABLE          cannot be read
absl::Status CheckStoreFile(const std::string& database);

// A connection, with the settings that the store relies on. Also opens a folder that cannot be
// written, as long as nothing in the log waits to be merged. For "", the tables are made in memory.
absl::StatusOr<std::unique_ptr<SqliteDb>> OpenStoreDb(const std::string& directory, bool read_only,
                                                      std::chrono::milliseconds busy_timeout);

}  // namespace bucketd
