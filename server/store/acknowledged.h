// Remembers, beside the database, what it has promised. SQLite ends the recovery of its log at the
// first frame that is not whole: damage there looks like commits that never happened. After each
// commit its number and key are added to this file; a database that is behind it has lost commits
// that were acknowledged, and the file says which keys they were about.
//
// Written without fsync: it lives through the death of the process; after a power cut it may know
// less than the database does, never more. Whoever checkpoints the log empties it, so that it is as
// short as the log. The file: a header (magic, number of the last commit before the first entry),
// then entries (size of the key, what, commit, key); integers little-endian, each part followed by
// the first 8 bytes of its SHA-256.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace bucketd {

class Acknowledged {
 public:
  struct Entry {
    uint8_t what = 0;  // 0: a plan, by the digest of its key; else a Shelf
    int64_t commit = 0;
    std::string key;
  };
  struct Content {
    int64_t last_commit = 0;  // 0: the file is not there, or its header is damaged
    int64_t merged = 0;       // entries are of later commits than this
    std::vector<Entry> entries;
  };

  // Reads as far as the file is whole; an absent one is empty. UNAVAILABLE: it cannot be read.
  static absl::StatusOr<Content> Read(const std::string& path);

  // Opens for adding, made if absent. UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Acknowledged>> Open(const std::string& path);
  ~Acknowledged();
  Acknowledged(const Acknowledged&) = delete;
  Acknowledged& operator=(const Acknowledged&) = delete;

  // Best effort: what cannot be added is not noticed if it is lost. Thread-safe.
  void Add(uint8_t what, int64_t commit, absl::string_view key);
  // The database file itself holds everything up to `commit`: later entries alone stay.
  // Thread-safe.
  void Reset(int64_t commit);

 private:
  Acknowledged(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  void Append(absl::string_view bytes) const;

  const std::string path_;
  const int fd_;
  absl::Mutex mutex_;
};

}  // namespace bucketd
