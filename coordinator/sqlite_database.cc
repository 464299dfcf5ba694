#include "coordinator/sqlite_database.h"

#include <string.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

bool IsFull(int code, int system_error) {
  return (code & 0xff) == SQLITE_FULL || system_error == ENOSPC || system_error == EDQUOT ||
         system_error == EFBIG;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const std::string& path) {
  sqlite3* opened = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &opened,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (opened == nullptr) return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory"));
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(path, opened));
  sqlite3_extended_result_codes(opened, 1);
  if (code != SQLITE_OK) return database->Error();
  TESSERA_RETURN_IF_ERROR(database->Prepare());
  return database;
}

// Exclusive before the first access: then the lock is taken with it and kept, and WAL needs no
// shared memory beside the file.
absl::Status SqliteDatabase::Prepare() {
  if (sqlite3_db_readonly(database_, "main") == 1) {
    return absl::UnavailableError(absl::StrCat(
        path_, ": cannot be written by this user; change its owner or mode, or the mount"));
  }
  TESSERA_RETURN_IF_ERROR(Run("PRAGMA locking_mode=EXCLUSIVE"));
  TESSERA_RETURN_IF_ERROR(Run("PRAGMA journal_mode=WAL"));
  TESSERA_RETURN_IF_ERROR(Run("BEGIN EXCLUSIVE"));
  TESSERA_RETURN_IF_ERROR(Run("COMMIT"));
  TESSERA_RETURN_IF_ERROR(Run("PRAGMA journal_size_limit=4194304"));
  SqliteStatement check(*this, "PRAGMA quick_check(1)");
  TESSERA_ASSIGN_OR_RETURN(const bool row, check.Next());
  if (!row || check.Text(0) != "ok") return Damaged(row ? check.Text(0) : "no check");
  return absl::OkStatus();
}

SqliteDatabase::~SqliteDatabase() { sqlite3_close_v2(database_); }

absl::Status SqliteDatabase::Damaged(absl::string_view how) const {
  return absl::DataLossError(absl::StrCat(
      path_, ": is damaged (", how,
      "); put a copy back, or move it and its -wal file away to start without its jobs"));
}

absl::Status SqliteDatabase::Error() const {
  const int code = sqlite3_extended_errcode(database_);
  // SQLite does not always keep it. Whatever failed is the last thing that did.
  const int last = errno;
  const int kept = sqlite3_system_errno(database_);
  const int system_error = kept != 0 ? kept : last;
  std::string what = sqlite3_errmsg(database_);
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Damaged(what);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(absl::StrCat(
          path_, ": another coordinator has it; stop that one, or give another --state_dir"));
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      if (system_error != 0) absl::StrAppend(&what, ", ", strerror(system_error));
      break;
    default:
      return absl::UnavailableError(absl::StrCat(path_, ": ", what, " (SQLite ", code, ")"));
  }
  if (IsFull(code, system_error)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path_, ": the disk or its quota is full (", what, "); make room"));
  }
  return absl::UnavailableError(absl::StrCat(path_, ": cannot be written (", what,
                                             "); see whether its folder is there and writable"));
}

absl::Status SqliteDatabase::Run(const std::string& sql) {
  errno = 0;
  if (sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) return Error();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SqliteDatabase::Number(const std::string& sql) {
  SqliteStatement statement(*this, sql);
  TESSERA_ASSIGN_OR_RETURN(const bool row, statement.Next());
  if (!row) return Damaged(absl::StrCat(sql, " gives nothing"));
  return statement.Number(0);
}

SqliteStatement::SqliteStatement(const SqliteDatabase& database, absl::string_view sql)
    : database_(database) {
  sqlite3_prepare_v2(database.handle(), sql.data(), static_cast<int>(sql.size()), &statement_,
                     nullptr);
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

void SqliteStatement::Bind(int index, int64_t value) {
  sqlite3_bind_int64(statement_, index, value);
}

void SqliteStatement::Bind(int index, absl::string_view value) {
  sqlite3_bind_text(statement_, index, value.data(), static_cast<int>(value.size()),
                    SQLITE_TRANSIENT);
}

void SqliteStatement::Bind(int index, const google::protobuf::MessageLite& value) {
  const std::string bytes = value.SerializeAsString();
  sqlite3_bind_blob(statement_, index, bytes.data(), static_cast<int>(bytes.size()),
                    SQLITE_TRANSIENT);
}

absl::StatusOr<bool> SqliteStatement::Next() {
  if (statement_ == nullptr) return database_.Error();
  errno = 0;
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_.Error();
}

absl::Status SqliteStatement::Run() {
  absl::StatusOr<bool> row = true;
  while (row.ok() && *row) row = Next();
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
  return row.status();
}

std::string SqliteStatement::Text(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int length = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? "" : std::string(static_cast<const char*>(bytes), length);
}

absl::Status SqliteStatement::Message(int column, google::protobuf::MessageLite* message) const {
  if (message->ParseFromString(Text(column))) return absl::OkStatus();
  return database_.Damaged(absl::StrCat("a ", message->GetTypeName(), " cannot be read"));
}

}  // namespace tessera
