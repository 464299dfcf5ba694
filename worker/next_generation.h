// How a session whose generation has ended gets into the next one. A process that an agent started
// waits for its agent (worker/agent_generations.h); tests whose ranks are threads hand it over.
#ifndef TESSERA_WORKER_NEXT_GENERATION_H_
#define TESSERA_WORKER_NEXT_GENERATION_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/v1/plan.pb.h"
#include "worker/collectives/collectives.h"
#include "worker/membership_client.h"

namespace tessera {

// What of a rank belongs to one generation. The ranks' memory is that of the one before, but for
// what the collectives synchronise by, which is new.
struct GenerationParts {
  v1::Assignment assignment;
  std::unique_ptr<Collectives> collectives;
  // Has joined. Last, so that it goes first: its threads call into the collectives. May be null.
  std::unique_ptr<MembershipClient> membership;
};

class NextGeneration {
 public:
  virtual ~NextGeneration() = default;

  // Waits for a generation that this rank can join, and joins it; one that ends meanwhile is passed
  // over. The parts of the last one stay as they are until it returns. DEADLINE_EXCEEDED: none came
  // in time. UNAVAILABLE: the agent is gone. ABORTED (JOB_ENDED): the job is over. Or as Interrupt
  // said.
  virtual absl::StatusOr<GenerationParts> Await() = 0;
  // The rank has finished `step` and can go on after it; returns when every rank can. UNAVAILABLE,
  // ABORTED, DEADLINE_EXCEEDED: this generation has ended, too.
  virtual absl::Status Start(MembershipClient* membership, int64_t step) = 0;
  // Ends both, now and later. Any thread.
  virtual void Interrupt(const absl::Status& status) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_NEXT_GENERATION_H_
