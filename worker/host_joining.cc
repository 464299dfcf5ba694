#include "worker/host_joining.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "common/unsharded_file.h"
#include "worker/blame.h"
#include "worker/collectives/shm_collectives.h"
#include "worker/host_meeting.h"
#include "worker/session_parts.h"

namespace tessera {
namespace {

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

absl::StatusOr<std::shared_ptr<MemoryMapping>> MapFile(UniqueFd fd) {
  TESSERA_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::FromFd(std::move(fd)));
  TESSERA_ASSIGN_OR_RETURN(MemoryMapping mapping, file.Map());
  return std::make_shared<MemoryMapping>(std::move(mapping));
}

// A mapping shorter than what the layout places in it would be a SIGBUS, or another rank's bytes,
// at some later step.
absl::Status CheckLengths(const HostMemory& memory) {
  const v1::Layout& layout = memory.hello.layout();
  const int64_t ranks = memory.hello.assignment().local_world_size();
  // A GPU's are its own.
  const int64_t unsharded =
      layout.device() == v1::CUDA
          ? 0
          : UnshardedGroupOffset(layout, static_cast<int>(ranks) - 1) + UnshardedGroupBytes(layout);
  const int64_t needed[kHandoffFiles] = {
      unsharded, ranks * layout.gradient_stride_bytes(),
      ControlFileBytes(ranks, layout.unsharded_slots_size(), layout.gradient_slots_size()),
      layout.rank_file().total_bytes()};
  for (int i = 0; i < kHandoffFiles; ++i) {
    if (memory.mappings[i]->bytes() >= needed[i]) continue;
    return absl::InternalError(absl::StrCat("memory file ", i, " has ", memory.mappings[i]->bytes(),
                                            " bytes and its layout ", needed[i],
                                            "; agent and coordinator are of different builds"));
  }
  return absl::OkStatus();
}

HostSync::Options SyncOptions(const HostMemory& memory) {
  const v1::AgentHello& hello = memory.hello;
  HostSync::Options options;
  options.control = memory.file(HandoffFile::kControl).data();
  options.local_world_size = hello.assignment().local_world_size();
  options.first_rank = hello.assignment().local_rank_start();
  options.local_rank = hello.assignment().rank() - options.first_rank;
  options.unsharded_slots = hello.layout().unsharded_slots_size();
  options.gradient_slots = hello.layout().gradient_slots_size();
  for (const UniqueFd& pidfd : memory.peer_pidfds) options.peer_pidfds.push_back(pidfd.get());
  options.agent_socket = memory.agent_socket->get();
  options.host_name = hello.host_name();
  options.timeout = FromProto(hello.spec().timeouts().collective());
  return options;
}

}  // namespace

absl::StatusOr<std::shared_ptr<HostMemory>> HostMemory::Map(AgentHandoff handoff) {
  auto memory = std::make_shared<HostMemory>();
  memory->hello = std::move(handoff.hello);
  memory->peer_pidfds = std::move(handoff.peer_pidfds);
  memory->agent_socket = std::make_shared<UniqueFd>(std::move(handoff.agent_socket));
  for (int i = 0; i < kHandoffFiles; ++i) {
    TESSERA_ASSIGN_OR_RETURN(memory->mappings[i], MapFile(std::move(handoff.files[i])));
  }
  TESSERA_RETURN_IF_ERROR(CheckLengths(*memory));
  return memory;
}

absl::StatusOr<std::shared_ptr<HostMemory>> HostMemory::Next(AgentHandoff handoff) const {
  auto next = std::make_shared<HostMemory>();
  next->hello = std::move(handoff.hello);
  next->peer_pidfds = std::move(handoff.peer_pidfds);
  next->agent_socket = agent_socket;
  for (int i = 0; i < kHandoffFiles; ++i) next->mappings[i] = mappings[i];
  constexpr int kControl = static_cast<int>(HandoffFile::kControl);
  TESSERA_ASSIGN_OR_RETURN(next->mappings[kControl], MapFile(std::move(handoff.files[kControl])));
  TESSERA_RETURN_IF_ERROR(CheckLengths(*next));
  return next;
}

