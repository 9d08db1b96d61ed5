// A token that shows a server who calls, kept in a file that somebody else keeps fresh.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace bucketd::client {

// Thread-safe.
class TokenFile {
 public:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}

  // What the file holds now, without white space around it: it is read again once it has changed.
  // NOT_FOUND, UNAVAILABLE or INVALID_ARGUMENT names the file, and never what stands in it.
  absl::StatusOr<std::string> Get();

 private:
  const std::string path_;
  absl::Mutex mutex_;
  std::string signature_ ABSL_GUARDED_BY(mutex_);  // of the file that `token_` was read from
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd::client
