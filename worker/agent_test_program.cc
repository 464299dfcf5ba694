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
