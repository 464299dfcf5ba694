#include "coordinator/sqlite_state_store.h"

#include <linux/capability.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/unique_fd.h"
#include "gtest/gtest.h"
#include "sqlite3.h"

namespace tessera {
namespace {

class SqliteStateStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(::testing::TempDir()) /
           ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<StateStore> Open() {
    absl::StatusOr<std::unique_ptr<StateStore>> store = OpenSqliteStateStore(dir_.string());
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  absl::Status OpenFails() const { return OpenSqliteStateStore(dir_.string()).status(); }
  std::filesystem::path File() const { return dir_ / "coordinator.sqlite"; }

  void Execute(const char* sql) const {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(File().c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
  }

  static StateChange OneJob(int64_t id, const std::string& name, bool durable = true) {
    StateChange change;
    change.durable = durable;
    StoredJob& job = change.jobs[id];
    job.id = id;
    job.request_id = "request of " + name;
    job.job.set_name(name);
    job.job.set_step(12);
    job.spec.set_steps(600);
    job.plan_fingerprint = "plan";
    job.layout_fingerprint = "layout";
    job.events_id = "17-4";
    return change;
  }

  std::filesystem::path dir_;
};

TEST_F(SqliteStateStoreTest, KeepsEverythingOverARestart) {
  {
    const auto store = Open();
    StateChange change = OneJob(3, "gpt");
    change.members[3][0].set_incarnation("i0");
    change.members[3][HostIndex(0)].set_host_name("node-a");
    change.events[3][1].set_missed(9);
    change.stats[3].set_step(12);
    change.requests["r1"].method = "drain";
    change.requests["r1"].answer.set_name("gpt");
    change.last_generations["gpt"] = 4;
    change.last_job_id = 3;
    ASSERT_TRUE(store->Commit(change).ok());
  }
  const auto state = Open()->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  const StoredJob& job = state->jobs.at(3);
  EXPECT_EQ(job.id, 3);
  EXPECT_EQ(job.request_id, "request of gpt");
  EXPECT_EQ(job.job.name(), "gpt");
  EXPECT_EQ(job.job.step(), 12);
  EXPECT_EQ(job.spec.steps(), 600);
  EXPECT_EQ(job.plan_fingerprint, "plan");
  EXPECT_EQ(job.layout_fingerprint, "layout");
  EXPECT_EQ(job.events_id, "17-4");
  EXPECT_EQ(state->members.at(3).at(0).incarnation(), "i0");
  EXPECT_EQ(state->members.at(3).at(HostIndex(0)).host_name(), "node-a");
  EXPECT_EQ(state->events.at(3).at(1).missed(), 9);
  EXPECT_EQ(state->stats.at(3).step(), 12);
  EXPECT_EQ(state->requests.at("r1").method, "drain");
  EXPECT_EQ(state->requests.at("r1").answer.name(), "gpt");
  EXPECT_EQ(state->last_generations.at("gpt"), 4);
  EXPECT_EQ(state->last_job_id, 3);
}

TEST_F(SqliteStateStoreTest, ReplacesAndErases) {
  const auto store = Open();
  StateChange change = OneJob(1, "a");
  change.members[1][0].set_incarnation("old");
  change.members[1][1].set_incarnation("old");
  change.events[1][1];
  change.stats[1];
  change.requests["r1"].method = "drain";
  ASSERT_TRUE(store->Commit(change).ok());

  StateChange next = OneJob(1, "a", /*durable=*/false);
  next.jobs[1].job.set_step(13);
  next.new_generations = {1};
  next.members[1][0].set_incarnation("new");
  next.erased_requests = {"r1"};
  ASSERT_TRUE(store->Commit(next).ok());
  StoredState state = *store->Load();
  EXPECT_EQ(state.jobs.at(1).job.step(), 13);
  ASSERT_EQ(state.members.at(1).size(), 1u);
  EXPECT_EQ(state.members.at(1).at(0).incarnation(), "new");
  EXPECT_TRUE(state.requests.empty());

  StateChange progress;
  progress.progress[1].set_step(14);
  progress.progress[2].set_step(14);  // there is no such job
  ASSERT_TRUE(store->Commit(progress).ok());
  state = *store->Load();
  EXPECT_EQ(state.jobs.at(1).job.step(), 14);
  EXPECT_EQ(state.jobs.at(1).spec.steps(), 600);
  EXPECT_EQ(state.jobs.count(2), 0u);

  StateChange erase;
  erase.erased_jobs = {1};
  ASSERT_TRUE(store->Commit(erase).ok());
  state = *store->Load();
  EXPECT_TRUE(state.jobs.empty());
  EXPECT_TRUE(state.members.empty());
  EXPECT_TRUE(state.events.empty());
  EXPECT_TRUE(state.stats.empty());
}

TEST_F(SqliteStateStoreTest, DropsTheOldestEvents) {
  const auto store = Open();
  StateChange change = OneJob(1, "a");
  for (int64_t cursor = 1; cursor <= kMaxStoredEvents; ++cursor) change.events[1][cursor];
  ASSERT_TRUE(store->Commit(change).ok());
  StateChange more;
  more.events[1][kMaxStoredEvents + 1];
  more.events[1][kMaxStoredEvents + 2];
  ASSERT_TRUE(store->Commit(more).ok());
  const StoredEvents events = store->Load()->events.at(1);
  EXPECT_EQ(static_cast<int64_t>(events.size()), kMaxStoredEvents);
  EXPECT_EQ(events.begin()->first, 3);
}

// The limit on a file's length is a disk that is full from the process's point of view.
TEST_F(SqliteStateStoreTest, SaysThatTheDiskIsFullAndGoesOnWhenItIsNot) {
  const auto store = Open();
  ASSERT_TRUE(store->Commit(OneJob(1, "a")).ok());
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const std::filesystem::path wal = File().string() + "-wal";
  rlimit full = before;
  full.rlim_cur = std::filesystem::file_size(wal);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  StateChange large = OneJob(2, "b");
  large.jobs[2].job.set_reason(std::string(100000, 'x'));
  const absl::Status status = store->Commit(large);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find(File().string()), std::string::npos) << status;
  EXPECT_NE(status.message().find("full"), std::string::npos) << status;
  EXPECT_EQ(store->Load()->jobs.size(), 1u);
  EXPECT_TRUE(store->Commit(large).ok());
  EXPECT_EQ(store->Load()->jobs.size(), 2u);
}

// While it lives, the thread is bound to files' modes also where its user is root.
class WithoutOverride {
 public:
  WithoutOverride() {
    EXPECT_EQ(syscall(SYS_capget, &header_, before_), 0);
    __user_cap_data_struct less[2] = {before_[0], before_[1]};
    less[0].effective &= ~((1u << CAP_DAC_OVERRIDE) | (1u << CAP_DAC_READ_SEARCH));
    EXPECT_EQ(syscall(SYS_capset, &header_, less), 0);
  }
  ~WithoutOverride() { EXPECT_EQ(syscall(SYS_capset, &header_, before_), 0); }

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2];
};

TEST_F(SqliteStateStoreTest, RefusesAFileThatCannotBeWritten) {
  Open().reset();
  ASSERT_EQ(chmod(File().c_str(), 0444), 0);
  ASSERT_EQ(chmod(dir_.c_str(), 0555), 0);
  absl::Status status;
  {
    const WithoutOverride nothing_is_read_only_to_root;
    status = OpenFails();
  }
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find(File().string()), std::string::npos) << status;
  EXPECT_NE(status.message().find("cannot be written"), std::string::npos) << status;
}

