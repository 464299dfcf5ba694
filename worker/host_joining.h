// What a rank's process stands on in one generation: the memory and the descriptors that its agent
// handed out, and the collectives over them.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto memory, HostMemory::Map(std::move(handoff)));
//   auto collectives = MakeHostCollectives(memory, units, context, std::move(links));
#ifndef TESSERA_WORKER_HOST_JOINING_H_
#define TESSERA_WORKER_HOST_JOINING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "tessera/v1/agent.pb.h"
#include "tessera/v1/membership_service.pb.h"
#include "worker/agent_socket.h"
#include "worker/collectives/collectives.h"
#include "worker/collectives/host_links.h"
#include "worker/fault_points.h"
#include "worker/membership_client.h"
#include "worker/memory_file.h"
#include "worker/position.h"

namespace tessera {

struct HostMemory {
  v1::AgentHello hello;
  std::vector<UniqueFd> peer_pidfds;
  std::shared_ptr<UniqueFd> agent_socket;
  std::shared_ptr<MemoryMapping> mappings[kHandoffFiles];

  // RESOURCE_EXHAUSTED: no address space is left. INTERNAL: a file is shorter than what the layout
  // places in it.
  static absl::StatusOr<std::shared_ptr<HostMemory>> Map(AgentHandoff handoff);
  // The same memory with the control file of a further handoff.
  absl::StatusOr<std::shared_ptr<HostMemory>> Next(AgentHandoff handoff) const;

  absl::Span<char> file(HandoffFile which) const;
  // The slots of this rank's shard group.
  char* unsharded() const;
  absl::Duration form_timeout() const;
};

// What the rank says to the coordinator when it joins.
v1::JoinRank JoinOf(const v1::AgentHello& hello);

// What a rank's collectives of every generation are told.
struct RankContext {
  FaultPoints* faults = nullptr;                          // outlives the collectives
  std::shared_ptr<PositionPublisher> position = nullptr;  // as faults
  uint64_t fingerprint = 0;                               // of what the rank holds
};

// The host's collectives between its ranks, and by `links` with other hosts' (null: none). They
// keep `memory`.
std::unique_ptr<Collectives> MakeHostCollectives(const std::shared_ptr<HostMemory>& memory,
                                                 const PlannedUnits& planned,
                                                 const RankContext& context,
                                                 std::unique_ptr<HostLinks> links);

// Until it is destroyed: tells when a peer or the agent is gone, also while nobody waits on shared
// memory and the coordinator is away. Not for later: a peer that has done its work goes too.
class JoinWatch {
 public:
  JoinWatch(const HostMemory& memory, MembershipClient* membership);
  ~JoinWatch();

 private:
  void Watch(const HostMemory& memory, MembershipClient* membership);

  const UniqueFd stop_;
  std::jthread thread_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_HOST_JOINING_H_
