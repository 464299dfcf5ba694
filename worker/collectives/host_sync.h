// HostSync: one rank's way to announce something to the other ranks of its host and to wait for
// them, through the host's control file.
//
//   sync.Announce(sync.slot(sync.index(), slot).entered, tenancy);
//   TESSERA_RETURN_IF_ERROR(sync.WaitUntil([&] { return AllEntered(); }, what, missing));
//
// A waiting rank spins briefly, then sleeps on a futex for at most 50 ms at a time and looks at the
// abort word, at its peers and at its agent. So a wait ends when its condition holds, a peer or the
// agent is gone, a rank has aborted or the deadline has passed; it never hangs.
//
// Thread-safety: one thread uses it; Interrupt and Wake may be called from any.
#ifndef TESSERA_WORKER_COLLECTIVES_HOST_SYNC_H_
#define TESSERA_WORKER_COLLECTIVES_HOST_SYNC_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "worker/collectives/shm_control.h"

namespace tessera {

class HostSync {
 public:
  struct Options {
    // The host's control file, mapped; as long as ControlFileBytes says. Outlives the HostSync.
    void* control = nullptr;
    int local_world_size = 1;
    int local_rank = 0;
    // World rank of local rank 0, for messages.
    int first_rank = 0;
    int unsharded_slots = 0;
    int gradient_slots = 0;
    // A pidfd for each local rank, in order, or none where ranks are threads of one process.
    std::vector<int> peer_pidfds;
    // End of file on it means that the agent is gone. -1: no agent.
    int agent_socket = -1;
    std::string host_name = "this host";
    // The longest wait for other ranks.
    absl::Duration timeout = absl::Seconds(30);
    const Clock* clock = Clock::Real();
    // Tests: told true when this rank goes to sleep waiting for others, false when it goes on.
    std::function<void(bool parked)> on_park;
  };

  explicit HostSync(Options options);

  int size() const { return options_.local_world_size; }
  int index() const { return options_.local_rank; }
  int RankOf(int local_rank) const { return options_.first_rank + local_rank; }

  RankControl& record(int local_rank) const;
  // Slots count unsharded slots first, then gradient slots.
  SlotControl& slot(int local_rank, int slot) const;
  int gradient_slot(int slot) const { return options_.unsharded_slots + slot; }

  // Stores `value` and wakes whoever sleeps. What was written before is visible to a rank that
  // reads the value.
  void Announce(std::atomic<uint64_t>& word, uint64_t value);

  // The longest wait for other ranks from now on.
  void set_timeout(absl::Duration timeout) { timeout_ = timeout; }

  // Returns when `ready` says true. `ready` may do work; its error ends the wait. `what` says what
  // is waited for, `missing` lists the world ranks that have not arrived; both are called for
  // errors only. UNAVAILABLE: a rank or the agent is gone. DEADLINE_EXCEEDED: names the missing
  // ranks. Or as another rank's Abort or this rank's Interrupt says.
  absl::Status WaitUntil(absl::FunctionRef<absl::StatusOr<bool>()> ready,
                         absl::FunctionRef<std::string()> what,
                         absl::FunctionRef<std::vector<int>()> missing);

  // What a wait would end with by now: an abort, an interruption, a peer or the agent gone. OK:
  // nothing.
  absl::Status Check();

  // Lets whoever sleeps in WaitUntil ask again. Any thread.
  void Wake() { WakeAll(); }

  // Ends the waits of every rank of the host with UNAVAILABLE, which names this rank and says
  // `status`. Blamed is the rank that `status` blames, else this rank, but for UNAVAILABLE and
  // ABORTED, which are then nobody's. Only the first abort of a host counts.
  void Abort(const absl::Status& status);
  // Ends this rank's waits with `status`. Any thread.
  void Interrupt(const absl::Status& status);

 private:
  HostControl& host() const { return *static_cast<HostControl*>(options_.control); }
  absl::Status CheckWords();
  absl::Status CheckPeers();
  void WakeAll();

  const Options options_;
  const int64_t spin_nanoseconds_;
  absl::Duration timeout_;
  std::atomic<bool> interrupted_{false};
  Mutex mutex_;
  absl::Status interruption_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_HOST_SYNC_H_
