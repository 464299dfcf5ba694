// What agent_test lets the agent start as a worker: takes its handoff and does what its argument
// for its local rank says.
//
//   agent_test_program exit:0 kill:9
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "common/process_env.h"
#include "worker/agent_socket.h"
#include "worker/memory_file.h"

namespace tessera {
namespace {

std::string NameOf(int fd) {
  char name[256] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), name, sizeof(name) - 1) < 0 ? "" : name;
}

std::set<int> OpenDescriptors() {
  std::set<int> open;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    const int fd = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(directory)) open.insert(fd);
  }
  closedir(directory);
  return open;
}

// 0, or what is wrong with the handoff.
int Check(const AgentHandoff& handoff, const std::set<int>& open_at_start) {
  const v1::AgentHello& hello = handoff.hello;
  const int rank = hello.assignment().rank();
  if (open_at_start != std::set<int>{0, 1, 2, handoff.agent_socket.get()}) return 10;
  if (NameOf(0) != "/dev/null") return 11;
  if (getpgrp() != getpid()) return 12;
  const std::string names[] = {"tessera-unsharded", "tessera-gradient", "tessera-control",
                               "tessera-rank-" + std::to_string(rank)};
  const int64_t bytes[] = {
      hello.host_forecast().unsharded_file_bytes(), hello.host_forecast().gradient_file_bytes(),
      hello.host_forecast().control_file_bytes(), hello.rank_forecast().mapped_bytes()};
  for (int i = 0; i < kHandoffFiles; ++i) {
    struct stat status;
    if (fstat(handoff.files[i].get(), &status) != 0 || status.st_size != bytes[i]) return 20 + i;
    if (NameOf(handoff.files[i].get()) != "/memfd:" + names[i] + " (deleted)") return 30 + i;
  }
  for (const UniqueFd& pidfd : handoff.peer_pidfds) {
    if (NameOf(pidfd.get()).find("pidfd") == std::string::npos) return 40;
  }
  if (hello.host_name() != "testhost" || hello.host() != 7) return 41;
  if (hello.incarnation().size() != 32 || hello.spec().name() != "job") return 42;
  return 0;
}

// A byte of one of the files: what it was before it is set to `value`.
int Exchange(const AgentHandoff& handoff, HandoffFile which, char value) {
  char before = 0;
  if (pread(handoff.file(which), &before, 1, 0) != 1) return -1;
  if (pwrite(handoff.file(which), &value, 1, 0) != 1) return -1;
  return before;
}

// One of a job that goes on in generation 2. 0, or what is wrong. `told`: a pipe for a byte of each
// rank of generation 1.
//   survive: lives in both.   die: kills itself in the first.   hang: does nothing in the first.
//   fresh:   lives in the first, and is to find nothing of it in the second.
int Recover(const std::string& action, AgentHandoff& handoff, const char* told) {
  const v1::AgentHello first = handoff.hello;
  if (first.assignment().generation() == 1) Exchange(handoff, HandoffFile::kControl, 42);
  const int rank_before = Exchange(handoff, HandoffFile::kRank, 42);
  const int unsharded_before = Exchange(handoff, HandoffFile::kUnsharded, 42);
  if (first.assignment().generation() == 1) {
    if (first.recover() || rank_before != 0) return 61;
    // The test waits for it.
    const UniqueFd fifo(open(told, O_WRONLY));
    if (write(fifo.get(), "x", 1) != 1) return 70;
    if (action == "die") kill(getpid(), SIGKILL);
    if (action != "survive") pause();
    const absl::StatusOr<AgentHandoff> further =
        ReceiveFurtherHandoff(handoff.agent_socket.get(), absl::Minutes(1));
    if (!further.ok()) return 62;
    const v1::AgentHello& hello = further->hello;
    if (hello.assignment().generation() != 2 || !hello.recover()) return 63;
    if (hello.incarnation() != first.incarnation() || hello.run() != "run") return 64;
    if (further->peer_pidfds.size() != 2 || further->files.size() != 4) return 65;
    return Exchange(*further, HandoffFile::kControl, 1) == 0 ? 0 : 66;
  }
  if (action == "fresh") return rank_before == 0 && !first.recover() ? 0 : 67;
  if (!first.recover() || first.attempt() != 2) return 68;
  return rank_before == 42 && unsharded_before == 42 ? 0 : 69;
}

int Main(int argc, char** argv) {
  const std::set<int> open_at_start = OpenDescriptors();
  const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
  if (!env.ok() || !env->agent_fd.has_value()) return 50;
  absl::StatusOr<AgentHandoff> handoff = ReceiveHandoff(UniqueFd(*env->agent_fd), absl::Minutes(1));
  if (!handoff.ok()) return 51;
  if (handoff->hello.draft()) {
    if (!handoff->files.empty() || handoff->peer_pidfds.size() != 2) return 54;
    const std::string incarnation = handoff->hello.incarnation();
    handoff = ReceiveHandoff(std::move(handoff->agent_socket), absl::Minutes(1));
    if (!handoff.ok()) return 55;
    if (handoff->hello.draft() || handoff->hello.incarnation() != incarnation) return 56;
  }
  const v1::Assignment& assignment = handoff->hello.assignment();
  const int argument = 1 + assignment.rank() - assignment.local_rank_start();
  if (argument >= argc) return 52;
  const std::string action = argv[argument];
  const int number = atoi(action.substr(action.find(':') + 1).c_str());
  if (action.starts_with("exit:")) return number;
  if (action.starts_with("kill:")) kill(getpid(), number);
  if (action == "check") return Check(*handoff, open_at_start);
  if (action == "survive" || action == "die" || action == "hang" || action == "fresh")
    return Recover(action, *handoff, argv[argc - 1]);
  // "wait": until it is ended. "stubborn": not by SIGTERM.
  if (action == "stubborn") signal(SIGTERM, SIG_IGN);
  pollfd agent = {handoff->agent_socket.get(), POLLIN, 0};
  while (poll(&agent, 1, -1) < 1) {
  }
  return 53;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
