#include "worker/agent.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "common/errors.h"
#include "common/unique_fd.h"
#include "worker/fake_membership_service.h"

namespace tessera {
namespace {

std::string TestProgram() {
  return std::string(getenv("TEST_SRCDIR")) + "/tessera/worker/agent_test_program";
}

v1::AttendResponse FormOf(int ranks) {
  v1::AttendResponse response;
  v1::FormHost& form = *response.mutable_form_host();
  form.set_job("job");
  form.set_generation(1);
  form.set_host(7);
  form.mutable_spec()->set_name("job");
  form.mutable_host_forecast()->set_unsharded_file_bytes(3 * 4096);
  form.mutable_host_forecast()->set_gradient_file_bytes(2 * 4096);
  form.mutable_host_forecast()->set_control_file_bytes(4096);
  form.mutable_host_forecast()->set_mapped_bytes(6 * 4096);
  for (int rank = 0; rank < ranks; ++rank) {
    v1::Assignment& assignment = *form.add_assignments();
    assignment.set_rank(rank);
    assignment.set_world_size(ranks);
    assignment.set_local_world_size(ranks);
    v1::RankForecast& forecast = *form.add_rank_forecasts();
    forecast.set_rank(rank);
    forecast.set_mapped_bytes(4096 * (rank + 1));
  }
  return response;
}

// The same ranks, to build the model first.
v1::AttendResponse DraftOf(int ranks) {
  v1::AttendResponse response = FormOf(ranks);
  response.mutable_form_host()->set_draft(true);
  response.mutable_form_host()->clear_host_forecast();
  response.mutable_form_host()->clear_rank_forecasts();
  return response;
}

v1::AttendResponse EndOf(v1::JobState state) {
  v1::AttendResponse response;
  response.mutable_end()->set_state(state);
  response.mutable_end()->set_reason("because");
  return response;
}

bool IsJoin(const v1::AttendRequest& request) { return request.has_join_host(); }
bool IsExit(const v1::AttendRequest& request) { return request.has_worker_exited(); }
bool IsLeave(const v1::AttendRequest& request) { return request.has_leave(); }

// Descriptors of this process that only a job makes.
int JobDescriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    char name[256] = {};
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(link.c_str(), name, sizeof(name) - 1) < 0) continue;
    const std::string target = name;
    count += target.find("memfd:tessera") != std::string::npos ||
             target.find("pidfd") != std::string::npos;
  }
  closedir(directory);
  return count;
}

class AgentTest : public testing::Test {
 protected:
  AgentTest() {
    v1::Welcome welcome;
    welcome.set_host(7);
    welcome.mutable_heartbeat()->set_seconds(3600);
    service_.WelcomeJoins(welcome);
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    stop_read_.Reset(ends[0]);
    stop_write_.Reset(ends[1]);
  }

  // Every grace is longer than a test, but for those that a test sets to see it pass.
  Agent::Options Options(std::vector<std::string> actions) {
    Agent::Options options;
    options.coordinator = service_.address();
    options.local_workers = 2;
    options.job = "job";
    options.host_name = "testhost";
    options.program = {TestProgram()};
    options.program.insert(options.program.end(), actions.begin(), actions.end());
    options.stop_fd = stop_read_.get();
    options.end_grace = options.failure_grace = options.stop_grace = options.coordinator_grace =
        absl::Hours(1);
    options.leave_timeout = absl::Minutes(1);
    return options;
  }

  void Start(Agent::Options options) {
    result_ = std::async(std::launch::async, [options] {
      absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Create(options);
      EXPECT_TRUE(agent.ok()) << agent.status();
      return static_cast<int>((*agent)->Run());
    });
  }

  // Starts an agent and forms a job of two ranks on it.
  void StartAndForm(Agent::Options options) {
    Start(std::move(options));
    service_.AwaitRequest(IsJoin);
    service_.Send(FormOf(2));
  }

  void Stop() {
    const signalfd_siginfo signal = {};
    ASSERT_EQ(write(stop_write_.get(), &signal, sizeof(signal)),
              static_cast<ssize_t>(sizeof(signal)));
  }

