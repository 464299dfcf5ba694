// How a rank of a job on several hosts meets its counterparts, the ranks of equal local rank on the
// others: each publishes through the coordinator where it listens and fetches where they do.
#ifndef TESSERA_WORKER_HOST_MEETING_H_
#define TESSERA_WORKER_HOST_MEETING_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tessera/v1/agent.pb.h"
#include "worker/collectives/host_links.h"
#include "worker/membership_client.h"

namespace tessera {

// Null where the job has one host. `gradients` is the host's gradient file, which has the staging
// and outlives the links. Waits until all are connected. UNAVAILABLE, DEADLINE_EXCEEDED: names the
// host that is not; or as MembershipClient says.
absl::StatusOr<std::unique_ptr<HostLinks>> MeetHosts(const v1::AgentHello& hello,
                                                     absl::Span<char> gradients,
                                                     MembershipClient* membership);

// What this rank's sums are added in: the part of its staging that the links do not take. Empty
// where the job has one host.
absl::Span<char> SumStaging(const v1::AgentHello& hello, absl::Span<char> gradients);

}  // namespace tessera

#endif  // TESSERA_WORKER_HOST_MEETING_H_
