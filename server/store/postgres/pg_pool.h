// Connections to one database for many threads: made when they are needed, made anew when they
// break. While the engine is away calls fail at once, but for one that tries again now and then.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "server/store/postgres/pg_connection.h"

namespace bucketd {

class PgPool {
 public:
  struct Options {
    int connections = 4;
    std::chrono::milliseconds call_timeout{10'000};  // of a Run with all its attempts
  };
  PgPool(PgTarget target, Options options)
      : target_(std::move(target)), options_(std::move(options)) {}

  // One transaction, made again where the engine says that two got into each other's way or the
  // connection was lost: what it does twice must come to the same. Errors name the place; those of
  // the engine end with its SQLSTATE in brackets. UNAVAILABLE: also when whether it was committed,
  // or whether a synchronous standby has it, is unknown. ABORTED: by ExpectRowsSql.
  absl::StatusOr<std::vector<PgResult>> Run(absl::Span<const PgStatement> statements);

  const std::string& place() const { return target_.place; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  absl::StatusOr<std::unique_ptr<PgConnection>> Take(Time deadline);
  absl::StatusOr<std::unique_ptr<PgConnection>> Connect(Time deadline);
  void GiveBack(std::unique_ptr<PgConnection> connection);

  const PgTarget target_;
  const Options options_;
  absl::Mutex mutex_;
  absl::CondVar freed_;
  std::vector<std::unique_ptr<PgConnection>> idle_ ABSL_GUARDED_BY(mutex_);
  int out_ ABSL_GUARDED_BY(mutex_) = 0;  // taken and not given back
  absl::Status away_ ABSL_GUARDED_BY(mutex_);
  Time away_until_ ABSL_GUARDED_BY(mutex_);
  std::chrono::milliseconds backoff_ ABSL_GUARDED_BY(mutex_){0};
};

}  // namespace bucketd
