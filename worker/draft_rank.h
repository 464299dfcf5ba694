// A rank that builds the model: its line to the agent and the coordinator, before there is a plan.
#ifndef TESSERA_WORKER_DRAFT_RANK_H_
#define TESSERA_WORKER_DRAFT_RANK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/agent_socket.h"
#include "worker/end_relay.h"
#include "worker/membership_client.h"
#include "worker/wrap_builder.h"

namespace tessera {

struct DraftRank {
  AgentHandoff handoff;  // without files
  std::shared_ptr<EndRelay> relay;
  std::unique_ptr<MembershipClient> membership;  // has joined
};

// What Session::Join takes out of a builder.
class BuiltRank {
 public:
  // FAILED_PRECONDITION: the root is not wrapped, or a session has it already.
  static absl::StatusOr<std::unique_ptr<DraftRank>> Take(WrapBuilder& builder);
  static KeptShards& Kept(WrapBuilder& builder) { return builder.kept_; }
  // For Connect.
  static void Give(std::unique_ptr<DraftRank> line, WrapBuilder& builder);
};

// Waits for the agent's second message, after which `rank.handoff` is whole. The wait ends with the
// coordinator's word or the agent's end: ABORTED, UNAVAILABLE. Other errors: as ReceiveHandoff.
absl::Status AwaitFiles(DraftRank& rank);

}  // namespace tessera

#endif  // TESSERA_WORKER_DRAFT_RANK_H_
