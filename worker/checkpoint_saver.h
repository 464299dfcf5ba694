// CheckpointSaver: when a job's checkpoints are saved, and that all ranks agree that one is whole.
// A rank's step pays for one copy of its shards; a thread writes the copy. What the threads have
// come to is exchanged where steps end, so nobody waits before the next save.
//
//   TESSERA_RETURN_IF_ERROR(saver.AfterStep(state));   // every rank, after every step
//   TESSERA_RETURN_IF_ERROR(saver.Finish(state));      // after the last
//
// A save begins (rank 0 makes its directory and names it), is written (every rank of the first
// replica writes its shard), is committed (rank 0 renames it, when all have written) and is whole.
// What fails on one rank fails on all, at the next step's end or in Finish, and leaves no whole
// checkpoint; a disk that does not take a byte for Options.stall is a failure.
//
// Thread-safety: the calls come from the session's thread.
#ifndef TESSERA_WORKER_CHECKPOINT_SAVER_H_
#define TESSERA_WORKER_CHECKPOINT_SAVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tessera/v1/checkpoint.pb.h"
#include "tessera/v1/job.pb.h"
#include "worker/checkpoint_writer.h"
#include "worker/collectives/collectives.h"
#include "worker/fault_points.h"
#include "worker/shard_store.h"
#include "worker/training_state.h"

namespace tessera {

class CheckpointSaver {
 public:
  struct Options {
    v1::JobSpec job;            // resolved
    v1::CheckpointIndex index;  // as MakeCheckpointIndex gives it
    int rank = 0;               // of the world; Exchange is in its order
    int shard_index = 0;
    int replica_index = 0;
    const ShardStore* store = nullptr;
    Collectives* collectives = nullptr;
    // Of the writing thread; not the session's own, which is used by another thread.
    std::shared_ptr<FaultPoints> faults = nullptr;
    // Of the checkpoint that the session was loaded from, if it is one of the job's own directory.
    int64_t loaded_step = -1;
    absl::Duration stall = absl::Minutes(2);
  };

  explicit CheckpointSaver(Options options);
  // Ends a writing that goes on.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Begins a save where the job wants one after this step, once the last one is whole; else looks
  // after the last one without waiting for its writing. INTERNAL: a save failed; names the file.
  // RESOURCE_EXHAUSTED: no memory for the copy. Or as Collectives::Exchange.
  absl::Status AfterStep(const TrainingState& state);
  // Saves the state unless it is saved, and returns when the checkpoint is whole. The store must
  // not change meanwhile. `always`: also in a job that is to save none (checkpoint.save).
  absl::Status Finish(const TrainingState& state, bool always = false);
  // The newest step of which a whole checkpoint was saved; -1: none.
  int64_t last_saved() const { return last_saved_; }

 private:
  // What the writing thread and the session's share.
  struct Work;
  // What ranks tell each other.
  struct Report;
  enum class Phase { kIdle, kWriting, kCommitting };

  bool wanted() const;
  bool commits() const { return options_.rank == 0; }
  // Exchanges what ranks say. `text`: a directory's name or an error's message. Fails if one has.
  absl::StatusOr<std::vector<Report>> Tell(Report own, const std::string& text);
  absl::Status Begin(const TrainingState& state, bool copy);
  absl::Status StartWriting(bool copy);
  void StartCommitting();
  void Start(std::function<absl::Status(const WriteProgress&)> work);
  // What the writing thread has come to; returns what it failed of.
  std::string OwnReport(Report* report) const;
  // One exchange, and what follows from it.
  absl::Status Look();
  absl::Status Await();
  void JoinThread();

  const Options options_;
  Phase phase_ = Phase::kIdle;
  v1::CheckpointIndex index_;  // of the save that goes on
  std::string writing_;        // its directory's name
  int64_t last_saved_;
  std::shared_ptr<Work> work_;  // null: this rank has nothing to do
  std::jthread thread_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_CHECKPOINT_SAVER_H_
