#include "coordinator/sqlite_state_store.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "coordinator/sqlite_database.h"

namespace tessera {
namespace {

constexpr int64_t kApplicationId = 0x54535241;  // "TSRA"

// What brings a file from schema i to i + 1. Never changed, only added to.
constexpr const char* kMigrations[] = {
    R"(CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
       CREATE TABLE jobs (id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, job BLOB NOT NULL,
                          spec BLOB NOT NULL, plan_fingerprint TEXT NOT NULL,
                          layout_fingerprint TEXT NOT NULL, events_id TEXT NOT NULL);
       CREATE TABLE members (job INTEGER, member INTEGER, worker BLOB NOT NULL,
                             PRIMARY KEY (job, member)) WITHOUT ROWID;
       CREATE TABLE events (job INTEGER, cursor INTEGER, event BLOB NOT NULL,
                            PRIMARY KEY (job, cursor)) WITHOUT ROWID;
       CREATE TABLE stats (job INTEGER PRIMARY KEY, stats BLOB NOT NULL);
       CREATE TABLE requests (id TEXT PRIMARY KEY, method TEXT NOT NULL, answer BLOB NOT NULL)
              WITHOUT ROWID;
       CREATE TABLE generations (job TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID;)",
};
static_assert(std::size(kMigrations) == kStateSchemaVersion);

constexpr const char* kTablesOfJobs[] = {"members", "events", "stats"};

absl::Status Migrate(SqliteDatabase& database) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t version, database.Number("PRAGMA user_version"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t application, database.Number("PRAGMA application_id"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t tables,
                           database.Number("SELECT COUNT(*) FROM sqlite_schema"));
  if (application != kApplicationId && tables > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        database.path(), ": is not a coordinator's; move it away or give another --state_dir"));
  }
  if (version < 0 || version > kStateSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        database.path(), ": has schema ", version, " and this coordinator knows up to ",
        kStateSchemaVersion, "; start the newer coordinator that made it, or move it away"));
  }
  if (version == kStateSchemaVersion) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(database.Run("BEGIN IMMEDIATE"));
  for (int64_t from = version; from < kStateSchemaVersion; ++from) {
    TESSERA_RETURN_IF_ERROR(database.Run(kMigrations[from]));
  }
  TESSERA_RETURN_IF_ERROR(database.Run(absl::StrCat("PRAGMA application_id=", kApplicationId)));
  TESSERA_RETURN_IF_ERROR(database.Run(absl::StrCat("PRAGMA user_version=", kStateSchemaVersion)));
  return database.Run("COMMIT");
}

class SqliteStateStore : public StateStore {
 public:
  explicit SqliteStateStore(std::unique_ptr<SqliteDatabase> database)
      : database_(std::move(database)) {}

  absl::StatusOr<StoredState> Load() override {
    MutexLock lock(mutex_);
    StoredState state;
    TESSERA_RETURN_IF_ERROR(LoadJobs(&state));
    TESSERA_RETURN_IF_ERROR(LoadOfJobs(&state));
    SqliteStatement requests(*database_, "SELECT id, method, answer FROM requests");
    TESSERA_RETURN_IF_ERROR(ForEach(requests, [&] {
      StoredRequest& request = state.requests[requests.Text(0)];
      request.method = requests.Text(1);
      return requests.Message(2, &request.answer);
    }));
    SqliteStatement generations(*database_, "SELECT job, last FROM generations");
    TESSERA_RETURN_IF_ERROR(ForEach(generations, [&] {
      state.last_generations[generations.Text(0)] = generations.Number(1);
      return absl::OkStatus();
    }));
    SqliteStatement last(*database_, "SELECT value FROM numbers WHERE name = 'last_job_id'");
    TESSERA_RETURN_IF_ERROR(ForEach(last, [&] {
      state.last_job_id = last.Number(0);
      return absl::OkStatus();
    }));
    return state;
  }

