// What a rank's session stands on.
#ifndef TESSERA_WORKER_SESSION_PARTS_H_
#define TESSERA_WORKER_SESSION_PARTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/unique_fd.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/agreement.h"
#include "worker/collectives/collectives.h"
#include "worker/fault_points.h"
#include "worker/membership_client.h"
#include "worker/next_generation.h"
#include "worker/position.h"
#include "worker/shard_store.h"
#include "worker/training_state.h"

namespace tessera {

// One rank's everything, ready to run.
struct SessionParts {
  v1::Assignment assignment;
  v1::JobSpec spec;  // resolved
  PlannedUnits planned;
  v1::Layout layout;  // without its units
  int host = 0;
  int64_t measured_bytes = 0;
  std::string incarnation;
  std::string
      gradients_dir;  // where the first step's gradient shards are written, for tests; "": nowhere
  UniqueFd directory_lock;                      // as PrepareDirectory gave it
  TrainingState start;                          // what the shards were filled with
  std::string run;                              // of the job, for the index of its checkpoints
  std::shared_ptr<PositionPublisher> position;  // null: nobody wants to know
  std::shared_ptr<const Agreement> held;        // what the ranks agree on; null: nothing
  // The memory file holds what an earlier process left, and the job goes on from it (Recover).
  bool recover = false;
  // How the rank gets into a next generation; null: a lost rank ends the session.
  std::shared_ptr<NextGeneration> next;
  std::unique_ptr<FaultPoints> faults;
  std::shared_ptr<FaultPoints> writer_faults;  // of the thread that writes checkpoints; may be null
  // A GPU's rank: what its collectives talk to the host's other ranks through. Else null.
  std::unique_ptr<Collectives> host_collectives;
  std::unique_ptr<Collectives> collectives;
  Stream* stream = nullptr;  // where the program computes, the collectives' own; CPU: null
  std::unique_ptr<ShardStore> store;
  // Last, so that it goes first: its threads call into the collectives. May be null in tests.
  std::unique_ptr<MembershipClient> membership;
};

// The ranks that have the shards of one copy of the model, this rank among them.
Group ShardGroupOf(const v1::Assignment& assignment, const v1::Layout& layout, int host);

// Every rank holds what this one does. FAILED_PRECONDITION (RANKS_DISAGREE).
absl::Status AgreeOnPlan(const SessionParts& parts);

}  // namespace tessera

#endif  // TESSERA_WORKER_SESSION_PARTS_H_
