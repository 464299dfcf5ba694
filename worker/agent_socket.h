// How an agent gives a worker its rank: one message (AgentHello) with file descriptors, over the
// socket pair whose one end the worker inherits (TESSERA_AGENT_FD).
//
// The agent:
//   HandoffSender sender(socket, hello, fds);
//   for (;;) {
//     ... poll the socket for POLLOUT ...
//     TESSERA_ASSIGN_OR_RETURN(const bool sent, sender.Send());
//     if (sent) break;
//   }
//
// The worker:
//   TESSERA_ASSIGN_OR_RETURN(AgentHandoff handoff,
//                            ReceiveHandoff(UniqueFd(*env.agent_fd), absl::Seconds(30)));
//
// Where the rank builds the model (AgentHello.draft) there are two messages: one without files,
// from which the rank knows who it is, and the whole one when the plan is sealed; the second is
// read from the first's agent_socket. For every later generation of the job that the process lives
// through there is a further one (AgentHello.recover), with the new control file alone. The worker
// never writes. Its end of file (POLLHUP) tells a worker that the agent is dead.
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_AGENT_SOCKET_H_
#define TESSERA_WORKER_AGENT_SOCKET_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "tessera/v1/agent.pb.h"

namespace tessera {

// The order of AgentHandoff::files.
enum class HandoffFile { kUnsharded = 0, kGradient = 1, kControl = 2, kRank = 3 };
inline constexpr int kHandoffFiles = 4;

// The kernel passes 253 descriptors with a message.
inline constexpr int kMaxLocalWorkers = 128;

// What a worker gets.
struct AgentHandoff {
  v1::AgentHello hello;
  std::vector<UniqueFd> files;  // indexed by HandoffFile; none of a draft
  std::vector<UniqueFd>
      peer_pidfds;  // one for each rank of the host in rank order, the worker's own included
  UniqueFd agent_socket;

  int file(HandoffFile which) const { return files[static_cast<size_t>(which)].get(); }
};

// The agent's side: sends as much as the socket takes and never waits.
class HandoffSender {
 public:
  // `fds`: kHandoffFiles files (of a draft none, of a further handoff one), then the pidfds. All
  // descriptors are borrowed and must be open until Send has returned something else than false.
  HandoffSender(int socket, const v1::AgentHello& hello, std::vector<int> fds);

  // True: everything is sent. False: the socket is full; call again when it is writable.
  // UNAVAILABLE: the worker has ended.
  absl::StatusOr<bool> Send();

 private:
  int socket_;
  std::vector<int> fds_;
  std::string bytes_;
  size_t sent_bytes_ = 0;
};

// The worker's side. `socket` is not inherited by programs that the worker starts. Errors:
//   UNAVAILABLE          the agent is dead.
//   DEADLINE_EXCEEDED    it did not send everything within `timeout`.
//   FAILED_PRECONDITION  `socket` is none: no agent started this process.
//   INTERNAL             what came is no handoff: agent and worker are of different builds.
absl::StatusOr<AgentHandoff> ReceiveHandoff(UniqueFd socket, absl::Duration timeout);

// A further one, over the agent_socket of the first: of its files only the control file is there,
// and its agent_socket is none. Errors: as above.
absl::StatusOr<AgentHandoff> ReceiveFurtherHandoff(int socket, absl::Duration timeout);

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_SOCKET_H_
