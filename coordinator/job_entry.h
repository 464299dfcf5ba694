// All that the coordinator knows of one job. Only the coordinator has any.
#ifndef TESSERA_COORDINATOR_JOB_ENTRY_H_
#define TESSERA_COORDINATOR_JOB_ENTRY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "coordinator/draft.h"
#include "coordinator/event_log.h"
#include "coordinator/job.h"
#include "coordinator/job_observer.h"
#include "coordinator/planned_job.h"
#include "coordinator/recovery_policy.h"
#include "coordinator/stats_store.h"
#include "coordinator/step_rate.h"
#include "coordinator/verdict.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

// What the ranks of a DRAFT job have built. Planned under a lock of its own, so that no heartbeat
// waits for it.
struct SharedDraft {
  SharedDraft(v1::JobSpec resolved, int world_size) : draft(std::move(resolved), world_size) {}
  Mutex mutex;
  Draft draft ABSL_GUARDED_BY(mutex);
};

// How a job goes on from one generation to the next.
struct Recovery {
  BackOff back_off;
  int attempt = 1;        // FormHost.attempt of the generation that is formed next or lives
  bool pending = false;   // no generation lives, and one is to be formed
  bool planning = false;  // its layout is being made
  absl::Time not_before;
  // A host is missing: until when another is waited for.
  std::optional<absl::Time> replace_by;
  // The hosts' files hold what the ranks of the present layout have done.
  bool in_place = false;
  // Ranks whose processes have ended, or are to be killed, before the next generation.
  std::set<int> restart;

  // Of the present generation: the first rank that was ready, and the step at which it goes on.
  std::optional<std::pair<int, int64_t>> ready;
  // It was formed in place, with new processes for these ranks.
  bool recovers = false;
  std::set<int> fresh;
  // Others that ended before they joined it, and when the first did: a consequence of the loss.
  std::set<int> ended;
  absl::Time ended_at;

  // The job stops at a checkpoint to go on with more hosts, with this layout.
  bool growing = false;
  std::shared_ptr<const PlannedJob> larger;
  std::string standby;  // why the hosts that stand by are not used
};

struct JobEntry {
  JobEntry(JobLifecycle lifecycle_in, Verdict::Options verdict_options)
      : lifecycle(std::move(lifecycle_in)), verdict(verdict_options) {}
  int64_t id = 0;  // order of age
  JobLifecycle lifecycle;
  std::string request_id;
  std::shared_ptr<const v1::JobSpec> spec;    // resolved
  std::shared_ptr<const PlannedJob> planned;  // null: DRAFT
  // Where the ranks build the model: from when they are started. By rank, when it was last heard to
  // build; InfiniteFuture: it has finished.
  std::shared_ptr<SharedDraft> draft;
  std::vector<absl::Time> built;
  bool sealing = false;     // the whole model is being planned
  bool reserved = false;    // a host was chosen
  bool all_joined = false;  // deadline is then for getting ready
  absl::Time deadline;      // steady time
  Verdict verdict;
  std::string run;  // of the job, for its whole life: FormHost.run
  Recovery recovery;
  std::shared_ptr<EventLog> events;
  StepRate rate;
  int64_t progress_step = 0;  // of the last line; a report that was sent again brings no new one
  std::optional<StatsStore> stats;  // of the present generation

  // What the state store has of it (coordinator_keep.cc).
  struct Kept {
    int64_t generation = 0;
    std::string hosts;   // of that generation: their state
    bool ranks = false;  // likewise
    int64_t step = -1;
    absl::Time stats_due = absl::InfinitePast();  // steady time
  } kept;
  // Of an earlier process of the coordinator, until a rank reports to this one.
  std::optional<v1::JobStats> last_stats;
  // Members of an earlier process's that have not come back by then are lost. Steady time.
  absl::Time rejoin_by = absl::InfiniteFuture();
  JobObserver observer;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_JOB_ENTRY_H_
