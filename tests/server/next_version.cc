// Linked into a server, which is then one of the next version: it adds to the tables what this
// version does not know, and its plans are others.
#include "passes/planner.h"
#include "server/store/postgres/pg_schema.h"

namespace bucketd {

const char kPlannerVersion[] = "the next one";

PgSchema NewestPgSchema() {
  return {.version = 3,
          .min_reader = 2,
          .adds = {"CREATE TABLE IF NOT EXISTS bucketd_next(plan BYTEA REFERENCES "
                   "bucketd_plan(hash) ON DELETE CASCADE, note TEXT, PRIMARY KEY(plan))",
                   "ALTER TABLE bucketd_plan ADD COLUMN IF NOT EXISTS next TEXT",
                   "ALTER TABLE bucketd_record ADD COLUMN IF NOT EXISTS next BIGINT NOT NULL "
                   "DEFAULT 7"}};
}

}  // namespace bucketd
