#include "worker/collectives/host_sync.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/blame.h"

namespace tessera {
namespace {

// Long enough for ranks that run to meet without a sleep, which takes tens of microseconds to wake
// from; short enough that a rank does not burn a core while it waits.
constexpr int64_t kSpinNanoseconds = 150'000;
// Where ranks share cores, the one that spins may keep the other from coming.
constexpr int64_t kSharedCoreSpinNanoseconds = 5'000;
constexpr timespec kLongestSleep = {0, 50'000'000};

int64_t NowNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Of the host's cores that this process may run on.
int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr,
                 0);
}

bool ReadableOrClosed(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLIN | POLLHUP | POLLERR)) != 0;
}

bool EndOfFile(int socket) {
  char byte;
  if (!ReadableOrClosed(socket)) return false;
  const ssize_t got = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

HostSync::HostSync(Options options)
    : options_(std::move(options)),
      spin_nanoseconds_(options_.local_world_size <= UsableCores() ? kSpinNanoseconds
                                                                   : kSharedCoreSpinNanoseconds),
      timeout_(options_.timeout) {}

RankControl& HostSync::record(int local_rank) const {
  char* base = static_cast<char*>(options_.control) + kControlHeaderBytes;
  const int64_t stride = RankControlBytes(options_.unsharded_slots, options_.gradient_slots);
  return *reinterpret_cast<RankControl*>(base + local_rank * stride);
}

SlotControl& HostSync::slot(int local_rank, int slot) const {
  char* slots = reinterpret_cast<char*>(&record(local_rank)) + kRankControlFixedBytes;
  return reinterpret_cast<SlotControl*>(slots)[slot];
}

void HostSync::WakeAll() {
  // Sequentially consistent on both sides: either this sees the waiter, or the waiter sees the new
  // epoch.
  host().epoch.fetch_add(1);
  if (host().waiters.load() > 0) Futex(host().epoch, FUTEX_WAKE, INT_MAX, nullptr);
}

void HostSync::Announce(std::atomic<uint64_t>& word, uint64_t value) {
  word.store(value, std::memory_order_release);
  WakeAll();
}

absl::Status HostSync::CheckWords() {
  if (interrupted_.load(std::memory_order_acquire)) {
    MutexLock lock(mutex_);
    return interruption_;
  }
  HostControl& control = host();
  if (control.abort_state.load(std::memory_order_acquire) != 2) return absl::OkStatus();
  char message[kAbortMessageBytes];
  std::memcpy(message, control.abort_message, sizeof(message));
  message[sizeof(message) - 1] = '\0';
  absl::Status status =
      absl::UnavailableError(absl::StrCat("rank ", control.abort_rank, " ended: ", message));
  const int blamed = control.abort_blamed_rank;
  return blamed >= 0 ? BlameRank(status, blamed) : status;
}

absl::Status HostSync::CheckPeers() {
  if (options_.agent_socket >= 0 && EndOfFile(options_.agent_socket)) {
    return absl::UnavailableError(
        absl::StrCat("the agent of host ", options_.host_name, " is gone"));
  }
  for (int peer = 0; peer < static_cast<int>(options_.peer_pidfds.size()); ++peer) {
    if (peer == index() || !ReadableOrClosed(options_.peer_pidfds[peer])) continue;
    return BlameRank(
        absl::UnavailableError(absl::StrCat("the process of rank ", RankOf(peer), " on host ",
                                            options_.host_name, " is gone")),
        RankOf(peer));
  }
  return absl::OkStatus();
}

absl::Status HostSync::Check() {
  TESSERA_RETURN_IF_ERROR(CheckWords());
  return CheckPeers();
}

absl::Status HostSync::WaitUntil(absl::FunctionRef<absl::StatusOr<bool>()> ready,
                                 absl::FunctionRef<std::string()> what,
                                 absl::FunctionRef<std::vector<int>()> missing) {
  const int64_t spin_until = NowNanoseconds() + spin_nanoseconds_;
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool done, ready());
    if (done) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(CheckWords());
    if (NowNanoseconds() > spin_until) break;
    for (int i = 0; i < 32; ++i) __builtin_ia32_pause();
  }
  const absl::Time deadline = options_.clock->Now() + timeout_;
  if (options_.on_park) options_.on_park(true);
  absl::Status result;
  while (true) {
    host().waiters.fetch_add(1);
    const uint32_t epoch = host().epoch.load();
    absl::StatusOr<bool> done = ready();
    if (done.ok() && !*done && CheckWords().ok())
      Futex(host().epoch, FUTEX_WAIT, epoch, &kLongestSleep);
    host().waiters.fetch_sub(1);
    if (!done.ok() || *done) {
      result = done.status();
      break;
    }
    // A peer that finished and left is gone too: ask for the condition once more before blaming it.
    if (absl::Status gone = Check(); !gone.ok()) {
      done = ready();
      result = done.ok() && *done ? absl::OkStatus() : gone;
      break;
    }
    if (options_.clock->Now() > deadline) {
      const std::vector<int> late = missing();
      // The last ones arrived just now: the condition holds, or another pass will make it hold.
      if (late.empty()) continue;
      result = absl::DeadlineExceededError(absl::StrCat(
          "waited ", absl::FormatDuration(timeout_), " for ", what(),
          "; missing: ", late.size() == 1 ? "rank " : "ranks ", absl::StrJoin(late, ", ")));
      result = BlameRank(result, late.front());
      break;
    }
  }
  if (options_.on_park) options_.on_park(false);
  return result;
}

void HostSync::Abort(const absl::Status& status) {
  HostControl& control = host();
  uint32_t none = 0;
  if (control.abort_state.compare_exchange_strong(none, 1)) {
    control.abort_rank = RankOf(index());
    // Lost peers are blamed by name; an agent or a coordinator that is gone, or a cancelled job, is
    // no rank's doing.
    const bool own_fault = !absl::IsUnavailable(status) && !absl::IsAborted(status);
    control.abort_blamed_rank = BlamedRank(status).value_or(own_fault ? RankOf(index()) : -1);
    const size_t length = std::min<size_t>(status.message().size(), kAbortMessageBytes - 1);
    std::memcpy(control.abort_message, status.message().data(), length);
    control.abort_message[length] = '\0';
    control.abort_state.store(2, std::memory_order_release);
  }
  WakeAll();
}

void HostSync::Interrupt(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (interruption_.ok()) interruption_ = status;
  }
  interrupted_.store(true, std::memory_order_release);
  WakeAll();
}

}  // namespace tessera
