// Connections to one database for many threads: made when they are needed, made anew when they
// break. Where the engine did not answer one call the others fail at once, until a thread of the
// pool, which asks it again and again, has got an answer.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "server/store/postgres/pg_connection.h"

namespace bucketd {

// Reads may be answered where no write is: while a commit waits for its standby.
enum class PgKind { kRead, kWrite };

class PgPool {
 public:
  struct Options {
    int connections = 4;
    std::chrono::milliseconds call_timeout{10'000};  // of a Run with all its attempts
    bool writes = true;                       // false: nobody writes, and neither does the pool
    std::function<void()> writes_again = {};  // called, on another thread, when writes did not work
  };
  PgPool(PgTarget target, Options options)
      : target_(std::move(target)), options_(std::move(options)) {}
  ~PgPool();
  PgPool(const PgPool&) = delete;
  PgPool& operator=(const PgPool&) = delete;

  // One transaction, made again where the engine says that two got into each other's way or the
  // connection was lost: what it does twice must come to the same. Errors name the place; those of
  // the engine end with its SQLSTATE in brackets. UNAVAILABLE: also when whether it was committed,
  // or whether a synchronous standby has it, is unknown. ABORTED: by ExpectRowsSql.
  absl::StatusOr<std::vector<PgResult>> Run(PgKind kind, absl::Span<const PgStatement> statements);

  // Store::Hurry.
  void Hurry();

  const std::string& place() const { return target_.place; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  absl::StatusOr<std::unique_ptr<PgConnection>> Take(PgKind kind, Time deadline);
  void GiveBack(std::unique_ptr<PgConnection> connection);
  // The engine has not answered a call of this kind.
  void NoteSilence(PgKind kind, const absl::Status& why);
  void ProbeForEver();
  // Waits until there is something to probe, and for `pause`. None: the pool ends.
  std::optional<PgKind> NextProbe(std::chrono::milliseconds pause);
  // False: it answers with an error. `late`: the probe before, where that got no answer.
  absl::StatusOr<bool> Probe(PgKind kind, std::unique_ptr<PgConnection>& late);
  absl::StatusOr<std::unique_ptr<PgConnection>> TakeForProbe(bool anew, Time deadline);

  const PgTarget target_;
  const Options options_;
  PgConnection::Hurried hurried_{Time::max()};
  absl::Mutex mutex_;
  absl::CondVar freed_, silent_now_;
  std::vector<std::unique_ptr<PgConnection>> idle_ ABSL_GUARDED_BY(mutex_);
  int out_ ABSL_GUARDED_BY(mutex_) = 0;  // taken and not given back
  // By kind: what calls fail with; OK: they are made.
  std::array<absl::Status, 2> silent_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread prober_;  // since something was first not answered; last: it uses the rest
};

}  // namespace bucketd
