#include "client/local_cluster.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Far more than any step takes; only against hanging.
absl::Time Deadline() { return absl::Now() + absl::Seconds(30); }

std::string TempDirectory(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path.string();
}

void WriteProgram(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
  chmod(path.c_str(), 0755);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> StartShell(const std::string& script) {
  return ChildProcess::Start({"/bin/sh", "-c", script}, ChildProcess::Stdout::kPipe);
}

TEST(ChildProcessTest, ReadsLinesUntilTheOutputEnds) {
  const auto child = StartShell("echo one; printf 'two\nthr'; printf 'ee\n'");
  ASSERT_TRUE(child.ok()) << child.status();
  for (const char* line : {"one", "two", "three"}) {
    EXPECT_EQ((*child)->ReadLine(Deadline(), -1).value(), line);
  }
  EXPECT_TRUE(absl::IsUnavailable((*child)->ReadLine(Deadline(), -1).status()));
}

TEST(ChildProcessTest, TellsHowItEnded) {
  const auto exits = StartShell("exit 3");
  ASSERT_TRUE(exits.ok());
  ASSERT_TRUE((*exits)->WaitUntil(Deadline(), -1));
  EXPECT_EQ((*exits)->Ending(), "exited with code 3");
  (*exits)->KillGroup();
  EXPECT_EQ((*exits)->Ending(), "exited with code 3");

  const auto killed = StartShell("kill -TERM $$");
  ASSERT_TRUE(killed.ok());
  ASSERT_TRUE((*killed)->WaitUntil(Deadline(), -1));
  EXPECT_EQ((*killed)->Ending(), "was killed by signal 15 (Terminated)");
}

TEST(ChildProcessTest, SaysThatAProgramCannotBeStarted) {
  const auto child = ChildProcess::Start({"/nonexistent/program"}, ChildProcess::Stdout::kToStderr);
  EXPECT_TRUE(absl::IsUnavailable(child.status()));
  EXPECT_EQ(child.status().message(),
            "/nonexistent/program: cannot be started: No such file or directory");
}

TEST(ChildProcessTest, TerminatesOnRequest) {
  const auto child = StartShell("trap 'exit 7' TERM; echo ready; while :; do read x; done");
  ASSERT_TRUE(child.ok());
  ASSERT_EQ((*child)->ReadLine(Deadline(), -1).value(), "ready");
  EXPECT_FALSE((*child)->WaitUntil(absl::Now(), -1));
  EXPECT_EQ((*child)->Ending(), "is running");
  (*child)->Terminate();
  EXPECT_TRUE((*child)->WaitUntil(Deadline(), -1));
  EXPECT_EQ((*child)->Ending(), "exited with code 7");
}

TEST(ChildProcessTest, StopsWaitingWhenInterrupted) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  const auto child = StartShell("while :; do sleep 1000; done");
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(absl::IsCancelled((*child)->ReadLine(absl::InfiniteFuture(), ends[0]).status()));
  EXPECT_FALSE((*child)->WaitUntil(Deadline(), ends[0]));
  close(ends[0]);
  close(ends[1]);
}

TEST(ChildProcessTest, KillsTheWholeGroup) {
  const auto child = StartShell("sleep 1000 & echo $!; wait");
  ASSERT_TRUE(child.ok());
  const int grandchild = std::stoi((*child)->ReadLine(Deadline(), -1).value());
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, grandchild, 0)));
  ASSERT_TRUE(pidfd.valid());
  (*child)->KillGroup();
  EXPECT_EQ((*child)->Ending(), "was killed by signal 9 (Killed)");
  pollfd wait = {pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 30'000), 1);
}

TEST(ChildProcessTest, LeadsAGroupOfItsOwn) {
  const auto child = StartShell("echo ready; sleep 1000");
  ASSERT_TRUE(child.ok());
  ASSERT_EQ((*child)->ReadLine(Deadline(), -1).value(), "ready");
  EXPECT_EQ(getpgid((*child)->pid()), (*child)->pid());
}

