// The tables in PostgreSQL, and which versions of them this program works with.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/store/postgres/pg_pool.h"

namespace bucketd {

// Of the tables that this program makes. README.md says how it is raised: what is new is added
// first (min_reader stays), what is old is taken away a version later.
inline constexpr int64_t kPgSchema = 2;
inline constexpr int64_t kPgSchemaWithAudit = 2;

// Makes the tables if there are none, adds what the version before did not have, checks that they
// are ours, that this program works with their version (kPgSchema and the next), and that they can
// be written.
//   FAILED_PRECONDITION  another version's, another program's, a standby; nothing was changed
//   UNAVAILABLE          the engine is away, or refuses; the text says what to do
absl::Status PreparePgSchema(PgPool& pool);

// Checks the same, but for writing, and makes nothing; a standby will do, and the version before.
// Which version it is.
//   NOT_FOUND  there are no tables
absl::StatusOr<int64_t> CheckPgSchema(PgPool& pool);

}  // namespace bucketd
