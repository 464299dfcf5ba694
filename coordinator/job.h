// The life of one job: which states it goes through, and why it ended.
//
//   JobLifecycle job("gpt", /*steps=*/600, /*created=*/wall_now);    DRAFT
//   job.Seal();  job.Form();  job.Run();                             SEALED, FORMING, RUNNING
//   job.Succeed(wall_now);                                           SUCCEEDED
//
//   DRAFT -> SEALED -> FORMING -> RUNNING -> SUCCEEDED
//   RUNNING -> RECOVERING -> RUNNING                                 its generation ended
//   any state that is not an end -> FAILED, CANCELLED
// A RUNNING or RECOVERING job may be draining: it goes on to CANCELLED when its ranks have stopped.
// A state that has ended never changes again.
//
// Pure: no clock, no lock. Every transition returns FAILED_PRECONDITION, and changes nothing, where
// it is not on the list.
#ifndef TESSERA_COORDINATOR_JOB_H_
#define TESSERA_COORDINATOR_JOB_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

// Why a job failed, and which rank did it; no rank where a host or nobody is to blame.
struct Blame {
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  std::string reason;
  std::optional<int> rank;
  // Its lease ended: the process is silent, but nobody has seen it end.
  bool lease_ended = false;
  bool of_host = false;         // it is about a host and all its ranks
  bool finished_early = false;  // the rank's program ended well, but before its work was done
};

// SUCCEEDED, FAILED or CANCELLED.
bool IsEnd(v1::JobState state);

class JobLifecycle {
 public:
  JobLifecycle(std::string name, int64_t steps, absl::Time created);
  // Goes on where an earlier process was.
  explicit JobLifecycle(v1::Job job) : job_(std::move(job)) {}

  absl::Status Seal();
  absl::Status Form();
  absl::Status Run();
  absl::Status Succeed(absl::Time ended);
  absl::Status Fail(const Blame& blame, absl::Time ended);
  absl::Status Cancel(absl::StatusCode code, std::string reason, absl::Time ended);
  // From RUNNING, or RECOVERING for a loss before the next generation runs: the job's generation is
  // over and another will follow. lost: it counts as a recovery.
  absl::Status Recover(std::string reason, bool lost);
  // From RUNNING or RECOVERING: the job is draining from now on.
  absl::Status Drain();
  // CANCELLED, with the reason code DRAINED.
  absl::Status EndDrained(std::string reason, absl::Time ended);

  // Why a live job is in its state; gone with the next state.
  void SetReason(std::string reason);
  // A new membership. Numbers only grow.
  void SetGeneration(int64_t generation, int world_size);
  // Steps committed; an older figure is ignored.
  void SetStep(int64_t step);
  // It goes on from a checkpoint: the steps after it are to be done again.
  void GoBackTo(int64_t step) { job_.set_step(step); }
  // Of the newest checkpoint; an older one is ignored.
  void SetCheckpointStep(int64_t step);
  void SetLoss(double loss) { job_.set_loss(loss); }

  bool ended() const { return IsEnd(job_.state()); }
  v1::JobState state() const { return job_.state(); }
  // It is CANCELLED because it was drained.
  bool drained() const;
  const v1::Job& proto() const { return job_; }

 private:
  absl::Status MoveTo(v1::JobState next);
  void End(std::string code, std::string reason, absl::Time ended);

  v1::Job job_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_JOB_H_
