#include "worker/agent_generations.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/blame.h"
#include "worker/host_meeting.h"
#include "worker/mapped_bytes.h"
#include "worker/session_types.h"

namespace tessera {
namespace {

// What the agent sends is there at once, but for a machine that is very busy.
constexpr absl::Duration kReadTimeout = absl::Seconds(10);

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

// False: the agent's end of the socket is closed.
bool HasData(int socket) {
  char byte;
  return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

}  // namespace

bool CanRecover(const v1::JobSpec& spec, const v1::Layout& layout) {
  return spec.max_recoveries() > 0 && layout.device() != v1::CUDA && !spec.model().built();
}

bool IsPassedOver(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         GenerationEnded(status) || Reason(status) == "STALE_GENERATION";
}

absl::Duration LongestRecovery(const v1::JobSpec& spec) {
  const v1::TimeoutSpec& timeouts = spec.timeouts();
  return FromProto(timeouts.lease()) + FromProto(timeouts.replacement()) +
         FromProto(timeouts.form());
}

absl::StatusOr<AgentHandoff> AwaitFurtherHandoff(const HostMemory& memory, const EndRelay& relay,
                                                 int wake_fd, absl::Time deadline) {
  const int socket = memory.agent_socket->get();
  pollfd entries[] = {
      {socket, POLLIN | POLLRDHUP, 0}, {wake_fd, POLLIN, 0}, {relay.fd(), POLLIN, 0}};
  for (;;) {
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the job did not go on within ",
                       absl::FormatDuration(LongestRecovery(memory.hello.spec())),
                       " after its generation had ended; see the coordinator's log"));
    }
    if (poll(entries, 3, PollTimeout(left)) <= 0) continue;  // EINTR, or the deadline
    if (entries[1].revents != 0) return AgentHandoff();
    if (entries[2].revents != 0) {
      // Any other end is why we wait.
      if (Reason(relay.status()) == "JOB_ENDED") return relay.status();
      entries[2].fd = -1;
    }
    if (entries[0].revents == 0) continue;
    if (!HasData(socket)) {
      return absl::UnavailableError(
          absl::StrCat("the agent of host ", memory.hello.host_name(), " is gone"));
    }
    TESSERA_ASSIGN_OR_RETURN(AgentHandoff handoff, ReceiveFurtherHandoff(socket, kReadTimeout));
    if (!HasData(socket)) return handoff;
  }
}

AgentGenerations::AgentGenerations(Options options)
    : planned_(std::move(options.planned)),
      context_(std::move(options.context)),
      memory_(std::move(options.memory)),
      relay_(std::move(options.relay)),
      interrupted_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void AgentGenerations::Interrupt(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (interruption_.ok()) interruption_ = status;
  eventfd_write(interrupted_.get(), 1);
  if (waiting_ != nullptr) waiting_->Interrupt(status);
}

absl::Status AgentGenerations::interruption() const {
  MutexLock lock(mutex_);
  return interruption_;
}

absl::StatusOr<GenerationParts> AgentGenerations::Await() {
  const absl::Time deadline = Clock::Real()->Now() + LongestRecovery(memory_->hello.spec());
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(AgentHandoff handoff,
                             AwaitFurtherHandoff(*memory_, *relay_, interrupted_.get(), deadline));
    TESSERA_RETURN_IF_ERROR(interruption());
    absl::StatusOr<GenerationParts> parts = Join(std::move(handoff));
    if (parts.ok() || !IsPassedOver(parts.status())) return parts;
    TESSERA_RETURN_IF_ERROR(interruption());
    if (half_joined_ != nullptr && !absl::IsAborted(parts.status()))
      half_joined_->Break(parts.status(), BlamedRank(parts.status()));
  }
}

absl::StatusOr<GenerationParts> AgentGenerations::Join(AgentHandoff handoff) {
  TESSERA_ASSIGN_OR_RETURN(memory_, memory_->Next(std::move(handoff)));
  const v1::AgentHello& hello = memory_->hello;
  relay_ = std::make_shared<EndRelay>(relay_->on_end());
  // The one of before is over: the coordinator has closed its stream.
  half_joined_ = CreateMembershipClient(hello.coordinator());
  MembershipClient* const membership = half_joined_.get();
  membership->SetPosition(context_.position);
  context_.faults->Hit("rejoin");
  const JoinWatch watch(*memory_, membership);
  TESSERA_RETURN_IF_ERROR(
      membership->JoinRank(JoinOf(hello), memory_->form_timeout(),
                           [relay = relay_](const absl::Status& status) { relay->End(status); }));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<HostLinks> links,
                           MeetHosts(hello, memory_->file(HandoffFile::kGradient), membership));
  GenerationParts parts;
  parts.assignment = hello.assignment();
  parts.collectives = MakeHostCollectives(memory_, planned_, context_, std::move(links));
  TESSERA_RETURN_IF_ERROR(relay_->Connect(parts.collectives.get()));
  parts.membership = std::move(half_joined_);
  return parts;
}

absl::Status AgentGenerations::Start(MembershipClient* membership, int64_t step) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t measured_bytes, MeasureMappedBytes());
  {
    MutexLock lock(mutex_);
    TESSERA_RETURN_IF_ERROR(interruption_);
    waiting_ = membership;
  }
  absl::Status status;
  {
    const JoinWatch watch(*memory_, membership);
    status = membership->AwaitStart(measured_bytes, step, memory_->form_timeout());
  }
  MutexLock lock(mutex_);
  waiting_ = nullptr;
  return status;
}

}  // namespace tessera
