// Plans and records in one file, to be carried to another store. The format is in README.md; a
// reader takes nothing on trust: every size is held against the file, every entry has a checksum,
// and a file that was cut short has no end entry.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "server/store/store.h"

namespace bucketd {

enum class BundleKind : uint8_t { kPlan = 1, kRecord = 2, kHold = 3 };

struct BundleEntry {
  BundleKind kind = BundleKind::kPlan;
  Shelf shelf{};       // of records
  std::string tenant;  // of plans
  std::string key;     // of holds: that of the plan, which stands before it
  std::string value;   // of holds: the holder
  WallTime expires{};  // of holds
};

// Not thread-safe. The file appears with Finish(), whole; until then it is PATH.part, removed if
// the writer goes before.
class BundleWriter {
 public:
  // UNAVAILABLE: cannot be written.
  static absl::StatusOr<std::unique_ptr<BundleWriter>> Open(const std::string& path);
  ~BundleWriter();
  BundleWriter(const BundleWriter&) = delete;
  BundleWriter& operator=(const BundleWriter&) = delete;

  void Add(const BundleEntry& entry);
  // UNAVAILABLE: this or an earlier write failed.
  absl::Status Finish();

 private:
  BundleWriter(std::string path, std::ofstream file)
      : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  std::ofstream file_;
  int64_t entries_ = 0;
  bool finished_ = false;
};

// Not thread-safe. Holds one entry at a time.
class BundleReader {
 public:
  // NOT_FOUND: no such file. INVALID_ARGUMENT: no bundle, or a later version's.
  static absl::StatusOr<std::unique_ptr<BundleReader>> Open(const std::string& path);

  // False at the end. INVALID_ARGUMENT names the entry, where it stands, and what is wrong.
  absl::StatusOr<bool> Next(BundleEntry& entry);

 private:
  BundleReader(std::string path, std::ifstream file, int64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), left_(bytes) {}
  bool Take(int64_t bytes, std::string& out);
  absl::Status Malformed(absl::string_view what) const;

  const std::string path_;
  std::ifstream file_;
  int64_t left_;
  int64_t at_ = 0;       // where the entry begins
  int64_t entries_ = 0;  // before it
};

}  // namespace bucketd
