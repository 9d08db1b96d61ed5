#include "server/store/sqlite_db.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "server/store/checksum_vfs.h"

namespace bucketd {
namespace {

bool IsDamage(int rc) {
  return (rc & 0xff) == SQLITE_CORRUPT || (rc & 0xff) == SQLITE_NOTADB || rc == SQLITE_IOERR_DATA;
}

// SQLite keeps the system's error of some calls alone, of a failed commit it does not; then it is
// still in errno, which Step() and Exec() clear beforehand.
int SystemError(sqlite3* db, int rc) {
  if ((rc & 0xff) != SQLITE_IOERR) return 0;
  const int kept = db == nullptr ? 0 : sqlite3_system_errno(db);
  return kept != 0 ? kept : errno;
}

bool IsNoSpace(int rc, int error) {
  if ((rc & 0xff) == SQLITE_FULL) return true;
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

// A path as a URI: only there can a database be opened as one that nobody changes.
std::string UriOf(const std::string& path, bool immutable) {
  std::string uri = "file:";
  for (const char c : path) {
    if (c == '?' || c == '#' || c == '%') {
      absl::StrAppend(&uri, "%", absl::BytesToHexString(absl::string_view(&c, 1)));
    } else {
      uri.push_back(c);
    }
  }
  if (immutable) uri += "?immutable=1";
  return uri;
}

}  // namespace

absl::Status SqliteError(sqlite3* db, int rc) {
  const int error = SystemError(db, rc);
  std::string text = sqlite3_errstr(rc);
  if (error != 0) absl::StrAppend(&text, ": ", std::strerror(error));
  absl::StrAppend(&text, " (SQLite code ", rc, ")");
  if (IsDamage(rc)) return absl::DataLossError(text);
  if (IsNoSpace(rc, error)) return absl::ResourceExhaustedError(text);
  if ((rc & 0xff) == SQLITE_TOOBIG) return absl::InvalidArgumentError(text);
  return absl::UnavailableError(text);
}

Statement::~Statement() {
  if (stmt_ == nullptr) return;
  sqlite3_reset(stmt_);
  sqlite3_clear_bindings(stmt_);
}

void Statement::Bind(int64_t value) {
  if (rc_ == SQLITE_OK) rc_ = sqlite3_bind_int64(stmt_, ++bound_, value);
}

void Statement::Bind(absl::string_view blob) {
  // A null pointer would bind NULL.
  const char* data = blob.empty() ? "" : blob.data();
  if (rc_ == SQLITE_OK) {
    rc_ = sqlite3_bind_blob64(stmt_, ++bound_, data, blob.size(), SQLITE_STATIC);
  }
}

void Statement::Bind(SqlText text) {
  const char* data = text.text.empty() ? "" : text.text.data();
  if (rc_ == SQLITE_OK) {
    rc_ = sqlite3_bind_text64(stmt_, ++bound_, data, text.text.size(), SQLITE_STATIC, SQLITE_UTF8);
  }
}

void Statement::Bind(SqlOptional text) {
  if (text.text.has_value()) return Bind(SqlText{*text.text});
  if (rc_ == SQLITE_OK) rc_ = sqlite3_bind_null(stmt_, ++bound_);
}

absl::StatusOr<bool> Statement::Step() {
  if (rc_ == SQLITE_OK) {
    errno = 0;
    rc_ = sqlite3_step(stmt_);
    if (rc_ == SQLITE_ROW) {
      rc_ = SQLITE_OK;
      return true;
    }
    if (rc_ == SQLITE_DONE) {
      rc_ = SQLITE_OK;
      return false;
    }
  }
  return SqliteError(db_, rc_);
}

int64_t Statement::Int(int column) const { return sqlite3_column_int64(stmt_, column); }

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(stmt_, column) == SQLITE_NULL;
}

absl::string_view Statement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(stmt_, column);
  const auto size = static_cast<size_t>(sqlite3_column_bytes(stmt_, column));
  return data == nullptr ? absl::string_view()
                         : absl::string_view(static_cast<const char*>(data), size);
}

absl::StatusOr<std::unique_ptr<SqliteDb>> SqliteDb::Open(const std::string& path, Mode mode,
                                                         std::chrono::milliseconds busy_timeout) {
  int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_URI;
  flags |= mode == Mode::kReadOnly || mode == Mode::kImmutable ? SQLITE_OPEN_READONLY
                                                               : SQLITE_OPEN_READWRITE;
  if (mode == Mode::kCreate) flags |= SQLITE_OPEN_CREATE;
  const bool memory = path.empty();
  const std::string uri = memory ? ":memory:" : UriOf(path, mode == Mode::kImmutable);
  const char* vfs = memory ? nullptr : ChecksumVfs();
  if (!memory && vfs == nullptr) return absl::UnavailableError("SQLite has no file layer");
  sqlite3* handle = nullptr;
  const int rc = sqlite3_open_v2(uri.c_str(), &handle, flags, vfs);
  auto db = std::unique_ptr<SqliteDb>(new SqliteDb(handle));
  if (rc != SQLITE_OK) return SqliteError(handle, rc);
  sqlite3_busy_timeout(handle, static_cast<int>(busy_timeout.count()));
  return db;
}

SqliteDb::~SqliteDb() {
  for (const auto& [sql, stmt] : prepared_) sqlite3_finalize(stmt);
  sqlite3_close_v2(db_);
}

absl::Status SqliteDb::Exec(const char* sql) {
  errno = 0;
  const int rc = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? absl::OkStatus() : SqliteError(db_, rc);
}

sqlite3_stmt* SqliteDb::Prepared(const char* sql, int& rc) {
  const auto found = prepared_.find(sql);
  if (found != prepared_.end()) return found->second;
  sqlite3_stmt* stmt = nullptr;
  rc = sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, nullptr);
  if (rc == SQLITE_OK) prepared_.emplace(sql, stmt);
  return stmt;
}

}  // namespace bucketd