TEST_F(SqliteStateStoreTest, RefusesAFolderThatCannotBeMade) {
  std::ofstream(dir_) << "a file";
  const absl::Status status = OpenFails();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("cannot be made"), std::string::npos) << status;
}

TEST_F(SqliteStateStoreTest, RefusesATruncatedFile) {
  {
    const auto store = Open();
    StateChange change = OneJob(1, "a");
    change.jobs[1].job.set_reason(std::string(200000, 'x'));
    ASSERT_TRUE(store->Commit(change).ok());
  }
  std::filesystem::resize_file(File(), std::filesystem::file_size(File()) / 2);
  const absl::Status status = OpenFails();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(status.message().find(File().string()), std::string::npos) << status;
  EXPECT_NE(status.message().find("move it"), std::string::npos) << status;
}

TEST_F(SqliteStateStoreTest, RefusesBytesOfNoDatabase) {
  std::filesystem::create_directories(dir_);
  std::ofstream(File()) << std::string(8192, 'x');
  EXPECT_EQ(OpenFails().code(), absl::StatusCode::kDataLoss) << OpenFails();
}

TEST_F(SqliteStateStoreTest, SaysThatAMessageCannotBeRead) {
  ASSERT_TRUE(Open()->Commit(OneJob(1, "a")).ok());
  Execute("UPDATE jobs SET spec = x'ffff'");
  const absl::Status status = Open()->Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(status.message().find("tessera.v1.JobSpec"), std::string::npos) << status;
}

TEST_F(SqliteStateStoreTest, LeavesANewerSchemaAlone) {
  Open().reset();
  Execute("PRAGMA user_version = 2");
  const absl::Status status = OpenFails();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("has schema 2 and this coordinator knows up to 1"),
            std::string::npos)
      << status;
  Execute("PRAGMA user_version = 1");
  EXPECT_NE(Open(), nullptr);
}

TEST_F(SqliteStateStoreTest, LeavesAnotherProgramsFileAlone) {
  std::filesystem::create_directories(dir_);
  Execute("CREATE TABLE theirs (x)");
  const absl::Status status = OpenFails();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("is not a coordinator's"), std::string::npos) << status;
}

// A process that opens the store, says so, commits job after job and says which are committed,
// until it is killed.
pid_t StartWriter(const std::string& dir, int acknowledged) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  auto store = OpenSqliteStateStore(dir);
  for (int64_t id = 1; store.ok(); ++id) {
    StateChange change;
    change.durable = true;
    change.jobs[id].id = id;
    if (!(*store)->Commit(change).ok()) break;
    if (write(acknowledged, &id, sizeof(id)) != sizeof(id)) break;
  }
  _exit(1);
}

TEST_F(SqliteStateStoreTest, IsOneProcesssUntilThatIsKilledAndKeepsWhatItWasTold) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  const pid_t pid = StartWriter(dir_.string(), to.get());
  ASSERT_GT(pid, 0);
  to = UniqueFd();
  int64_t last = 0;
  while (last < 20) ASSERT_EQ(read(from.get(), &last, sizeof(last)), ssize_t{sizeof(last)});

  const absl::Status status = OpenFails();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("another coordinator has it"), std::string::npos) << status;

  kill(pid, SIGKILL);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  for (int64_t id = 0; read(from.get(), &id, sizeof(id)) == sizeof(id);) last = id;
  const auto state = Open()->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  for (int64_t id = 1; id <= last; ++id) EXPECT_EQ(state->jobs.count(id), 1u) << id;
}

}  // namespace
}  // namespace tessera
