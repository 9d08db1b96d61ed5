#include "server/store/bundle.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/digest.h"
#include "server/store/little_endian.h"

namespace bucketd {
namespace {

constexpr absl::string_view kMagic = "bucketd bundle 2\n";
constexpr absl::string_view kMagicWithoutHolds = "bucketd bundle 1\n";
constexpr absl::string_view kMagicOfAny = "bucketd bundle ";
constexpr int64_t kHeadBytes = 1 + 1 + 4 + 4 + 8;
constexpr int64_t kSumBytes = 32;
constexpr int64_t kMaxTenantBytes = 128;
constexpr int64_t kMaxKeyBytes = int64_t{64} << 20;
constexpr int64_t kTimeBytes = 8;  // of a hold, before the holder
constexpr uint8_t kEnd = 0;

int64_t TakeInt(absl::string_view bytes) { return static_cast<int64_t>(IntFrom(bytes)); }

void AppendSum(std::string& entry) {
  const Digest digest = Sha256(entry);
  absl::StrAppend(&entry, AsBytes(digest));
}

// A name that is on the disk before what it names would be an empty backup after a power cut.
bool Synced(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool synced = fsync(file) == 0;
  close(file);
  return synced;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BundleWriter>> BundleWriter::Open(const std::string& path) {
  std::ofstream file(path + ".part", std::ios::binary | std::ios::trunc);
  file.write(kMagic.data(), static_cast<std::streamsize>(kMagic.size()));
  if (!file) {
    return absl::UnavailableError(
        absl::StrCat(path, ".part: cannot be written: ", std::strerror(errno)));
  }
  return std::unique_ptr<BundleWriter>(new BundleWriter(path, std::move(file)));
}

BundleWriter::~BundleWriter() {
  if (!finished_) std::remove((path_ + ".part").c_str());
}

void BundleWriter::Add(const BundleEntry& entry) {
  std::string bytes, time;
  if (entry.kind == BundleKind::kHold) {
    AppendInt(static_cast<uint64_t>(MsOf(entry.expires)), kTimeBytes, time);
  }
  AppendInt(static_cast<uint64_t>(entry.kind), 1, bytes);
  AppendInt(static_cast<uint64_t>(entry.shelf), 1, bytes);
  AppendInt(entry.tenant.size(), 4, bytes);
  AppendInt(entry.key.size(), 4, bytes);
  AppendInt(time.size() + entry.value.size(), 8, bytes);
  absl::StrAppend(&bytes, entry.tenant, entry.key, time, entry.value);
  AppendSum(bytes);
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ++entries_;
}

absl::Status BundleWriter::Finish() {
  std::string bytes;
  AppendInt(kEnd, 1, bytes);
  bytes.append(1 + 4 + 4, '\0');
  AppendInt(static_cast<uint64_t>(entries_), 8, bytes);
  AppendSum(bytes);
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file_.close();
  const std::string part = path_ + ".part";
  if (!file_ || !Synced(part) || std::rename(part.c_str(), path_.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat(path_, ": cannot be written; is there room on the disk?"));
  }
  finished_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BundleReader>> BundleReader::Open(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  }
  const auto bytes = static_cast<int64_t>(file.tellg());
  file.seekg(0);
  auto reader = std::unique_ptr<BundleReader>(new BundleReader(path, std::move(file), bytes));
  std::string magic;
  const bool read = reader->Take(static_cast<int64_t>(kMagic.size()), magic);
  if (read && (magic == kMagic || magic == kMagicWithoutHolds)) return reader;
  if (absl::StartsWith(magic, kMagicOfAny)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a bundle of another version; this one reads 1 and 2"));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": is no bundle of bucketctl store export"));
}

bool BundleReader::Take(int64_t bytes, std::string& out) {
  if (bytes > left_) return false;
  const size_t before = out.size();
  out.resize(before + static_cast<size_t>(bytes));
  file_.read(out.data() + before, bytes);
  left_ -= bytes;
  return static_cast<bool>(file_);
}

absl::Status BundleReader::Malformed(absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": entry ", entries_, ", at byte ", at_, ": ", what));
}

absl::StatusOr<bool> BundleReader::Next(BundleEntry& entry) {
  at_ = static_cast<int64_t>(file_.tellg());
  std::string bytes;
  if (!Take(kHeadBytes, bytes)) return Malformed("the file ends here; it was cut short");
  const auto kind = static_cast<uint8_t>(bytes[0]);
  const int64_t shelf = TakeInt(absl::string_view(bytes).substr(1, 1));
  const int64_t tenant = TakeInt(absl::string_view(bytes).substr(2, 4));
  const int64_t key = TakeInt(absl::string_view(bytes).substr(6, 4));
  const int64_t value = TakeInt(absl::string_view(bytes).substr(10, 8));
  const bool sized = kind == kEnd || (tenant <= kMaxTenantBytes && key <= kMaxKeyBytes &&
                                      value >= 0 && value <= left_ - kSumBytes - tenant - key);
  if (kind > static_cast<uint8_t>(BundleKind::kHold)) {
    return Malformed("is neither a plan, a record nor a hold");
  }
  if (!sized) return Malformed("is larger than the file, or than a bundle allows");
  if (kind != kEnd) Take(tenant + key + value, bytes);
  const Digest sum = Sha256(bytes);
  std::string stored;
  if (!Take(kSumBytes, stored)) return Malformed("the file ends here; it was cut short");
  if (stored != AsBytes(sum)) return Malformed("does not match its checksum");
  if (kind == kEnd) {
    if (value != entries_) return Malformed("entries are missing before the end");
    if (left_ != 0) return Malformed("something follows the end");
    return false;
  }
  entry.kind = static_cast<BundleKind>(kind);
  const bool is_record = entry.kind == BundleKind::kRecord;
  const bool known_shelf =
      is_record ? std::count(kShelves.begin(), kShelves.end(), static_cast<Shelf>(shelf)) == 1
                : shelf == 0;
  if (!known_shelf) return Malformed("stands on a shelf that is not known");
  if (entry.kind == BundleKind::kHold && value < kTimeBytes) return Malformed("has no time");
  const auto at = static_cast<size_t>(kHeadBytes);
  const auto tenant_end = at + static_cast<size_t>(tenant);
  entry.shelf = static_cast<Shelf>(shelf);
  entry.tenant = bytes.substr(at, static_cast<size_t>(tenant));
  entry.key = bytes.substr(tenant_end, static_cast<size_t>(key));
  entry.value = bytes.substr(tenant_end + static_cast<size_t>(key));
  if (entry.kind == BundleKind::kHold) {
    entry.expires = WallAt(TakeInt(entry.value.substr(0, kTimeBytes)));
    entry.value.erase(0, kTimeBytes);
  }
  ++entries_;
  return true;
}

}  // namespace bucketd
