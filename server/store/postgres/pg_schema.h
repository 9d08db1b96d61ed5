// The tables in PostgreSQL, and which versions of them this program works with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/store/postgres/pg_pool.h"

namespace bucketd {

// The version of the tables that this program makes. pg_schema_newest.cc has it alone, so that
// tests can link a server of the next one.
struct PgSchema {
  int64_t version = 0;
  int64_t min_reader = 0;  // the earliest server that works with it
  // What it has that the version before did not have: statements that do nothing where it is there.
  // README.md says how a version is raised: what is new is added first (min_reader stays), what is
  // old is taken away a version later.
  std::vector<std::string> adds;
};
PgSchema NewestPgSchema();
inline constexpr int64_t kPgSchemaWithAudit = 2;

// Makes the tables if there are none, adds what the version before did not have, checks that they
// are ours, that this program works with their version (its own and the next), and that they can be
// written.
//   FAILED_PRECONDITION  another version's, another program's, a standby, transactions of another
//                        isolation; nothing was changed
//   UNAVAILABLE          the engine is away, or refuses; the text says what to do
absl::Status PreparePgSchema(PgPool& pool);

// Checks the same, but for writing, and makes nothing; a standby will do, and the version before.
// Which version it is.
//   NOT_FOUND  there are no tables
absl::StatusOr<int64_t> CheckPgSchema(PgPool& pool);

// Of bucketd_schema's version and min_reader, read with `place`: which version it is.
// FAILED_PRECONDITION: not one that this program works with.
inline constexpr char kPgVersionColumns[] = "version, min_reader";
absl::StatusOr<int64_t> CheckPgVersion(const std::string& place, const PgResult& row);

// What waits for all that calls of this kind wait for, locks of tables and a standby among it, but
// for other writers of the same rows, and changes nothing.
std::vector<PgStatement> PgProbe(PgKind kind);

}  // namespace bucketd
