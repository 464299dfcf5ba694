// The generations of a rank whose process an agent started: each begins with a further handoff of
// the agent, and a fresh stream to the coordinator.
//
// Thread-safety: one thread calls; Interrupt may be called from any.
#ifndef TESSERA_WORKER_AGENT_GENERATIONS_H_
#define TESSERA_WORKER_AGENT_GENERATIONS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "worker/end_relay.h"
#include "worker/host_joining.h"
#include "worker/next_generation.h"

namespace tessera {

// Whether a job can go on when a rank is lost: max_recoveries, on CPUs, of a model that the
// coordinator knows. Elsewhere the ranks are started anew, or the job fails.
bool CanRecover(const v1::JobSpec& spec, const v1::Layout& layout);

// Whether another generation may come after one that this kept the rank out of.
bool IsPassedOver(const absl::Status& status);

// How long the coordinator may take to see a loss, to wait for another host and to form.
absl::Duration LongestRecovery(const v1::JobSpec& spec);

// The newest further handoff that the agent has sent, or sends before `deadline`. Ends as
// NextGeneration::Await says, by what `relay` hears; and, where `wake_fd` is readable, with OK and
// without a hello.
absl::StatusOr<AgentHandoff> AwaitFurtherHandoff(const HostMemory& memory, const EndRelay& relay,
                                                 int wake_fd, absl::Time deadline);

class AgentGenerations final : public NextGeneration {
 public:
  struct Options {
    std::shared_ptr<HostMemory> memory;  // of the first generation
    std::shared_ptr<EndRelay> relay;     // of the first generation's membership
    PlannedUnits planned;
    RankContext context;  // what it points to outlives this
  };

  explicit AgentGenerations(Options options);

  absl::StatusOr<GenerationParts> Await() override;
  absl::Status Start(MembershipClient* membership, int64_t step) override;
  void Interrupt(const absl::Status& status) override;

 private:
  absl::StatusOr<GenerationParts> Join(AgentHandoff handoff);
  absl::Status interruption() const;

  const PlannedUnits planned_;
  const RankContext context_;
  std::shared_ptr<HostMemory> memory_;
  std::shared_ptr<EndRelay> relay_;
  // Of a generation that ended before it was whole: its stream stays until there is another.
  std::unique_ptr<MembershipClient> half_joined_;
  const UniqueFd interrupted_;
  mutable Mutex mutex_;
  absl::Status interruption_ ABSL_GUARDED_BY(mutex_);
  MembershipClient* waiting_ ABSL_GUARDED_BY(mutex_) = nullptr;  // what Interrupt ends
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_GENERATIONS_H_
