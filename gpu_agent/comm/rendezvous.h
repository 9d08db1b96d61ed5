// How ranks of one host find each other: everyone publishes where it listens and looks its
// neighbour up.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bucketd::agent {

// Of one process group, by files of a folder that is this user's alone: `folder`/rank.<r>, 0600.
class FolderRendezvous {
 public:
  // Makes the folder (0700) if it is not there. Errors of CheckPrivateFolder.
  static absl::StatusOr<std::unique_ptr<FolderRendezvous>> Open(const std::string& folder);

  // Replaces what the rank published before. An endpoint has at most 512 bytes.
  absl::Status Publish(int rank, const std::string& endpoint);
  // NOT_FOUND as long as the rank has not published.
  absl::StatusOr<std::string> Lookup(int rank);

 private:
  explicit FolderRendezvous(std::string folder) : folder_(std::move(folder)) {}
  std::string PathOf(int rank) const;

  const std::string folder_;
};

// OK if it is a folder, no link, that belongs to this user and nobody else may enter; else
// PERMISSION_DENIED or NOT_FOUND with what it is.
absl::Status CheckPrivateFolder(const std::string& folder);

}  // namespace bucketd::agent
