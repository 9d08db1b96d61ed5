#include "server/store/store_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include <sys/file.h>
#include <sys/stat.h>

#include "passes/base/status_macros.h"
#include "server/store/checksum_vfs.h"

namespace bucketd {
namespace {

constexpr std::chrono::milliseconds kCreateTimeout{10'000};
constexpr int kMaxPageBytes = 65536;

// README.md says what each is for. Values stand apart: damage to one of them, which are nearly all
// of the bytes, leaves the row that speaks of it readable.
constexpr char kTables[] = R"(
CREATE TABLE totals(id INTEGER PRIMARY KEY CHECK(id = 1), commits INTEGER NOT NULL,
                    plans INTEGER NOT NULL, plan_bytes INTEGER NOT NULL);
INSERT INTO totals VALUES(1, 1, 0, 0);
CREATE TABLE plan_values(id INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB NOT NULL);
CREATE TABLE plans(hash BLOB PRIMARY KEY, value INTEGER NOT NULL, tenant TEXT NOT NULL, graph TEXT,
                   bytes INTEGER NOT NULL, created INTEGER NOT NULL, used INTEGER NOT NULL,
                   checksum BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX plans_used ON plans(used);
CREATE TABLE holds(plan BLOB, holder TEXT, expires INTEGER NOT NULL,
                   PRIMARY KEY(plan, holder)) WITHOUT ROWID;
CREATE INDEX holds_holder ON holds(holder);
CREATE TABLE record_values(id INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB NOT NULL);
CREATE TABLE records(shelf INTEGER, key BLOB, value INTEGER NOT NULL, checksum BLOB NOT NULL,
                     PRIMARY KEY(shelf, key)) WITHOUT ROWID;
)";

absl::Status FileError(const std::string& path, const char* what) {
  const int error = errno;
  const std::string text = absl::StrCat(path, ": ", what, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? absl::ResourceExhaustedError(text)
                                                              : absl::UnavailableError(text);
}

// Stores of earlier versions were made as wide as the umask let them be. Somebody else's stay as
// they are.
void CloseToOthers(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || (info.st_mode & S_IRWXO) == 0) return;
  if (chmod(path.c_str(), info.st_mode & (S_IRWXU | S_IRWXG)) != 0) return;
}

absl::Status WriteTables(SqliteDb& db) {
  RETURN_IF_ERROR(db.Exec("BEGIN IMMEDIATE"));
  RETURN_IF_ERROR(db.Exec(kTables));
  RETURN_IF_ERROR(db.Exec(absl::StrCat("PRAGMA application_id = ", kStoreApplicationId).c_str()));
  RETURN_IF_ERROR(db.Exec(absl::StrCat("PRAGMA user_version = ", kStoreFormat).c_str()));
  return db.Exec("COMMIT");
}

absl::Status WriteNewFile(const std::string& path, int32_t page_size) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteDb> db,
                   SqliteDb::Open(path, SqliteDb::Mode::kCreate, kCreateTimeout));
  int reserved = kChecksumBytes;
  sqlite3_file_control(db->get(), "main", SQLITE_FCNTL_RESERVE_BYTES, &reserved);
  RETURN_IF_ERROR(db->Exec(absl::StrCat("PRAGMA page_size = ", page_size).c_str()));
  RETURN_IF_ERROR(db->Exec("PRAGMA synchronous = FULL"));
  RETURN_IF_ERROR(WriteTables(*db));
  // Kept in the file; everything above stands in the file itself, not in a log.
  return db->Exec("PRAGMA journal_mode = WAL");
}

absl::Status CreateStore(const StorePaths& paths, int32_t page_size) {
  const std::string temporary = paths.database + ".new";
  // Of a process that died; a journal that stayed would be played back into the new file.
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
    unlink(absl::StrCat(temporary, suffix).c_str());
  }
  // SQLite gives its log the rights that it finds here.
  const int made = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (made < 0) return FileError(temporary, "cannot be made");
  close(made);
  RETURN_IF_ERROR(WriteNewFile(temporary, page_size));
  // A log without its database would be taken for the new one's.
  for (const std::string& path : {paths.log, paths.acknowledged}) {
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return FileError(path, "cannot be removed");
  }
  if (rename(temporary.c_str(), paths.database.c_str()) != 0) {
    return FileError(paths.database, "cannot be made");
  }
  return absl::OkStatus();
}

int32_t BigEndian(const std::string& page, size_t at) {
  uint32_t value = 0;
  for (size_t i = at; i < at + 4; ++i) value = value << 8 | static_cast<uint8_t>(page[i]);
  return static_cast<int32_t>(value);
}

absl::StatusOr<std::string> ReadFirstPage(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  std::string page(kMaxPageBytes, '\0');
  const ssize_t got = fd < 0 ? -1 : pread(fd, page.data(), page.size(), 0);
  const absl::Status status = got < 0 ? FileError(path, "cannot be read") : absl::OkStatus();
  if (fd >= 0) close(fd);
  RETURN_IF_ERROR(status);
  page.resize(static_cast<size_t>(got));
  return page;
}

