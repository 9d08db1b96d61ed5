#include "server/store/checksum_vfs.h"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "passes/base/digest.h"

namespace bucketd {
namespace {

// Where a database's header says how large its pages are and how much of them is reserved.
constexpr int kPageSizeAt = 16;
constexpr int kReservedAt = 20;
constexpr int kHeaderBytes = 100;
// Another process may be writing the page: SQLite reads the header without a lock.
constexpr int kReadAttempts = 3;

Digest PageDigest(absl::string_view page, uint32_t number) {
  const std::array<char, 4> prefix = {static_cast<char>(number >> 24),
                                      static_cast<char>(number >> 16),
                                      static_cast<char>(number >> 8), static_cast<char>(number)};
  Sha256Stream stream;
  stream.Append(absl::string_view(prefix.data(), prefix.size()));
  stream.Append(page.substr(0, page.size() - kChecksumBytes));
  return stream.Finish();
}

// SQLite's object for an open file; the object of the layer below follows in the same memory.
struct File {
  sqlite3_file base;
  int page_size;  // 0: not known yet, since the file is empty
};

sqlite3_file* Below(sqlite3_file* file) {
  return reinterpret_cast<sqlite3_file*>(reinterpret_cast<File*>(file) + 1);
}
const sqlite3_io_methods& MethodsBelow(sqlite3_file* file) { return *Below(file)->pMethods; }

int PageSizeIn(const unsigned char* header) {
  const int size = header[kPageSizeAt] << 8 | header[kPageSizeAt + 1];
  if (size == 1) return 65536;
  const bool power_of_two = size >= 512 && (size & (size - 1)) == 0;
  return power_of_two ? size : 0;
}

int PageSizeOf(sqlite3_file* file) {
  File& self = *reinterpret_cast<File*>(file);
  if (self.page_size == 0) {
    std::array<unsigned char, kHeaderBytes> header{};
    if (MethodsBelow(file).xRead(Below(file), header.data(), kHeaderBytes, 0) == SQLITE_OK) {
      self.page_size = PageSizeIn(header.data());
    }
  }
  return self.page_size;
}

int ReadPage(sqlite3_file* file, char* page, int size, sqlite3_int64 number) {
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    const int rc = MethodsBelow(file).xRead(Below(file), page, size, (number - 1) * size);
    if (rc != SQLITE_OK) return rc;  // also at the end of the file: SQLite knows what to do
    if (PageIsWhole(absl::string_view(page, static_cast<size_t>(size)),
                    static_cast<uint32_t>(number))) {
      return SQLITE_OK;
    }
  }
  return SQLITE_CORRUPT;
}

int Read(sqlite3_file* file, void* out, int amount, sqlite3_int64 offset) {
  sqlite3_int64 end = 0;
  const int rc = MethodsBelow(file).xFileSize(Below(file), &end);
  if (rc != SQLITE_OK) return rc;
  if (offset + amount > end) return MethodsBelow(file).xRead(Below(file), out, amount, offset);
  const int size = PageSizeOf(file);
  if (size == 0) return SQLITE_CORRUPT;
  if (amount == size && offset % size == 0) {
    return ReadPage(file, static_cast<char*>(out), size, offset / size + 1);
  }
  // A part of a page is as good as the whole page.
  std::string page(static_cast<size_t>(size), '\0');
  char* to = static_cast<char*>(out);
  for (sqlite3_int64 at = offset; at < offset + amount;) {
    const int read = ReadPage(file, page.data(), size, at / size + 1);
    if (read != SQLITE_OK) return read == SQLITE_IOERR_SHORT_READ ? SQLITE_CORRUPT : read;
    const sqlite3_int64 from = at % size;
    const sqlite3_int64 bytes = std::min<sqlite3_int64>(size - from, offset + amount - at);
    std::memcpy(to, page.data() + from, static_cast<size_t>(bytes));
    to += bytes;
    at += bytes;
  }
  return SQLITE_OK;
}

int Write(sqlite3_file* file, const void* in, int amount, sqlite3_int64 offset) {
  if (offset == 0 && amount >= kHeaderBytes) {
    const auto* header = static_cast<const unsigned char*>(in);
    if (header[kReservedAt] != kChecksumBytes) return SQLITE_IOERR_WRITE;
    reinterpret_cast<File*>(file)->page_size = PageSizeIn(header);
  }
  const int size = PageSizeOf(file);
  if (size == 0 || amount != size || offset % size != 0) return SQLITE_IOERR_WRITE;
  std::string page(static_cast<const char*>(in), static_cast<size_t>(amount));
  const Digest digest = PageDigest(page, static_cast<uint32_t>(offset / size + 1));
  std::memcpy(page.data() + size - kChecksumBytes, digest.data(), kChecksumBytes);
  return MethodsBelow(file).xWrite(Below(file), page.data(), amount, offset);
}

int Close(sqlite3_file* file) {
  const int rc = MethodsBelow(file).xClose(Below(file));
  file->pMethods = nullptr;
  return rc;
}

// Memory-mapped pages would pass by Read().
int Fetch(sqlite3_file*, sqlite3_int64, int, void** out) {
  *out = nullptr;
  return SQLITE_OK;
}

const sqlite3_io_methods& Methods() {
  static const sqlite3_io_methods methods = {
      3,
      Close,
      Read,
      Write,
      [](sqlite3_file* f, sqlite3_int64 size) { return MethodsBelow(f).xTruncate(Below(f), size); },
      [](sqlite3_file* f, int flags) { return MethodsBelow(f).xSync(Below(f), flags); },
      [](sqlite3_file* f, sqlite3_int64* size) {
        return MethodsBelow(f).xFileSize(Below(f), size);
      },
      [](sqlite3_file* f, int lock) { return MethodsBelow(f).xLock(Below(f), lock); },
      [](sqlite3_file* f, int lock) { return MethodsBelow(f).xUnlock(Below(f), lock); },
      [](sqlite3_file* f, int* out) { return MethodsBelow(f).xCheckReservedLock(Below(f), out); },
      [](sqlite3_file* f, int op, void* arg) {
        return MethodsBelow(f).xFileControl(Below(f), op, arg);
      },
      [](sqlite3_file* f) { return MethodsBelow(f).xSectorSize(Below(f)); },
      [](sqlite3_file* f) { return MethodsBelow(f).xDeviceCharacteristics(Below(f)); },
      [](sqlite3_file* f, int page, int size, int extend, void volatile** out) {
        return MethodsBelow(f).xShmMap(Below(f), page, size, extend, out);
      },
      [](sqlite3_file* f, int offset, int n, int flags) {
        return MethodsBelow(f).xShmLock(Below(f), offset, n, flags);
      },
      [](sqlite3_file* f) { MethodsBelow(f).xShmBarrier(Below(f)); },
      [](sqlite3_file* f, int remove) { return MethodsBelow(f).xShmUnmap(Below(f), remove); },
      Fetch,
      [](sqlite3_file*, sqlite3_int64, void*) { return SQLITE_OK; },
  };
  return methods;
}

sqlite3_vfs* default_vfs = nullptr;  // set once, before the layer is registered

int Open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  if ((flags & SQLITE_OPEN_MAIN_DB) == 0) {
    return default_vfs->xOpen(default_vfs, name, file, flags, out_flags);
  }
  auto& self = *reinterpret_cast<File*>(file);
  self.base.pMethods = nullptr;
  self.page_size = 0;
  sqlite3_file* below = Below(file);
  below->pMethods = nullptr;
  const int rc = default_vfs->xOpen(default_vfs, name, below, flags, out_flags);
  if (below->pMethods == nullptr) return rc;
  if (rc == SQLITE_OK && below->pMethods->iVersion >= 2) {
    self.base.pMethods = &Methods();
    return rc;
  }
  below->pMethods->xClose(below);
  return rc == SQLITE_OK ? SQLITE_CANTOPEN : rc;
}

const char* Register() {
  default_vfs = sqlite3_vfs_find(nullptr);
  if (default_vfs == nullptr) return nullptr;
  static sqlite3_vfs vfs = *default_vfs;
  vfs.szOsFile = default_vfs->szOsFile + static_cast<int>(sizeof(File));
  vfs.zName = "bucketd-checksum";
  vfs.pNext = nullptr;
  vfs.xOpen = Open;
  return sqlite3_vfs_register(&vfs, /*makeDflt=*/0) == SQLITE_OK ? vfs.zName : nullptr;
}

}  // namespace

bool PageIsWhole(absl::string_view page, uint32_t number) {
  if (page.size() <= kChecksumBytes) return false;
  const Digest digest = PageDigest(page, number);
  const absl::string_view stored = page.substr(page.size() - kChecksumBytes);
  if (std::memcmp(stored.data(), digest.data(), kChecksumBytes) == 0) return true;
  return page.find_first_not_of('\0') == absl::string_view::npos;
}

const char* ChecksumVfs() {
  static const char* const name = Register();
  return name;
}

}  // namespace bucketd
