// How ranks find each other: everyone publishes where it listens and looks its neighbour up.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bucketd::agent {

// Of one process group. What it returns is not trusted: the handshake decides who a peer is.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Replaces what the rank published before.
  virtual absl::Status Publish(int rank, const std::string& endpoint) = 0;
  // NOT_FOUND as long as the rank has not published. May be out of date: whoever cannot connect
  // there looks up again.
  virtual absl::StatusOr<std::string> Lookup(int rank) = 0;
};

// Longest endpoint that is published or believed.
inline constexpr size_t kMaxEndpoint = 512;

// Ranks of one host, by files of a folder that is this user's alone: `folder`/rank.<r>, 0600.
class FolderRendezvous final : public Rendezvous {
 public:
  // Makes the folder (0700) if it is not there. Errors of CheckPrivateFolder.
  static absl::StatusOr<std::unique_ptr<FolderRendezvous>> Open(const std::string& folder);

  absl::Status Publish(int rank, const std::string& endpoint) override;
  absl::StatusOr<std::string> Lookup(int rank) override;

 private:
  explicit FolderRendezvous(std::string folder) : folder_(std::move(folder)) {}
  std::string PathOf(int rank) const;

  const std::string folder_;
};

// OK if it is a folder, no link, that belongs to this user and nobody else may enter; else
// PERMISSION_DENIED or NOT_FOUND with what it is.
absl::Status CheckPrivateFolder(const std::string& folder);

}  // namespace bucketd::agent