  // A pipe with a name, for ranks to say that they are there.
  std::string Fifo() {
    fifo_path_ = testing::TempDir() + "/agent_test_fifo_" + std::to_string(getpid());
    unlink(fifo_path_.c_str());
    EXPECT_EQ(mkfifo(fifo_path_.c_str(), 0600), 0);
    fifo_.Reset(open(fifo_path_.c_str(), O_RDWR | O_CLOEXEC));
    return fifo_path_;
  }

  void AwaitRanks(int count) {
    for (char byte = 0; count > 0; --count) ASSERT_EQ(read(fifo_.get(), &byte, 1), 1);
    unlink(fifo_path_.c_str());
  }

  // The agent's exit code, after a look that it left nothing behind.
  int Result() {
    fifo_.Reset();
    const int code = result_.get();
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(JobDescriptors(), 0);
    return code;
  }

  FakeMembershipService service_;
  UniqueFd stop_read_, stop_write_;
  UniqueFd fifo_;
  std::string fifo_path_;
  std::future<int> result_;
};

TEST_F(AgentTest, StartsRanksThatBuildTheModelBeforeThereAreFiles) {
  Start(Options({"check", "check"}));
  service_.AwaitRequest(IsJoin);
  service_.Send(DraftOf(2));
  service_.Send(FormOf(2));
  for (const v1::AttendRequest& exited : service_.AwaitRequests(2, IsExit)) {
    EXPECT_EQ(exited.worker_exited().exit_code(), 0);
  }
  service_.Send(EndOf(v1::SUCCEEDED));
  EXPECT_EQ(Result(), Agent::kOk);
}

