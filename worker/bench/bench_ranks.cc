#include "worker/bench/bench_ranks.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr int kSpinsBeforeYield = 20'000;
constexpr std::chrono::seconds kLongestWait{60};

std::string Ending(int wait_status) {
  if (WIFSIGNALED(wait_status)) return absl::StrCat("was killed by signal ", WTERMSIG(wait_status));
  return absl::StrCat("exited with code ", WEXITSTATUS(wait_status));
}

[[noreturn]] void RunRank(int rank, BenchBarrier& barrier, pid_t parent,
                          const std::function<absl::Status(int, BenchBarrier&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it was gone before the line above
  const absl::Status status = body(rank, barrier);
  if (!status.ok()) {
    fprintf(stderr, "tessera-bench: rank %d: %s\n", rank, std::string(status.message()).c_str());
  }
  fflush(nullptr);
  _exit(status.ok() ? 0 : 1);
}

}  // namespace

void BenchBarrier::Wait() {
  const int before = phase_.load();
  if (arrived_.fetch_add(1) == ranks_ - 1) {
    arrived_ = 0;
    phase_.fetch_add(1);
    return;
  }
  int spins = 0;
  const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
  while (phase_.load() == before) {
    __builtin_ia32_pause();
    if (++spins < kSpinsBeforeYield) continue;
    sched_yield();
    if (std::chrono::steady_clock::now() > give_up) {
      fprintf(stderr, "tessera-bench: a rank did not come to the barrier within 60 s\n");
      _exit(1);
    }
  }
}

absl::StatusOr<BenchMemory> BenchMemory::Create(absl::string_view name, int64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::Create(name, bytes));
  TESSERA_ASSIGN_OR_RETURN(MemoryMapping mapping, file.Map());
  return BenchMemory(std::move(mapping));
}

absl::Status RunBenchRanks(
    int ranks, const std::function<absl::Status(int rank, BenchBarrier& barrier)>& body) {
  TESSERA_ASSIGN_OR_RETURN(const BenchMemory memory,
                           BenchMemory::Create("tessera-bench-barrier", kPageBytes));
  BenchBarrier& barrier = *new (memory.as<void>()) BenchBarrier(ranks);
  fflush(nullptr);
  std::vector<pid_t> children;
  absl::Status result;
  const pid_t self = getpid();
  for (int rank = 0; rank < ranks && result.ok(); ++rank) {
    const pid_t child = fork();
    if (child == 0) RunRank(rank, barrier, self, body);
    if (child < 0) result = absl::ResourceExhaustedError("no process is left for a rank");
    if (child > 0) children.push_back(child);
  }
  size_t left = children.size();
  if (!result.ok()) {
    for (const pid_t child : children) kill(child, SIGKILL);
  }
  while (left > 0) {
    int wait_status = 0;
    const pid_t ended = waitpid(-1, &wait_status, 0);
    if (ended < 0) break;
    --left;
    if (wait_status == 0 || !result.ok()) continue;
    size_t rank = 0;
    while (rank < children.size() && children[rank] != ended) ++rank;
    result = absl::InternalError(absl::StrCat("rank ", rank, " ", Ending(wait_status)));
    for (const pid_t child : children) {
      if (child != ended) kill(child, SIGKILL);
    }
  }
  return result;
}

}  // namespace tessera