TEST(ChildProcessTest, DiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const auto child = StartShell("sleep 1000");
    const pid_t pid = child.ok() ? (*child)->pid() : 0;
    if (write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    pause();
  }
  pid_t child = 0;
  ASSERT_EQ(read(ends[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  ASSERT_GT(child, 0);
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(pidfd.valid());
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  pollfd wait = {pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 30'000), 1);
  close(ends[0]);
  close(ends[1]);
}

TEST(LocalBinariesTest, FindsThemBesideOrAsBazelBuildsThem) {
  const std::string installed = TempDirectory("installed");
  WriteProgram(installed + "/tessera-coordinator", "");
  WriteProgram(installed + "/tessera-worker", "");
  const auto beside = FindLocalBinaries(installed);
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(beside->coordinator, installed + "/tessera-coordinator");
  EXPECT_EQ(beside->worker, installed + "/tessera-worker");

  const std::string bin = TempDirectory("bin");
  WriteProgram(bin + "/coordinator/tessera-coordinator", "");
  WriteProgram(bin + "/worker/tessera-worker", "");
  const auto built = FindLocalBinaries(bin + "/client");
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_EQ(built->coordinator, bin + "/coordinator/tessera-coordinator");
  EXPECT_EQ(built->worker, bin + "/worker/tessera-worker");
}

TEST(LocalBinariesTest, SaysWhereItLooked) {
  const std::string empty = TempDirectory("empty");
  const auto missing = FindLocalBinaries(empty + "/client");
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()),
              AllOf(HasSubstr(empty + "/client/tessera-coordinator"),
                    HasSubstr(empty + "/coordinator/tessera-coordinator")));
}

TEST(ListeningLineTest, TakesTheAddress) {
  EXPECT_EQ(ParseListeningLine("listening 127.0.0.1:4020").value(), "127.0.0.1:4020");
  EXPECT_EQ(ParseListeningLine("listening [::1]:4020").value(), "[::1]:4020");
}

TEST(ListeningLineTest, RefusesOtherLines) {
  for (const char* line : {"", "listening", "listening nowhere", "hello 127.0.0.1:4020",
                           "listening 127.0.0.1:4020 and more"}) {
    EXPECT_TRUE(absl::IsInternal(ParseListeningLine(line).status())) << line;
  }
}

TEST(LocalClusterTest, StartsCoordinatorAndAgentAndEndsThem) {
  const std::string bin = TempDirectory("cluster");
  const std::string log = bin + "/log";
  WriteProgram(bin + "/tessera-coordinator",
               "#!/bin/sh\ntrap 'exit 0' TERM\necho \"coordinator $*\" >> " + log +
                   "\necho listening 127.0.0.1:4020\nwhile :; do read x; done\n");
  WriteProgram(bin + "/tessera-worker", "#!/bin/sh\necho \"worker $*\" >> " + log + "\n");
  const auto cluster = LocalCluster::Start(FindLocalBinaries(bin).value(), -1);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ((*cluster)->coordinator_address(), "127.0.0.1:4020");
  EXPECT_EQ((*cluster)->agent(), nullptr);
  ASSERT_TRUE((*cluster)->StartAgent("gpt", 3).ok());
  (*cluster)->Stop(absl::Seconds(30), -1);
  EXPECT_EQ((*cluster)->agent()->Ending(), "exited with code 0");
  EXPECT_EQ((*cluster)->coordinator().Ending(), "exited with code 0");
  std::ifstream lines(log);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(lines), {}),
            "coordinator --listen=127.0.0.1:0 --drain_delay=0s\n"
            "worker --coordinator=127.0.0.1:4020 --local_workers=3 --job=gpt\n");
}

TEST(LocalClusterTest, SaysHowACoordinatorEndedThatDidNotListen) {
  const std::string bin = TempDirectory("broken");
  WriteProgram(bin + "/tessera-coordinator", "#!/bin/sh\nexit 2\n");
  WriteProgram(bin + "/tessera-worker", "");
  const auto cluster = LocalCluster::Start(FindLocalBinaries(bin).value(), -1);
  EXPECT_TRUE(absl::IsUnavailable(cluster.status()));
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("exited with code 2"));
}

}  // namespace
}  // namespace tessera
