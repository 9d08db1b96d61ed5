// The statements that plans and records share, each over its own tables. Parameters: ?1 the shelf
// (0 for plans), ?2 the key of the index (for plans the digest of the key).
#pragma once

#include <sqlite3.h>

#include <algorithm>

#include "server/store/sqlite_store.h"

namespace bucketd {

struct SqliteStore::Sql {
  const char* read;        // checksum, key, value, used; of records 0 for used
  const char* locate;      // value, bytes
  const char* read_value;  // ?1 value: all of it
  const char* put_value;   // ?1 value, ?2 key, ?3 bytes
  const char* drop_value;  // ?1 value
  const char* list;  // ?1 shelf, ?2 first key, ?3 limit: key of the index, tenant, graph, bytes
};

// What a reader of the index is told: damage there is no damaged value.
absl::Status IndexError(const absl::Status& status);

// Of a value, of a line of the audit log: never given twice.
inline int64_t RandomId() {
  int64_t id = 0;
  sqlite3_randomness(sizeof(id), &id);
  return std::max<int64_t>(1, id & INT64_MAX);
}

}  // namespace bucketd
