#include "server/store/postgres/pg_pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "passes/base/status_macros.h"
#include "server/store/postgres/pg_schema.h"

namespace bucketd {
namespace {

constexpr int kAttempts = 5;
constexpr std::chrono::milliseconds kFirstPause{50}, kLongestPause{2000};
constexpr std::chrono::milliseconds kConflictPause{5};
// What is there already is not written again, and a transaction that writes nothing waits for no
// standby. The lock of a row is written.
constexpr char kWriteSomething[] = "SELECT 1 FROM bucketd_schema WHERE id = 1 FOR UPDATE";

bool IsConflict(const std::string& sqlstate) { return sqlstate == "40001" || sqlstate == "40P01"; }

size_t Index(PgKind kind) { return static_cast<size_t>(kind); }

}  // namespace

PgPool::~PgPool() {
  {
    const absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  silent_now_.SignalAll();
  Hurry();
}

void PgPool::Hurry() {
  Time never = Time::max();
  hurried_.compare_exchange_strong(never, std::chrono::steady_clock::now());
}

absl::StatusOr<std::vector<PgResult>> PgPool::Run(PgKind kind,
                                                  absl::Span<const PgStatement> statements) {
  const Time deadline = std::chrono::steady_clock::now() + options_.call_timeout;
  absl::Status failed;
  std::vector<PgStatement> waiting;  // the same, and what has to wait for the standby
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    ASSIGN_OR_RETURN(std::unique_ptr<PgConnection> connection, Take(kind, deadline));
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
    if (absl::IsDeadlineExceeded(results.status())) {
      NoteSilence(kind, failed);
      break;
    }
    if (!(lost || conflict || unconfirmed)) break;
    if (conflict) std::this_thread::sleep_for(attempt * kConflictPause);
  }
  return failed;
}

absl::StatusOr<std::unique_ptr<PgConnection>> PgPool::Take(PgKind kind, Time deadline) {
  {
    const absl::MutexLock lock(&mutex_);
    while (true) {
      RETURN_IF_ERROR(silent_[Index(kind)]);
      if (!idle_.empty() || out_ < options_.connections) break;
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
  absl::StatusOr<std::unique_ptr<PgConnection>> made =
      PgConnection::Connect(target_, deadline, &hurried_);
  if (made.ok()) return made;
  GiveBack(nullptr);
  NoteSilence(PgKind::kRead, made.status());
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

void PgPool::NoteSilence(PgKind kind, const absl::Status& why) {
  const absl::MutexLock lock(&mutex_);
  if (options_.writes) silent_[Index(PgKind::kWrite)] = why;
  // Where reads are not answered, nothing is.
  if (kind == PgKind::kRead) silent_[Index(kind)] = why;
  if (!prober_.joinable()) prober_ = std::jthread([this] { ProbeForEver(); });
  silent_now_.Signal();
  freed_.SignalAll();
}

void PgPool::ProbeForEver() {
  std::unique_ptr<PgConnection> late;
  std::chrono::milliseconds pause = kFirstPause;
  while (const std::optional<PgKind> kind = NextProbe(pause)) {
    const absl::StatusOr<bool> works = Probe(*kind, late);
    pause = works.ok() ? kFirstPause : std::min(2 * pause, kLongestPause);
    {
      const absl::MutexLock lock(&mutex_);
      silent_[Index(*kind)] = works.status();
    }
    const bool writes = works.ok() && *works && *kind == PgKind::kWrite;
    if (writes && options_.writes_again) options_.writes_again();
  }
}

std::optional<PgKind> PgPool::NextProbe(std::chrono::milliseconds pause) {
  const absl::MutexLock lock(&mutex_);
  const auto silent = [this](PgKind kind)
                          ABSL_NO_THREAD_SAFETY_ANALYSIS { return !silent_[Index(kind)].ok(); };
  while (!ended_ && !silent(PgKind::kRead) && !silent(PgKind::kWrite)) silent_now_.Wait(&mutex_);
  const Time until = std::chrono::steady_clock::now() + pause;
  while (!ended_) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) return silent(PgKind::kRead) ? PgKind::kRead : PgKind::kWrite;
    silent_now_.WaitWithTimeout(&mutex_, absl::FromChrono(left));
  }
  return std::nullopt;
}

absl::StatusOr<bool> PgPool::Probe(PgKind kind, std::unique_ptr<PgConnection>& late) {
  const Time deadline = std::chrono::steady_clock::now() + options_.call_timeout;
  ASSIGN_OR_RETURN(std::unique_ptr<PgConnection> connection,
                   TakeForProbe(/*anew=*/late != nullptr, deadline));
  // Else each probe would leave a session behind that waits, until the engine takes no more.
  if (late != nullptr) late->CancelIfBeside(*connection);
  late = nullptr;
  const absl::Status status = connection->Run(PgProbe(kind), deadline).status();
  const bool answered = status.ok() || (!connection->broken() && !connection->sqlstate().empty());
  if (absl::IsDeadlineExceeded(status)) late = std::move(connection);
  GiveBack(std::move(connection));
  if (answered) return status.ok();
  return absl::UnavailableError(absl::StrCat(target_.place, ": ", status.message()));
}

// Beyond the number of connections, so that it does not wait for those that wait.
absl::StatusOr<std::unique_ptr<PgConnection>> PgPool::TakeForProbe(bool anew, Time deadline) {
  std::unique_ptr<PgConnection> connection;
  if (!anew) {
    const absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (connection == nullptr) {
    ASSIGN_OR_RETURN(connection, PgConnection::Connect(target_, deadline, &hurried_));
  }
  const absl::MutexLock lock(&mutex_);
  ++out_;
  return connection;
}

}  // namespace bucketd
