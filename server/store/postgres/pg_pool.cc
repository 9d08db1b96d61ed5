#include "server/store/postgres/pg_pool.h"

#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

constexpr int kAttempts = 5;
constexpr std::chrono::milliseconds kFirstBackoff{50}, kLongestBackoff{2000};
constexpr std::chrono::milliseconds kConflictPause{5};
// What is there already is not written again, and a transaction that writes nothing waits for no
// standby. The lock of a row is written.
constexpr char kWriteSomething[] = "SELECT 1 FROM bucketd_schema WHERE id = 1 FOR UPDATE";

bool IsConflict(const std::string& sqlstate) { return sqlstate == "40001" || sqlstate == "40P01"; }

}  // namespace

absl::StatusOr<std::vector<PgResult>> PgPool::Run(absl::Span<const PgStatement> statements) {
  const Time deadline = std::chrono::steady_clock::now() + options_.call_timeout;
  absl::Status failed;
  std::vector<PgStatement> waiting;  // the same, and what has to wait for the standby
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    ASSIGN_OR_RETURN(std::unique_ptr<PgConnection> connection, Take(deadline));
    absl::StatusOr<std::vector<PgResult>> results =
        connection->Run(waiting.empty() ? statements : absl::MakeConstSpan(waiting), deadline);
    if (results.ok() && !waiting.empty()) results->pop_back();
    const bool unconfirmed = connection->unconfirmed();
    if (unconfirmed && waiting.empty()) {
      waiting.assign(statements.begin(), statements.end());
      waiting.emplace_back(kWriteSomething);
    }
    const bool lost = connection->broken(), conflict = IsConflict(connection->sqlstate());
    GiveBack(std::move(connection));
    if (results.ok()) return results;
    if (absl::IsAborted(results.status())) return results;
    failed = absl::Status(absl::IsResourceExhausted(results.status())
                              ? absl::StatusCode::kResourceExhausted
                              : absl::StatusCode::kUnavailable,
                          absl::StrCat(target_.place, ": ", results.status().message()));
    if (!(lost || conflict || unconfirmed) || absl::IsDeadlineExceeded(results.status())) break;
    if (conflict) std::this_thread::sleep_for(attempt * kConflictPause);
  }
  return failed;
}

absl::StatusOr<std::unique_ptr<PgConnection>> PgPool::Take(Time deadline) {
  {
    const absl::MutexLock lock(&mutex_);
    while (idle_.empty() && out_ >= options_.connections) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left.count() <= 0) {
        return absl::UnavailableError(absl::StrCat(target_.place, ": all connections are in use"));
      }
      freed_.WaitWithTimeout(&mutex_, absl::FromChrono(left));
    }
    ++out_;
    if (!idle_.empty()) {
      std::unique_ptr<PgConnection> connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  absl::StatusOr<std::unique_ptr<PgConnection>> made = Connect(deadline);
  if (!made.ok()) GiveBack(nullptr);
  return made;
}

absl::StatusOr<std::unique_ptr<PgConnection>> PgPool::Connect(Time deadline) {
  {
    const absl::MutexLock lock(&mutex_);
    const Time now = std::chrono::steady_clock::now();
    if (now < away_until_) return away_;
    backoff_ = std::clamp(2 * backoff_, kFirstBackoff, kLongestBackoff);
    // Others fail meanwhile, instead of waiting for what this one finds out.
    if (!away_.ok()) away_until_ = std::min(deadline, now + target_.connect_timeout);
  }
  absl::StatusOr<std::unique_ptr<PgConnection>> made = PgConnection::Connect(target_, deadline);
  const absl::MutexLock lock(&mutex_);
  away_ = made.status();
  away_until_ = made.ok() ? Time() : std::chrono::steady_clock::now() + backoff_;
  if (made.ok()) backoff_ = std::chrono::milliseconds(0);
  return made;
}

void PgPool::GiveBack(std::unique_ptr<PgConnection> connection) {
  std::vector<std::unique_ptr<PgConnection>> stale;  // closed without the lock
  const absl::MutexLock lock(&mutex_);
  --out_;
  // What one has lost, the others that were idle have, too.
  if (connection != nullptr && connection->broken()) stale.swap(idle_);
  if (connection != nullptr && !connection->broken()) idle_.push_back(std::move(connection));
  freed_.Signal();
}

}  // namespace bucketd
