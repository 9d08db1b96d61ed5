// SQLite with Status: a connection, its statements, and what its error codes mean for a store.
#pragma once

#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace bucketd {

// Passed as a parameter that is text for SQLite; absl::string_view is a blob.
struct SqlText {
  absl::string_view text;
};
struct SqlOptional {  // text or NULL
  const std::optional<std::string>& text;
};

// A statement that runs: reset when it goes. Not thread-safe; only with its connection's lock.
class Statement {
 public:
  // `prepared`: what preparing it returned. Parameters in order; what they refer to must live until
  // the last step.
  template <typename... Args>
  Statement(sqlite3* db, sqlite3_stmt* stmt, int prepared, const Args&... args)
      : db_(db), stmt_(stmt), rc_(prepared) {
    (Bind(args), ...);
  }
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // True: there is a row. False: there is none left.
  absl::StatusOr<bool> Step();
  int64_t Int(int column) const;
  bool IsNull(int column) const;
  // Valid until the next step.
  absl::string_view Bytes(int column) const;

 private:
  void Bind(int64_t value);
  void Bind(absl::string_view blob);
  void Bind(SqlText text);
  void Bind(SqlOptional text);

  sqlite3* const db_;
  sqlite3_stmt* const stmt_;
  int rc_;
  int bound_ = 0;
};

// Errors of all calls: DATA_LOSS for damage, RESOURCE_EXHAUSTED for no space, INVALID_ARGUMENT for
// a value that is too big, UNAVAILABLE for all else.
class SqliteDb {
 public:
  enum class Mode { kReadWrite, kReadOnly, kImmutable, kCreate };
  // An empty path: a database in memory.
  static absl::StatusOr<std::unique_ptr<SqliteDb>> Open(const std::string& path, Mode mode,
                                                        std::chrono::milliseconds busy_timeout);
  ~SqliteDb();
  SqliteDb(const SqliteDb&) = delete;
  SqliteDb& operator=(const SqliteDb&) = delete;

  // Held by whoever uses the connection.
  absl::Mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }
  sqlite3* get() { return db_; }

  // Statements without results and parameters. With the lock, or before others know the connection.
  absl::Status Exec(const char* sql);
  // `sql` is a literal: its address is the name of the prepared statement.
  template <typename... Args>
  Statement Query(const char* sql, const Args&... args) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int rc = SQLITE_OK;
    sqlite3_stmt* stmt = Prepared(sql, rc);
    return Statement(db_, stmt, rc, args...);
  }
  template <typename... Args>
  absl::Status Run(const char* sql, const Args&... args) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Statement statement = Query(sql, args...);
    return statement.Step().status();
  }
  // Rows that the last statement changed.
  int64_t changes() const { return sqlite3_changes64(db_); }

 private:
  explicit SqliteDb(sqlite3* db) : db_(db) {}
  sqlite3_stmt* Prepared(const char* sql, int& rc) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  sqlite3* const db_;
  absl::Mutex mutex_;
  absl::flat_hash_map<const char*, sqlite3_stmt*> prepared_ ABSL_GUARDED_BY(mutex_);
};

absl::Status SqliteError(sqlite3* db, int rc);

// Of a value, of a line of the audit log: never given twice.
inline int64_t RandomId() {
  int64_t id = 0;
  sqlite3_randomness(sizeof(id), &id);
  return std::max<int64_t>(1, id & INT64_MAX);
}

}  // namespace bucketd