absl::Status Configure(SqliteDb& db, bool read_only) {
  RETURN_IF_ERROR(db.Exec("PRAGMA trusted_schema = OFF"));
  RETURN_IF_ERROR(db.Exec("PRAGMA temp_store = MEMORY"));
  if (read_only) return db.Exec("PRAGMA query_only = ON");
  RETURN_IF_ERROR(db.Exec("PRAGMA synchronous = FULL"));
  // Debian's ON would write each page of a plan that goes once more, as zeros.
  RETURN_IF_ERROR(db.Exec("PRAGMA secure_delete = FAST"));
  RETURN_IF_ERROR(db.Exec("PRAGMA journal_size_limit = 67108864"));
  return absl::OkStatus();
}

absl::Status LaterFormat(const std::string& path, int64_t format) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": is a store of format ", format,
                   ", made by a later version; this one reads format ", kStoreFormat));
}

// Reads something, so that a log is recovered and whatever is wrong shows now. The log may hold a
// later format than the file.
absl::Status Touch(SqliteDb& db, const std::string& path) {
  const absl::MutexLock lock(&db.mutex());
  RETURN_IF_ERROR(db.Run("SELECT commits FROM totals WHERE id = 1"));
  Statement format = db.Query("SELECT user_version FROM pragma_user_version");
  RETURN_IF_ERROR(format.Step().status());
  return format.Int(0) == kStoreFormat ? absl::OkStatus() : LaterFormat(path, format.Int(0));
}

}  // namespace

absl::Status MakeStoreFolder(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return FileError(directory, "the folder cannot be made");
  }
  struct stat info {};
  if (stat(directory.c_str(), &info) != 0) return FileError(directory, "cannot be read");
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(directory, ": is no folder"));
  }
  if ((info.st_mode & S_IWOTH) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      directory,
      ": everybody may write to this folder, and so decide which plans jobs run with: `chmod o-w ",
      directory, "`, or name a folder inside it, which the server makes for itself alone"));
}

absl::Status CreateStoreIfAbsent(const std::string& directory, int32_t page_size) {
  const StorePaths paths(directory);
  for (const std::string& path : {paths.database, paths.log, paths.database + "-shm"}) {
    CloseToOthers(path);
  }
  if (access(paths.database.c_str(), F_OK) == 0) return absl::OkStatus();
  const int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return FileError(directory, "cannot be read");
  // One process at a time; the lock goes with the descriptor.
  absl::Status status;
  if (flock(folder, LOCK_EX) != 0) status = FileError(directory, "cannot be locked");
  if (status.ok() && access(paths.database.c_str(), F_OK) != 0) {
    status = CreateStore(paths, page_size);
  }
  if (status.ok() && fsync(folder) != 0) status = FileError(directory, "cannot be synced");
  close(folder);
  return status;
}

absl::Status CheckStoreFile(const std::string& database) {
  ASSIGN_OR_RETURN(std::string page, ReadFirstPage(database));
  constexpr absl::string_view kMagic("SQLite format 3\0", 16);
  if (page.size() < 512 || page.substr(0, kMagic.size()) != kMagic) {
    return absl::FailedPreconditionError(
        absl::StrCat(database, ": is no bucketd store, or its first bytes are damaged"));
  }
  const int size = static_cast<uint8_t>(page[16]) << 8 | static_cast<uint8_t>(page[17]);
  page.resize(std::min(page.size(), static_cast<size_t>(size == 1 ? kMaxPageBytes : size)));
  const bool whole = PageIsWhole(page, 1);
  const int32_t application = BigEndian(page, 68);
  const int32_t format = BigEndian(page, 60);
  if (whole && application == kStoreApplicationId && format == kStoreFormat) {
    return absl::OkStatus();
  }
  if (application == kStoreApplicationId && format > kStoreFormat && whole) {
    return LaterFormat(database, format);
  }
  if (application != kStoreApplicationId && page[20] != kChecksumBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(database, ": is a database of another program, no bucketd store"));
  }
  return absl::DataLossError(
      absl::StrCat(database,
                   ": the first page of the store is damaged; restore the folder from a backup, or "
                   "move it away to begin with an empty store"));
}

absl::StatusOr<std::unique_ptr<SqliteDb>> OpenStoreDb(const std::string& directory, bool read_only,
                                                      std::chrono::milliseconds busy_timeout) {
  if (directory.empty()) {
    ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> db,
                     SqliteDb::Open("", SqliteDb::Mode::kReadWrite, busy_timeout));
    RETURN_IF_ERROR(WriteTables(*db));
    return db;
  }
  const StorePaths paths(directory);
  const auto mode = read_only ? SqliteDb::Mode::kReadOnly : SqliteDb::Mode::kReadWrite;
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> db,
                   SqliteDb::Open(paths.database, mode, busy_timeout));
  absl::Status status = Configure(*db, read_only);
  if (status.ok()) status = Touch(*db, paths.database);
  if (status.ok() && !read_only && sqlite3_db_readonly(db->get(), "main") != 0) {
    return absl::UnavailableError("the database cannot be written");
  }
  if (status.ok()) return db;
  struct stat log {};
  const bool merged = stat(paths.log.c_str(), &log) != 0 || log.st_size == 0;
  if (!read_only || !absl::IsUnavailable(status) || !merged) return status;
  ASSIGN_OR_RETURN(db, SqliteDb::Open(paths.database, SqliteDb::Mode::kImmutable, busy_timeout));
  RETURN_IF_ERROR(Configure(*db, read_only));
  RETURN_IF_ERROR(Touch(*db, paths.database));
  return db;
}

}  // namespace bucketd
