// A coordinator is killed with SIGKILL again and again while a job runs, and started again over its
// folder, on its port. Everybody else is real, but that the ranks only say that they compute.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/unique_fd.h"
#include "worker/host_presence.h"
#include "worker/membership_client.h"
#include "worker/steady_attendance.h"

namespace tessera {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int kSteps = 120;
constexpr int kWorkers = 2;

class CoordinatorProcess {
 public:
  explicit CoordinatorProcess(std::string state_dir) : state_dir_(std::move(state_dir)) {}
  ~CoordinatorProcess() { Kill(); }

  // Returns when it serves; on the port that it had before.
  void Start() {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd from(ends[0]);
    UniqueFd to(ends[1]);
    const std::string program =
        absl::StrCat(getenv("TEST_SRCDIR"), "/tessera/coordinator/tessera-coordinator");
    std::vector<std::string> words = {program, absl::StrCat("--listen=", address_),
                                      absl::StrCat("--state_dir=", state_dir_)};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
    ASSERT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    to.Reset();
    std::string line;
    char letter = 0;
    while (read(from.get(), &letter, 1) == 1 && letter != '\n') line.push_back(letter);
    ASSERT_EQ(line.rfind("listening ", 0), 0u) << line;
    address_ = line.substr(10);
  }

  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  const std::string& address() const { return address_; }

 private:
  const std::string state_dir_;
  std::string address_ = "127.0.0.1:0";
  pid_t pid_ = 0;
};

v1::JobSpec Spec() {
  v1::JobSpec spec;
  spec.set_name("gpt");
  spec.mutable_model()->set_builtin("gpt");
  spec.mutable_model()->set_layers(1);
  spec.mutable_model()->set_width(8);
  spec.mutable_model()->set_heads(2);
  spec.mutable_model()->set_context(8);
  spec.set_global_batch(12);
  spec.set_steps(kSteps);
  spec.mutable_mesh()->set_min_workers(kWorkers);
  spec.mutable_mesh()->set_max_workers(kWorkers);
  return spec;
}

// An agent that starts nothing.
class Host {
 public:
  explicit Host(const std::string& coordinator) : presence_(Join()) {
    attendance_ = std::make_unique<SteadyAttendance>(
        AttendClient::Options{.coordinator = coordinator},
        SteadyAttendance::Handlers{
            .opening = [this](bool again) { return presence_.Opening(again); },
            .on_response =
                [this](const v1::AttendResponse& response) {
                  if (response.has_form_host()) {
                    presence_.Serves(response.form_host());
                    formed_.set_value(response.form_host());
                  }
                  if (response.has_end()) ended_.set_value(response.end());
                  return !response.has_end();
                },
            .on_done = [](const absl::Status&) {}});
  }

  v1::FormHost Formed() { return formed_.get_future().get(); }
  v1::EndGeneration Ended() { return ended_.get_future().get(); }

 private:
  static v1::JoinHost Join() {
    v1::JoinHost join;
    join.set_host_name("node-a");
    join.set_local_workers(kWorkers);
    join.set_job("gpt");
    join.set_incarnation("host");
    join.set_pid(getpid());
    return join;
  }

  HostPresence presence_;
  std::promise<v1::FormHost> formed_;
  std::promise<v1::EndGeneration> ended_;
  std::unique_ptr<SteadyAttendance> attendance_;
};

class Rank {
 public:
  Rank(const std::string& coordinator, int rank)
      : rank_(rank), client_(CreateMembershipClient(coordinator)) {}

  void Begin() {
    v1::JoinRank join;
    join.set_job("gpt");
    join.set_generation(1);
    join.set_rank(rank_);
    join.set_incarnation(absl::StrCat("rank", rank_));
    join.set_pid(getpid());
    const absl::Status joined = client_->JoinRank(
        join, kLong, [](const absl::Status& end) { ADD_FAILURE() << "ended: " << end; });
    EXPECT_TRUE(joined.ok()) << joined;
    const absl::Status started = client_->AwaitStart(4096, 0, kLong);
    EXPECT_TRUE(started.ok()) << started;
  }

  void Step(int64_t step) {
    v1::ReportStatsRequest report;
    report.set_job("gpt");
    report.set_generation(1);
    report.set_rank(rank_);
    report.set_incarnation(absl::StrCat("rank", rank_));
    report.set_step(step);
    if (rank_ == 0) report.add_progress()->set_step(step);
    client_->ReportStats(std::move(report));
  }

  void Finish() { client_->Leave(absl::OkStatus(), std::nullopt, kLong); }

 private:
  const int rank_;
  const std::unique_ptr<MembershipClient> client_;
};

TEST(RestartsTest, NoStepIsLostOrToldTwice) {
  const std::filesystem::path state = std::filesystem::path(::testing::TempDir()) / "restarts";
  std::filesystem::remove_all(state);
  CoordinatorProcess coordinator(state.string());
  coordinator.Start();
  Client client(coordinator.address());
  const auto created = client.CreateJob(Spec(), /*validate_only=*/false);
  ASSERT_TRUE(created.ok()) << created.status();
  std::vector<int64_t> told;
  auto watch = std::async(std::launch::async, [&] {
    return client.WatchJob("gpt", {.on_event = [&](const v1::WatchJobResponse& event) {
                             if (event.has_progress()) told.push_back(event.progress().step());
                             EXPECT_EQ(event.missed(), 0);
                           }});
  });
  Host host(coordinator.address());
  EXPECT_EQ(host.Formed().assignments_size(), kWorkers);
  Rank first(coordinator.address(), 0), second(coordinator.address(), 1);
  std::thread other([&] { second.Begin(); });
  first.Begin();
  other.join();

  for (int64_t step = 1; step <= kSteps; ++step) {
    first.Step(step);
    second.Step(step);
    if (step % 20 == 10) coordinator.Kill();
    if (step % 20 == 15) coordinator.Start();
  }
  coordinator.Kill();
  std::thread leaving([&] { second.Finish(); });
  coordinator.Start();
  first.Finish();
  leaving.join();

  EXPECT_EQ(host.Ended().state(), v1::SUCCEEDED);
  const absl::StatusOr<v1::Job> job = watch.get();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::SUCCEEDED) << job->reason();
  EXPECT_EQ(job->step(), kSteps);
  EXPECT_EQ(job->generation(), 1);
  EXPECT_EQ(job->recoveries(), 0);
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= kSteps; ++step) steps.push_back(step);
  EXPECT_EQ(told, steps);
  coordinator.Kill();
  std::filesystem::remove_all(state);
}

}  // namespace
}  // namespace tessera