absl::Span<char> HostMemory::file(HandoffFile which) const {
  const MemoryMapping& mapped = *mappings[static_cast<int>(which)];
  return absl::MakeSpan(mapped.data(), mapped.bytes());
}

char* HostMemory::unsharded() const {
  const int local_rank = hello.assignment().rank() - hello.assignment().local_rank_start();
  const int64_t offset =
      hello.layout().device() == v1::CUDA ? 0 : UnshardedGroupOffset(hello.layout(), local_rank);
  return file(HandoffFile::kUnsharded).data() + offset;
}

absl::Duration HostMemory::form_timeout() const {
  return FromProto(hello.spec().timeouts().form());
}

v1::JoinRank JoinOf(const v1::AgentHello& hello) {
  v1::JoinRank join;
  join.set_job(hello.assignment().job());
  join.set_generation(hello.assignment().generation());
  join.set_rank(hello.assignment().rank());
  join.set_incarnation(hello.incarnation());
  join.set_pid(getpid());
  return join;
}

std::unique_ptr<Collectives> MakeHostCollectives(const std::shared_ptr<HostMemory>& memory,
                                                 const PlannedUnits& planned,
                                                 const RankContext& context,
                                                 std::unique_ptr<HostLinks> links) {
  const v1::AgentHello& hello = memory->hello;
  ShmCollectives::Options options;
  options.group = ShardGroupOf(hello.assignment(), hello.layout(), hello.host());
  options.sync = SyncOptions(*memory);
  options.unsharded = memory->unsharded();
  options.gradients = memory->file(HandoffFile::kGradient).data();
  options.layout = hello.layout();
  options.memory = memory;
  if (links != nullptr) {
    options.hosts = std::make_shared<HostTurns>(
        std::move(links), SumStaging(hello, memory->file(HandoffFile::kGradient)));
  }
  for (const v1::Unit& unit : planned.units)
    options.unit_names.push_back(unit.fqn().empty() ? "(root)" : unit.fqn());
  options.faults = context.faults;
  options.position = context.position.get();
  options.fingerprint = context.fingerprint;
  if (hello.recover()) options.first_timeout = memory->form_timeout();
  return std::make_unique<ShmCollectives>(std::move(options));
}

JoinWatch::JoinWatch(const HostMemory& memory, MembershipClient* membership)
    : stop_(eventfd(0, EFD_CLOEXEC)),
      thread_([this, &memory, membership] { Watch(memory, membership); }) {
  pthread_setname_np(thread_.native_handle(), "join-watch");
}

JoinWatch::~JoinWatch() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
}

void JoinWatch::Watch(const HostMemory& memory, MembershipClient* membership) {
  const v1::AgentHello& hello = memory.hello;
  std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0},
                                 {memory.agent_socket->get(), POLLIN | POLLRDHUP, 0}};
  for (const UniqueFd& pidfd : memory.peer_pidfds) entries.push_back({pidfd.get(), POLLIN, 0});
  while (poll(entries.data(), entries.size(), -1) < 0 && errno == EINTR) {
  }
  if (entries[0].revents != 0) return;
  if ((entries[1].revents & ~POLLIN) != 0) {
    membership->Interrupt(
        absl::UnavailableError(absl::StrCat("the agent of host ", hello.host_name(), " is gone")));
    return;
  }
  if (entries[1].revents != 0) {
    membership->Interrupt(WithReason(
        absl::AbortedError("the agent hands out the next generation already"), "GENERATION_ENDED"));
    return;
  }
  for (size_t i = 2; i < entries.size(); ++i) {
    if (entries[i].revents == 0) continue;
    const int rank = hello.assignment().local_rank_start() + static_cast<int>(i) - 2;
    membership->Interrupt(
        BlameRank(absl::UnavailableError(absl::StrCat("the process of rank ", rank, " on host ",
                                                      hello.host_name(), " is gone")),
                  rank));
    return;
  }
}

}  // namespace tessera