  absl::Status Commit(const StateChange& change) override {
    if (change.empty()) return absl::OkStatus();
    MutexLock lock(mutex_);
    if (synchronous_ != change.durable) {
      TESSERA_RETURN_IF_ERROR(
          database_->Run(change.durable ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL"));
      synchronous_ = change.durable;
    }
    TESSERA_RETURN_IF_ERROR(database_->Run("BEGIN IMMEDIATE"));
    absl::Status status = Write(change);
    if (status.ok()) status = database_->Run("COMMIT");
    // Some errors have rolled back already; then this one says so, and nobody minds.
    if (!status.ok()) database_->Run("ROLLBACK").IgnoreError();
    return status;
  }

 private:
  template <typename Row>
  static absl::Status ForEach(SqliteStatement& statement, Row row) {
    for (;;) {
      TESSERA_ASSIGN_OR_RETURN(const bool more, statement.Next());
      if (!more) return absl::OkStatus();
      TESSERA_RETURN_IF_ERROR(row());
    }
  }

  absl::Status LoadJobs(StoredState* state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement jobs(*database_,
                         "SELECT id, request_id, job, spec, plan_fingerprint, layout_fingerprint, "
                         "events_id FROM jobs");
    return ForEach(jobs, [&] {
      StoredJob& job = state->jobs[jobs.Number(0)];
      job.id = jobs.Number(0);
      job.request_id = jobs.Text(1);
      TESSERA_RETURN_IF_ERROR(jobs.Message(2, &job.job));
      TESSERA_RETURN_IF_ERROR(jobs.Message(3, &job.spec));
      job.plan_fingerprint = jobs.Text(4);
      job.layout_fingerprint = jobs.Text(5);
      job.events_id = jobs.Text(6);
      return absl::OkStatus();
    });
  }

  absl::Status LoadOfJobs(StoredState* state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement members(*database_, "SELECT job, member, worker FROM members");
    TESSERA_RETURN_IF_ERROR(ForEach(members, [&] {
      return members.Message(
          2, &state->members[members.Number(0)][static_cast<int>(members.Number(1))]);
    }));
    SqliteStatement events(*database_, "SELECT job, cursor, event FROM events");
    TESSERA_RETURN_IF_ERROR(ForEach(events, [&] {
      return events.Message(2, &state->events[events.Number(0)][events.Number(1)]);
    }));
    SqliteStatement stats(*database_, "SELECT job, stats FROM stats");
    return ForEach(stats, [&] { return stats.Message(1, &state->stats[stats.Number(0)]); });
  }

  absl::Status Write(const StateChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement put(*database_, "REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)");
    for (const auto& [id, job] : change.jobs) {
      put.Bind(1, id);
      put.Bind(2, job.request_id);
      put.Bind(3, job.job);
      put.Bind(4, job.spec);
      put.Bind(5, job.plan_fingerprint);
      put.Bind(6, job.layout_fingerprint);
      put.Bind(7, job.events_id);
      TESSERA_RETURN_IF_ERROR(put.Run());
    }
    SqliteStatement progress(*database_, "UPDATE jobs SET job = ? WHERE id = ?");
    for (const auto& [id, job] : change.progress) {
      progress.Bind(1, job);
      progress.Bind(2, id);
      TESSERA_RETURN_IF_ERROR(progress.Run());
    }
    TESSERA_RETURN_IF_ERROR(WriteOfJobs(change));
    TESSERA_RETURN_IF_ERROR(WriteRequests(change));
    SqliteStatement last(*database_, "REPLACE INTO generations VALUES (?, ?)");
    for (const auto& [name, generation] : change.last_generations) {
      last.Bind(1, name);
      last.Bind(2, generation);
      TESSERA_RETURN_IF_ERROR(last.Run());
    }
    if (change.last_job_id != 0) {
      SqliteStatement id(*database_, "REPLACE INTO numbers VALUES ('last_job_id', ?)");
      id.Bind(1, change.last_job_id);
      TESSERA_RETURN_IF_ERROR(id.Run());
    }
    for (const int64_t id : change.erased_jobs) TESSERA_RETURN_IF_ERROR(Erase(id));
    return absl::OkStatus();
  }

  absl::Status WriteOfJobs(const StateChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement forget(*database_, "DELETE FROM members WHERE job = ?");
    for (const int64_t id : change.new_generations) {
      forget.Bind(1, id);
      TESSERA_RETURN_IF_ERROR(forget.Run());
    }
    SqliteStatement member(*database_, "REPLACE INTO members VALUES (?, ?, ?)");
    for (const auto& [id, members] : change.members) {
      for (const auto& [index, worker] : members) {
        member.Bind(1, id);
        member.Bind(2, static_cast<int64_t>(index));
        member.Bind(3, worker);
        TESSERA_RETURN_IF_ERROR(member.Run());
      }
    }
    SqliteStatement event(*database_, "REPLACE INTO events VALUES (?, ?, ?)");
    SqliteStatement trim(*database_, "DELETE FROM events WHERE job = ? AND cursor <= ?");
    for (const auto& [id, events] : change.events) {
      for (const auto& [cursor, value] : events) {
        event.Bind(1, id);
        event.Bind(2, cursor);
        event.Bind(3, value);
        TESSERA_RETURN_IF_ERROR(event.Run());
      }
      if (events.empty() || events.rbegin()->first <= kMaxStoredEvents) continue;
      trim.Bind(1, id);
      trim.Bind(2, events.rbegin()->first - kMaxStoredEvents);
      TESSERA_RETURN_IF_ERROR(trim.Run());
    }
    SqliteStatement put(*database_, "REPLACE INTO stats VALUES (?, ?)");
    for (const auto& [id, stats] : change.stats) {
      put.Bind(1, id);
      put.Bind(2, stats);
      TESSERA_RETURN_IF_ERROR(put.Run());
    }
    return absl::OkStatus();
  }

  absl::Status WriteRequests(const StateChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement erase(*database_, "DELETE FROM requests WHERE id = ?");
    for (const std::string& id : change.erased_requests) {
      erase.Bind(1, id);
      TESSERA_RETURN_IF_ERROR(erase.Run());
    }
    SqliteStatement put(*database_, "REPLACE INTO requests VALUES (?, ?, ?)");
    for (const auto& [id, request] : change.requests) {
      put.Bind(1, id);
      put.Bind(2, request.method);
      put.Bind(3, request.answer);
      TESSERA_RETURN_IF_ERROR(put.Run());
    }
    return absl::OkStatus();
  }

  absl::Status Erase(int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement job(*database_, "DELETE FROM jobs WHERE id = ?");
    job.Bind(1, id);
    TESSERA_RETURN_IF_ERROR(job.Run());
    for (const char* table : kTablesOfJobs) {
      SqliteStatement rows(*database_, absl::StrCat("DELETE FROM ", table, " WHERE job = ?"));
      rows.Bind(1, id);
      TESSERA_RETURN_IF_ERROR(rows.Run());
    }
    return absl::OkStatus();
  }

  Mutex mutex_;
  const std::unique_ptr<SqliteDatabase> database_ ABSL_PT_GUARDED_BY(mutex_);
  std::optional<bool> synchronous_ ABSL_GUARDED_BY(mutex_);  // FULL; none: not said yet
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStateStore(const std::string& state_dir) {
  std::error_code error;
  std::filesystem::create_directories(state_dir, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(state_dir, ": cannot be made (", error.message(),
                                               "); give a --state_dir that can be written"));
  }
  const std::string path = (std::filesystem::path(state_dir) / "coordinator.sqlite").string();
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> database, SqliteDatabase::Open(path));
  TESSERA_RETURN_IF_ERROR(Migrate(*database));
  return std::make_unique<SqliteStateStore>(std::move(database));
}

}  // namespace tessera
