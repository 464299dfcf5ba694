// A SQLite file that one process has for itself: opening it, statements, and what errors mean.
//
//   TESSERA_ASSIGN_OR_RETURN(auto database, SqliteDatabase::Open(path));
//   TESSERA_RETURN_IF_ERROR(database->Run("BEGIN IMMEDIATE"));
//   SqliteStatement put(*database, "REPLACE INTO t VALUES (?, ?)");
//   put.Bind(1, 17);  put.Bind(2, "text");
//   TESSERA_RETURN_IF_ERROR(put.Run());
//
// Thread-safety: none.
#ifndef TESSERA_COORDINATOR_SQLITE_DATABASE_H_
#define TESSERA_COORDINATOR_SQLITE_DATABASE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"
#include "sqlite3.h"

namespace tessera {

class SqliteDatabase {
 public:
  // Makes the file where there is none, and locks it until the end. FAILED_PRECONDITION: another
  // process has it. Otherwise as Error.
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(const std::string& path);
  ~SqliteDatabase();
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  // Of the last call that failed. RESOURCE_EXHAUSTED: the disk is full. DATA_LOSS: the file is
  // damaged. FAILED_PRECONDITION: locked by another process. UNAVAILABLE: anything else.
  absl::Status Error() const;
  absl::Status Damaged(absl::string_view how) const;

  absl::Status Run(const std::string& sql);
  // The one number that a pragma or query gives.
  absl::StatusOr<int64_t> Number(const std::string& sql);

  const std::string& path() const { return path_; }
  sqlite3* handle() const { return database_; }

 private:
  SqliteDatabase(std::string path, sqlite3* database)
      : path_(std::move(path)), database_(database) {}
  absl::Status Prepare();

  const std::string path_;
  sqlite3* const database_;
};

class SqliteStatement {
 public:
  SqliteStatement(const SqliteDatabase& database, absl::string_view sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  // Parameters count from 1.
  void Bind(int index, int64_t value);
  void Bind(int index, absl::string_view value);
  void Bind(int index, const google::protobuf::MessageLite& value);

  // To its end; then it can be bound and run again.
  absl::Status Run();
  // False: there is no further row.
  absl::StatusOr<bool> Next();

  // Of the row; columns count from 0.
  int64_t Number(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Text(int column) const;
  // DATA_LOSS: it is no such message.
  absl::Status Message(int column, google::protobuf::MessageLite* message) const;

 private:
  const SqliteDatabase& database_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_SQLITE_DATABASE_H_