TEST_F(AgentTest, RanksThatBuildEndWithTheJob) {
  Agent::Options options = Options({"wait", "wait"});
  options.end_grace = absl::ZeroDuration();
  Start(options);
  service_.AwaitRequest(IsJoin);
  service_.Send(DraftOf(2));
  service_.Send(EndOf(v1::FAILED));
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, AModelThatDoesNotFitEndsTheJobWithBothFigures) {
  Start(Options({"wait", "wait"}));
  service_.AwaitRequest(IsJoin);
  service_.Send(DraftOf(2));
  v1::AttendResponse form = FormOf(2);
  form.mutable_form_host()->mutable_host_forecast()->set_mapped_bytes(int64_t{1} << 60);
  service_.Send(form);
  const v1::AttendRequest left = service_.AwaitRequest(IsLeave);
  EXPECT_EQ(left.leave().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, GivesEachWorkerItsFilesAndNothingElse) {
  StartAndForm(Options({"check", "check"}));
  const v1::JoinHost join = service_.AwaitRequest(IsJoin).join_host();
  EXPECT_EQ(join.host_name(), "testhost");
  EXPECT_EQ(join.local_workers(), 2);
  EXPECT_EQ(join.job(), "job");
  EXPECT_EQ(join.pid(), getpid());
  EXPECT_EQ(join.incarnation().size(), 32u);
  EXPECT_EQ(join.program(), "");
  for (const v1::AttendRequest& exit : service_.AwaitRequests(2, IsExit)) {
    EXPECT_EQ(exit.worker_exited().exit_code(), 0);
    EXPECT_EQ(exit.worker_exited().signal(), 0);
  }
  service_.Send(EndOf(v1::SUCCEEDED));
  EXPECT_EQ(Result(), Agent::kOk);
  EXPECT_EQ(service_.AwaitRequest(IsLeave).leave().code(), 0);
}

TEST_F(AgentTest, AnotherJobsFailureIsThisAgentsFailure) {
  StartAndForm(Options({"exit:0", "exit:0"}));
  service_.AwaitRequests(2, IsExit);
  service_.Send(EndOf(v1::FAILED));
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, ReportsAKilledWorkerAndEndsTheOthersAtTheGenerationsEnd) {
  Agent::Options options = Options({"wait", "kill:9"});
  options.end_grace = absl::ZeroDuration();
  StartAndForm(options);
  const v1::WorkerExited exited = service_.AwaitRequest(IsExit).worker_exited();
  EXPECT_EQ(exited.rank(), 1);
  EXPECT_EQ(exited.signal(), 9);
  EXPECT_EQ(exited.exit_code(), 0);
  service_.Send(EndOf(v1::FAILED));
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, ReportsAWorkersExitCode) {
  StartAndForm(Options({"exit:3", "exit:0"}));
  for (const v1::AttendRequest& exit : service_.AwaitRequests(2, IsExit)) {
    EXPECT_EQ(exit.worker_exited().exit_code(), exit.worker_exited().rank() == 0 ? 3 : 0);
    EXPECT_EQ(exit.worker_exited().signal(), 0);
  }
  service_.Send(EndOf(v1::SUCCEEDED));
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, KillsTheOthersWhenTheCoordinatorSaysNothing) {
  Agent::Options options = Options({"stubborn", "kill:9"});
  options.failure_grace = absl::ZeroDuration();
  options.coordinator_grace = absl::ZeroDuration();
  StartAndForm(options);
  EXPECT_EQ(Result(), Agent::kFailed);
  const v1::Leave leave = service_.AwaitRequest(IsLeave).leave();
  EXPECT_EQ(leave.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(leave.blamed_rank(), 1);
  EXPECT_NE(leave.message().find("rank 1"), std::string::npos) << leave.message();
}

TEST_F(AgentTest, ACoordinatorThatNeverEndsTheJobIsUnavailable) {
  Agent::Options options = Options({"exit:0", "exit:0"});
  options.coordinator_grace = absl::ZeroDuration();
  StartAndForm(options);
  EXPECT_EQ(Result(), Agent::kUnavailable);
}

TEST_F(AgentTest, KeepsItsWorkersForTheNextCoordinatorAndSaysWhoEnded) {
  StartAndForm(Options({"wait", "exit:0"}));
  service_.AwaitRequests(1, IsExit);
  service_.Kill();
  FakeMembershipService next(service_.address());
  const v1::JoinHost join = next.AwaitRequest(IsJoin).join_host();
  EXPECT_EQ(join.serving_job(), "job");
  EXPECT_EQ(join.generation(), 1);
  ASSERT_EQ(join.living_ranks_size(), 1);
  EXPECT_EQ(join.living_ranks(0), 0);
  EXPECT_EQ(join.incarnation(), service_.AwaitRequest(IsJoin).join_host().incarnation());
  EXPECT_EQ(next.AwaitRequest(IsExit).worker_exited().rank(), 1);
  next.Send(EndOf(v1::CANCELLED));
  Stop();  // ends the one that waits
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, EndsItsWorkersWhenTheCoordinatorIsGoneForGood) {
  Agent::Options options = Options({"wait", "exit:0"});
  options.coordinator_timeout = absl::Milliseconds(1);
  options.end_grace = absl::ZeroDuration();
  StartAndForm(options);
  service_.AwaitRequests(1, IsExit);
  service_.Kill();
  EXPECT_EQ(Result(), Agent::kUnavailable);
}

// Generation 2 of a job that can go on.
v1::AttendResponse RecoverOf(int ranks) {
  v1::AttendResponse response = FormOf(ranks);
  v1::FormHost& form = *response.mutable_form_host();
  form.set_generation(2);
  form.set_recover(true);
  form.set_run("run");
  form.set_attempt(2);
  for (v1::Assignment& assignment : *form.mutable_assignments()) assignment.set_generation(2);
  return response;
}

v1::AttendResponse FirstOf(int ranks) {
  v1::AttendResponse response = FormOf(ranks);
  response.mutable_form_host()->mutable_spec()->set_max_recoveries(3);
  for (v1::Assignment& assignment : *response.mutable_form_host()->mutable_assignments())
    assignment.set_generation(1);
  return response;
}

TEST_F(AgentTest, StartsALostRankAgainOverItsFileAndTellsTheOthers) {
  Agent::Options options = Options({"survive", "die", Fifo()});
  options.failure_grace = absl::ZeroDuration();  // not for a job that can recover
  Start(options);
  service_.AwaitRequest(IsJoin);
  service_.Send(FirstOf(2));
  AwaitRanks(2);
  const v1::WorkerExited lost = service_.AwaitRequest(IsExit).worker_exited();
  EXPECT_EQ(lost.rank(), 1);
  EXPECT_EQ(lost.signal(), 9);
  EXPECT_EQ(lost.generation(), 1);
  service_.Send(EndOf(v1::RECOVERING));
  service_.Send(RecoverOf(2));
  const std::vector<v1::AttendRequest> exits = service_.AwaitRequests(3, IsExit);
  for (size_t i = 1; i < exits.size(); ++i) {
    EXPECT_EQ(exits[i].worker_exited().exit_code(), 0) << exits[i].worker_exited().rank();
    EXPECT_EQ(exits[i].worker_exited().generation(), 2);
  }
  service_.Send(EndOf(v1::SUCCEEDED));
  EXPECT_EQ(Result(), Agent::kOk);  // what was lost on the way is no failure
}

TEST_F(AgentTest, RestartsARankThatIsStuck) {
  Start(Options({"survive", "hang", Fifo()}));
  service_.AwaitRequest(IsJoin);
  service_.Send(FirstOf(2));
  AwaitRanks(2);
  service_.Send(EndOf(v1::RECOVERING));
  v1::AttendResponse form = RecoverOf(2);
  form.mutable_form_host()->add_restart_ranks(1);
  service_.Send(form);
  for (const v1::AttendRequest& exit : service_.AwaitRequests(2, IsExit)) {
    EXPECT_EQ(exit.worker_exited().generation(), 2);
    EXPECT_EQ(exit.worker_exited().exit_code(), 0) << exit.worker_exited().rank();
  }
  service_.Send(EndOf(v1::SUCCEEDED));
  EXPECT_EQ(Result(), Agent::kOk);
}

TEST_F(AgentTest, FormsAnewWithoutWhatWasThere) {
  Start(Options({"fresh", "fresh", Fifo()}));
  service_.AwaitRequest(IsJoin);
  service_.Send(FirstOf(2));
  AwaitRanks(2);
  service_.Send(EndOf(v1::RECOVERING));
  v1::AttendResponse form = RecoverOf(2);
  form.mutable_form_host()->set_recover(false);
  service_.Send(form);
  for (const v1::AttendRequest& exit : service_.AwaitRequests(2, IsExit)) {
    EXPECT_EQ(exit.worker_exited().exit_code(), 0) << exit.worker_exited().rank();
    EXPECT_EQ(exit.worker_exited().generation(), 2);
  }
  service_.Send(EndOf(v1::SUCCEEDED));
  EXPECT_EQ(Result(), Agent::kOk);
}

TEST_F(AgentTest, AnotherLayoutThanTheFilesHaveIsRefused) {
  Start(Options({"survive", "die", Fifo()}));
  service_.AwaitRequest(IsJoin);
  service_.Send(FirstOf(2));
  AwaitRanks(2);
  service_.AwaitRequest(IsExit);
  service_.Send(EndOf(v1::RECOVERING));
  v1::AttendResponse form = RecoverOf(2);
  form.mutable_form_host()->mutable_rank_forecasts(1)->set_mapped_bytes(4096 * 9);
  service_.Send(form);
  const v1::Leave leave = service_.AwaitRequest(IsLeave).leave();
  EXPECT_EQ(leave.code(), static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_NE(leave.message().find("another layout"), std::string::npos) << leave.message();
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, AStopSaysWhyBeforeItEndsTheWorkers) {
  StartAndForm(Options({"wait", "exit:0"}));
  service_.AwaitRequests(1, IsExit);  // the workers run
  Stop();
  EXPECT_EQ(Result(), Agent::kFailed);
  const v1::Leave leave = service_.AwaitRequest(IsLeave).leave();
  EXPECT_EQ(leave.code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(leave.message(), "the agent of host testhost was told to stop");
}

TEST_F(AgentTest, AStopKillsWorkersThatDoNotListen) {
  Agent::Options options = Options({"stubborn", "exit:0"});
  options.stop_grace = absl::ZeroDuration();
  StartAndForm(options);
  service_.AwaitRequests(1, IsExit);
  Stop();
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, ASecondStopDoesNotWait) {
  StartAndForm(Options({"stubborn", "exit:0"}));
  service_.AwaitRequests(1, IsExit);
  Stop();
  Stop();
  EXPECT_EQ(Result(), Agent::kFailed);
}

TEST_F(AgentTest, AStopWithoutAJobIsNoFailure) {
  Start(Options({}));
  service_.AwaitRequest(IsJoin);
  Stop();
  EXPECT_EQ(Result(), Agent::kOk);
  service_.AwaitRequest(IsLeave);
}

TEST_F(AgentTest, ARefusedHostExitsWithPrecondition) {
  service_.RefuseJoins(
      WithReason(absl::FailedPreconditionError("job is on host a"), "SECOND_HOST"));
  Start(Options({}));
  EXPECT_EQ(Result(), Agent::kPrecondition);
}

TEST_F(AgentTest, SaysWhichProgramOfSomebodysOwnItRuns) {
  Agent::Options options = Options({});
  options.attached = true;
  Start(options);
  EXPECT_EQ(service_.AwaitRequest(IsJoin).join_host().program(), TestProgram());
  Stop();
  EXPECT_EQ(Result(), Agent::kOk);
}

TEST_F(AgentTest, AnUnknownJobIsNotFound) {
  service_.RefuseJoins(absl::NotFoundError("no such job"));
  Start(Options({}));
  EXPECT_EQ(Result(), Agent::kNotFound);
}

TEST_F(AgentTest, ACoordinatorThatIsNotThereIsUnavailable) {
  service_.Kill();
  Agent::Options options = Options({});
  options.connect_timeout = absl::Milliseconds(50);
  options.leave_timeout = absl::ZeroDuration();
  Start(options);
  EXPECT_EQ(Result(), Agent::kUnavailable);
}

TEST_F(AgentTest, AJobThatDoesNotFitIsLeftWithTheFigures) {
  Start(Options({"check", "check"}));
  service_.AwaitRequest(IsJoin);
  v1::AttendResponse form = FormOf(2);
  form.mutable_form_host()->mutable_host_forecast()->set_mapped_bytes(int64_t{1} << 60);
  service_.Send(form);
  EXPECT_EQ(Result(), Agent::kFailed);
  const v1::Leave leave = service_.AwaitRequest(IsLeave).leave();
  EXPECT_EQ(leave.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  // 2^60 shared, and 1 + 2 pages of the ranks.
  EXPECT_NE(leave.message().find("needs 1152921504606859264 bytes"), std::string::npos)
      << leave.message();
}

TEST_F(AgentTest, AProgramThatCannotBeStartedFailsTheHost) {
  Agent::Options options = Options({});
  options.program = {"/no/such/program"};
  StartAndForm(options);
  EXPECT_EQ(Result(), Agent::kNotFound);
  EXPECT_NE(service_.AwaitRequest(IsLeave).leave().message().find("/no/such/program"),
            std::string::npos);
}

TEST(AgentOptionsTest, RefusesWhatMakesNoSense) {
  const Agent::Options good = {.coordinator = "localhost:1", .program = {"/bin/true"}};
  EXPECT_TRUE(Agent::Create(good).ok());
  for (const int workers : {0, -1, 129}) {
    Agent::Options bad = good;
    bad.local_workers = workers;
    EXPECT_EQ(Field(Agent::Create(bad).status()), "--local_workers") << workers;
  }
  Agent::Options bad = good;
  bad.coordinator = "";
  EXPECT_EQ(Field(Agent::Create(bad).status()), "--coordinator");
  bad = good;
  bad.program.clear();
  EXPECT_EQ(Field(Agent::Create(bad).status()), "PROGRAM");
}

}  // namespace
}  // namespace tessera
