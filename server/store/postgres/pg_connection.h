// One connection to PostgreSQL: statements with parameters, each batch one trip and one
// transaction, each with a deadline of our own. statement_timeout would not do: it does not end a
// commit's wait for a synchronous standby, and a pooler between keeps no settings of a session.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include <libpq-fe.h>

namespace bucketd {

using PgDeadline = std::chrono::steady_clock::time_point;

// Where the database is. What it says for people has no password in it.
struct PgTarget {
  std::vector<std::pair<std::string, std::string>> options;  // of libpq, the password among them
  std::string place;                                         // postgres://user@host:port/database
  std::chrono::milliseconds connect_timeout{5000};           // connect_timeout=, in seconds

  // postgres://user@host:port/database?option=value, or postgresql://; options are libpq's.
  // INVALID_ARGUMENT says what was expected, and never repeats `url`.
  static absl::StatusOr<PgTarget> Parse(absl::string_view url);
  // For whoever writes: of several hosts those that take no writes are passed over, and where none
  // does connecting fails. A target_session_attrs= of the URL, or PGTARGETSESSIONATTRS, stays.
  void WantWrites();
};

// A statement with its parameters, $1 first.
class PgStatement {
 public:
  explicit PgStatement(std::string sql) : sql_(std::move(sql)) {}
  PgStatement&& Bytes(std::optional<absl::string_view> value) &&;
  PgStatement&& Text(const std::optional<std::string>& value) &&;
  PgStatement&& Int(std::optional<int64_t> value) &&;

  const std::string& sql() const { return sql_; }
  int parameters() const { return static_cast<int>(values_.size()); }
  // The same parameters, and what is yet to be added.
  void Say(std::string sql) { sql_ = std::move(sql); }

 private:
  friend class PgConnection;
  void Add(std::optional<std::string> value, Oid type);

  std::string sql_;
  std::vector<std::optional<std::string>> values_;
  std::vector<Oid> types_;
};

// Fails, with everything before it in its batch, unless `from` has `rows` rows; what it says then
// stands in the engine's log.
std::string ExpectRowsSql(absl::string_view from, int64_t rows);

class PgResult {
 public:
  explicit PgResult(PGresult* result) : result_(result, PQclear) {}
  int rows() const { return PQntuples(result_.get()); }
  bool IsNull(int row, int column) const { return PQgetisnull(result_.get(), row, column) != 0; }
  // bytea or text; valid as long as this.
  absl::string_view Bytes(int row, int column) const;
  int64_t Int(int row, int column) const;  // of bigint alone
  // Rows that the statement inserted, changed or deleted.
  int64_t affected() const;

 private:
  friend class PgConnection;
  std::unique_ptr<PGresult, decltype(&PQclear)> result_;
};

// Not thread-safe.
class PgConnection {
 public:
  // Since when whoever waits is in a hurry: a second more, or a second in all for what begins
  // later, and five seconds for all of it. max(): nobody is.
  using Hurried = std::atomic<PgDeadline>;
  // Of several hosts one after the other, each with its part of the time. UNAVAILABLE: nobody
  // answers there, or who does says no. `hurried` outlives the connection; null: never.
  // A host's name is looked up by the system, in the time that this takes (resolv.conf): libpq
  // knows no other way, and getaddrinfo cannot be left. hostaddr= beside host= needs no look-up.
  static absl::StatusOr<std::unique_ptr<PgConnection>> Connect(const PgTarget& target,
                                                               PgDeadline deadline,
                                                               const Hurried* hurried = nullptr);
  PgConnection(const PgConnection&) = delete;
  PgConnection& operator=(const PgConnection&) = delete;

  // All of them or none, in one trip. Where it fails and broken(), whether they were committed is
  // unknown; where it fails and unconfirmed(), they were committed here and perhaps by no standby.
  // RESOURCE_EXHAUSTED: no space; ABORTED: by ExpectRowsSql; DEADLINE_EXCEEDED;
  // UNAVAILABLE for all else.
  absl::StatusOr<std::vector<PgResult>> Run(absl::Span<const PgStatement> statements,
                                            PgDeadline deadline);
  // Has the engine end what this one still waits for, if `other` has reached the same host: that
  // blocks where nobody listens there any more.
  void CancelIfBeside(const PgConnection& other);
  // No further use.
  bool broken() const { return broken_; }
  // Of the last Run: five characters, "" where the engine said nothing.
  const std::string& sqlstate() const { return sqlstate_; }
  // Of the last Run: somebody has ended the commit's wait for a synchronous standby.
  bool unconfirmed() const { return unconfirmed_; }

 private:
  static absl::StatusOr<std::unique_ptr<PgConnection>> ConnectTo(const PgTarget& target,
                                                                 PgDeadline deadline,
                                                                 const Hurried* hurried);
  PgConnection(PGconn* connection, const Hurried* hurried)
      : connection_(connection, PQfinish), hurried_(hurried) {}
  absl::Status Finish(const PgTarget& target, PgDeadline deadline);
  absl::Status Send(absl::Span<const PgStatement> statements, PgDeadline deadline);
  PgDeadline Latest() const;
  absl::Status Await(short events, PgDeadline deadline);
  absl::StatusOr<PGresult*> Next(PgDeadline deadline);
  absl::Status Break(absl::Status why);
  absl::Status ErrorOf(const PGresult* result);
  static void Notice(void* self, const PGresult* notice);

  std::unique_ptr<PGconn, decltype(&PQfinish)> connection_;
  const Hurried* const hurried_;
  PgDeadline began_ = std::chrono::steady_clock::now();  // what it is at now
  std::string sqlstate_;
  bool unconfirmed_ = false;
  bool broken_ = false;
};

}  // namespace bucketd
