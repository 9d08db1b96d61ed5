// What was read from files, and is read again when they change: the last that was right stays in
// force. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/registry.h"
#include "spdlog/spdlog.h"

#include "passes/base/status_macros.h"
#include "server/base/add_metric.h"
#include "server/identity/small_file.h"

namespace bucketd {

struct ReloadCounters {
  // `registry` outlives this.
  ReloadCounters(prometheus::Registry& registry, const char* name, const char* help,
                 prometheus::Labels labels = {})
      : taken(Add(registry, name, help, labels, "taken")),
        refused(Add(registry, name, help, labels, "refused")) {}

  prometheus::Counter& taken;
  prometheus::Counter& refused;

 private:
  static prometheus::Counter& Add(prometheus::Registry& registry, const char* name,
                                  const char* help, prometheus::Labels& labels,
                                  const char* result) {
    labels["result"] = result;
    return AddCounter(registry, name, help, labels);
  }
};

template <typename T>
class Reloaded {
 public:
  using Read = std::function<absl::StatusOr<T>()>;
  using FilesOf = std::function<std::vector<std::string>(const T&)>;

  // `what` begins a line of the log: "identities". The counters outlive this. `others` are the
  // files that a value names and was made of, beside `paths`.
  Reloaded(std::string what, std::vector<std::string> paths, Read read, ReloadCounters counters,
           FilesOf others = nullptr)
      : what_(std::move(what)),
        paths_(std::move(paths)),
        read_(std::move(read)),
        others_(std::move(others)),
        counters_(counters) {}

  // Once, before the others. An error is the caller's to tell.
  absl::Status Load() {
    const absl::MutexLock looking(&looking_);
    ASSIGN_OR_RETURN(T value, ReadWhole());
    Take(std::move(value));
    return absl::OkStatus();
  }

  // Reads again if a file has changed, or did not make sense when it was last read: the half of a
  // replacement. A refusal is logged once.
  void Look() {
    const absl::MutexLock looking(&looking_);
    const std::string signature = Signature();
    if (signature == signature_ && refusal_.empty()) return;
    const bool changed = signature != signature_;
    absl::StatusOr<T> value = ReadWhole();
    if (value.ok()) {
      Take(*std::move(value));
      refusal_.clear();
      counters_.taken.Increment();
      spdlog::info("{}: read again, in force from now on", what_);
    } else if (changed || refusal_ != value.status().message()) {
      refusal_ = std::string(value.status().message());
      counters_.refused.Increment();
      spdlog::warn("{}: not taken, what was read before stays in force: {}", what_, refusal_);
    }
  }

  // Waits for no file.
  std::shared_ptr<const T> Get() const {
    const absl::MutexLock lock(&mutex_);
    return value_;
  }

 private:
  void Take(T value) {
    auto taken = std::make_shared<const T>(std::move(value));
    const absl::MutexLock lock(&mutex_);
    value_.swap(taken);  // the one before may die without the lock
  }

  std::string Signature() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(looking_) {
    std::vector<std::string> paths = paths_;
    paths.insert(paths.end(), other_paths_.begin(), other_paths_.end());
    return SignatureOf(paths);
  }

  // The signature is taken before what it is of is read, so that no replacement is missed. Which
  // files a value is made of is known once it was read, and then it is read again.
  absl::StatusOr<T> ReadWhole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(looking_) {
    while (true) {
      signature_ = Signature();
      absl::StatusOr<T> value = read_();
      if (!value.ok() || others_ == nullptr) return value;
      std::vector<std::string> paths = others_(*value);
      if (paths == other_paths_) return value;
      other_paths_ = std::move(paths);
    }
  }

  const std::string what_;
  const std::vector<std::string> paths_;
  const Read read_;
  const FilesOf others_;
  const ReloadCounters counters_;
  // Held while files are read, which may lie on a disk that does not answer.
  absl::Mutex looking_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::string signature_ ABSL_GUARDED_BY(looking_);
  std::string refusal_ ABSL_GUARDED_BY(looking_);  // of the files as they are; "": none
  std::vector<std::string> other_paths_ ABSL_GUARDED_BY(looking_);
  mutable absl::Mutex mutex_;
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
