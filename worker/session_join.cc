// Session::Join: from the socket of the agent to a rank that is ready for its first step.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/control_file.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/process_env.h"
#include "common/status_macros.h"
#include "common/unsharded_file.h"
#include "worker/agent_socket.h"
#include "worker/agreement.h"
#include "worker/blame.h"
#include "worker/checkpoint.h"
#include "worker/checkpoint_loader.h"
#include "worker/collectives/shm_collectives.h"
#include "worker/data_path.h"
#include "worker/device/probe.h"
#include "worker/draft_rank.h"
#include "worker/host_meeting.h"
#include "worker/mapped_bytes.h"
#include "worker/memory_file.h"
#include "worker/parameter_init.h"
#include "worker/session.h"
#include "worker/session_impl.h"

namespace tessera {
namespace {

// The agent sends the handoff as soon as it has started all its workers.
constexpr absl::Duration kHandoffTimeout = absl::Seconds(60);
// A rank that cannot join says so for at most so long: the coordinator may be stopped.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

// The descriptors and mappings that a rank lives on.
struct HostMemory {
  AgentHandoff handoff;
  MemoryMapping mappings[kHandoffFiles];
};

absl::StatusOr<std::shared_ptr<HostMemory>> MapMemory(AgentHandoff handoff) {
  auto memory = std::make_shared<HostMemory>();
  memory->handoff = std::move(handoff);
  for (int i = 0; i < kHandoffFiles; ++i) {
    TESSERA_ASSIGN_OR_RETURN(MemoryFile file,
                             MemoryFile::FromFd(std::move(memory->handoff.files[i])));
    TESSERA_ASSIGN_OR_RETURN(memory->mappings[i], file.Map());
  }
  return memory;
}

// A mapping shorter than what the layout places in it would be a SIGBUS, or another rank's bytes,
// at some later step.
absl::Status CheckLengths(const HostMemory& memory) {
  const v1::AgentHello& hello = memory.handoff.hello;
  const v1::Layout& layout = hello.layout();
  const int64_t ranks = hello.assignment().local_world_size();
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
    if (memory.mappings[i].bytes() >= needed[i]) continue;
    return absl::InternalError(absl::StrCat("memory file ", i, " has ", memory.mappings[i].bytes(),
                                            " bytes and its layout ", needed[i],
                                            "; agent and coordinator are of different builds"));
  }
  return absl::OkStatus();
}

// Until it is destroyed: tells when a peer or the agent is gone, also while nobody waits on shared
// memory and the coordinator is away. Not for later: a peer that has done its work goes too.
class JoinWatch {
 public:
  JoinWatch(const HostMemory& memory, MembershipClient* membership)
      : stop_(eventfd(0, EFD_CLOEXEC)),
        thread_([this, &memory, membership] { Watch(memory, membership); }) {
    pthread_setname_np(thread_.native_handle(), "join-watch");
  }
  ~JoinWatch() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  }

 private:
  void Watch(const HostMemory& memory, MembershipClient* membership) {
    const v1::AgentHello& hello = memory.handoff.hello;
    std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0},
                                   {memory.handoff.agent_socket.get(), POLLIN | POLLRDHUP, 0}};
    for (const UniqueFd& pidfd : memory.handoff.peer_pidfds)
      entries.push_back({pidfd.get(), POLLIN, 0});
    while (poll(entries.data(), entries.size(), -1) < 0 && errno == EINTR) {
    }
    if (entries[0].revents != 0) return;
    if (entries[1].revents != 0) {
      membership->Interrupt(absl::UnavailableError(
          absl::StrCat("the agent of host ", hello.host_name(), " is gone")));
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

  const UniqueFd stop_;
  std::jthread thread_;
};

absl::Status CheckFingerprints(const v1::Assignment& assignment, const v1::Layout& layout,
                               const PlannedUnits& planned) {
  const google::protobuf::RepeatedPtrField<v1::Unit> units(planned.units.begin(),
                                                           planned.units.end());
  const google::protobuf::RepeatedPtrField<v1::UnitLayout> layouts(planned.layouts.begin(),
                                                                   planned.layouts.end());
  if (PlanFingerprint(units) != assignment.plan_fingerprint() ||
      LayoutFingerprint(layout, layouts) != assignment.layout_fingerprint()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the units of job ", assignment.job(),
                     " do not have the fingerprint that the coordinator gave; "
                     "coordinator and worker are of different builds"));
  }
  return absl::OkStatus();
}

// Another plan than the one that the rank was given, with the same bytes everywhere.
void SpoilPlanForTests(PlannedUnits& planned) {
  v1::Unit& unit = planned.units.front();
  unit.set_reduce_dtype(unit.reduce_dtype() == v1::FLOAT64 ? v1::FLOAT32 : v1::FLOAT64);
}

HostSync::Options SyncOptions(const HostMemory& memory) {
  const v1::AgentHello& hello = memory.handoff.hello;
  HostSync::Options options;
  options.control = memory.mappings[static_cast<int>(HandoffFile::kControl)].data();
  options.local_world_size = hello.assignment().local_world_size();
  options.first_rank = hello.assignment().local_rank_start();
  options.local_rank = hello.assignment().rank() - options.first_rank;
  options.unsharded_slots = hello.layout().unsharded_slots_size();
  options.gradient_slots = hello.layout().gradient_slots_size();
  for (const UniqueFd& pidfd : memory.handoff.peer_pidfds)
    options.peer_pidfds.push_back(pidfd.get());
  options.agent_socket = memory.handoff.agent_socket.get();
  options.host_name = hello.host_name();
  options.timeout = FromProto(hello.spec().timeouts().collective());
  return options;
}

// The slots of this rank's shard group.
char* UnshardedOf(const HostMemory& memory) {
  const v1::AgentHello& hello = memory.handoff.hello;
  const int local_rank = hello.assignment().rank() - hello.assignment().local_rank_start();
  const int64_t offset =
      hello.layout().device() == v1::CUDA ? 0 : UnshardedGroupOffset(hello.layout(), local_rank);
  return memory.mappings[static_cast<int>(HandoffFile::kUnsharded)].data() + offset;
}

absl::Span<char> GradientFile(const HostMemory& memory) {
  const MemoryMapping& mapped = memory.mappings[static_cast<int>(HandoffFile::kGradient)];
  return absl::MakeSpan(mapped.data(), mapped.bytes());
}

std::unique_ptr<Collectives> MakeCollectives(const std::shared_ptr<HostMemory>& memory,
                                             const SessionParts& parts,
                                             std::unique_ptr<HostLinks> links) {
  const v1::AgentHello& hello = memory->handoff.hello;
  ShmCollectives::Options options;
  options.group = ShardGroupOf(hello.assignment(), hello.layout(), hello.host());
  options.sync = SyncOptions(*memory);
  options.unsharded = UnshardedOf(*memory);
  options.gradients = memory->mappings[static_cast<int>(HandoffFile::kGradient)].data();
  options.layout = hello.layout();
  options.memory = memory;
  if (links != nullptr) {
    options.hosts =
        std::make_shared<HostTurns>(std::move(links), SumStaging(hello, GradientFile(*memory)));
  }
  for (const v1::Unit& unit : parts.planned.units)
    options.unit_names.push_back(unit.fqn().empty() ? "(root)" : unit.fqn());
  options.faults = parts.faults.get();
  options.fingerprint = parts.held->fingerprint();
  options.position = parts.position.get();
  return std::make_unique<ShmCollectives>(std::move(options));
}

// `built`: what the rank has built; null: nothing, and the seed gives the first values.
absl::Status FillShards(const v1::AgentHello& hello, const PlannedUnits& planned, KeptShards* built,
                        ShardStore& store) {
  const int index = hello.assignment().shard_index();
  for (size_t unit = 0; unit < planned.units.size(); ++unit) {
    const ShardSpan shard = store.Parameters(static_cast<int>(unit));
    if (built != nullptr) {
      TESSERA_RETURN_IF_ERROR(
          built->MoveTo(planned.units[unit], planned.layouts[unit], index, shard));
    } else {
      TESSERA_RETURN_IF_ERROR(FillShard(planned.units[unit], planned.layouts[unit], index,
                                        static_cast<uint64_t>(hello.spec().seed()), shard));
    }
  }
  return absl::OkStatus();
}

// Puts the data path, so far the host's, where the job's device is.
absl::Status TakeDevice(const v1::AgentHello& hello, bool on_gpu, absl::Span<char> rank_file,
                        SessionParts& parts) {
  if (hello.layout().device() != v1::CUDA) return absl::OkStatus();
  if (!on_gpu) {
    return absl::FailedPreconditionError(
        "the job's device is cuda, but this program computes on the CPU; give the job device auto "
        "or cpu, or a program that says on_gpu");
  }
  TESSERA_ASSIGN_OR_RETURN(const ProcessEnv env, ProcessEnv::Read());
  const int gpu = hello.assignment().rank() - hello.assignment().local_rank_start();
  TESSERA_ASSIGN_OR_RETURN(const CudaApi* api, OpenGpu(gpu, {.nccl_library = env.nccl_library,
                                                             .cuda_home = env.cuda_home}));
  return TakeGpu(api, gpu, rank_file, parts);
}

// Takes the rank, unless it has `built` as that, gets its units and makes its memory ready. `parts`
// has what it takes to leave when this fails.
absl::Status BecomeReady(const std::shared_ptr<HostMemory>& memory,
                         const std::shared_ptr<EndRelay>& relay, bool on_gpu, KeptShards* built,
                         SessionParts& parts) {
  const v1::AgentHello& hello = memory->handoff.hello;
  const absl::Duration timeout = FromProto(hello.spec().timeouts().form());
  parts.faults->Hit("join");
  const JoinWatch watch(*memory, parts.membership.get());
  v1::JoinRank join;
  join.set_job(hello.assignment().job());
  join.set_generation(hello.assignment().generation());
  join.set_rank(hello.assignment().rank());
  join.set_incarnation(hello.incarnation());
  join.set_pid(getpid());
  if (built == nullptr) {
    TESSERA_RETURN_IF_ERROR(parts.membership->JoinRank(
        join, timeout, [relay](const absl::Status& status) { relay->End(status); }));
  }
  // Before the first step, so that what keeps the last one's export from being written is known.
  TESSERA_ASSIGN_OR_RETURN(parts.directory_lock, PrepareDirectory(hello.spec(), join.rank()));
  TESSERA_ASSIGN_OR_RETURN(parts.planned,
                           parts.membership->ListUnits(join.job(), join.generation(), timeout));
  TESSERA_RETURN_IF_ERROR(CheckFingerprints(hello.assignment(), hello.layout(), parts.planned));
  if (parts.faults->Spoils("plan")) SpoilPlanForTests(parts.planned);
  parts.held = std::make_unique<Agreement>(
      AgreementText(parts.planned.units, hello.layout(), parts.planned.layouts, hello.spec()));

  const MemoryMapping& mapped = memory->mappings[static_cast<int>(HandoffFile::kRank)];
  const absl::Span<char> rank_file = absl::MakeSpan(mapped.data(), mapped.bytes());
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<HostLinks> links,
                           MeetHosts(hello, GradientFile(*memory), parts.membership.get()));
  parts.collectives = MakeCollectives(memory, parts, std::move(links));
  TESSERA_RETURN_IF_ERROR(relay->Connect(parts.collectives.get()));
  TESSERA_RETURN_IF_ERROR(TakeDevice(hello, on_gpu, rank_file, parts));
  ShardStore::Options store;
  store.file = rank_file;
  store.layout = hello.layout();
  store.units = parts.planned.units;
  store.layouts = parts.planned.layouts;
  store.shard_index = hello.assignment().shard_index();
  TESSERA_ASSIGN_OR_RETURN(store.optimizer, OptimizerOptionsOf(hello.spec().optimizer()));
  TESSERA_ASSIGN_OR_RETURN(store.groups, ParameterGroups::Create(hello.spec().optimizer()));
  TESSERA_ASSIGN_OR_RETURN(store.norm_type, NormTypeOf(hello.spec().optimizer()));
  store.slices = ResidentSlices(store.layout, store.units, store.layouts, store.shard_index,
                                UnshardedOf(*memory));
  store.faults = parts.faults.get();
  TESSERA_ASSIGN_OR_RETURN(parts.store, ShardStore::Create(std::move(store)));
  TESSERA_RETURN_IF_ERROR(FillShards(hello, parts.planned, built, *parts.store));
  TESSERA_ASSIGN_OR_RETURN(parts.start, LoadValues({.job = hello.spec(),
                                                    .units = parts.planned.units,
                                                    .layouts = parts.planned.layouts,
                                                    .shard_index = hello.assignment().shard_index(),
                                                    .store = *parts.store,
                                                    .log = join.rank() == 0}));
  TESSERA_ASSIGN_OR_RETURN(parts.measured_bytes, MeasureMappedBytes());
  return parts.membership->AwaitStart(parts.measured_bytes, timeout);
}

// Ends with Leave whatever fails from now on.
absl::StatusOr<std::unique_ptr<Session>> Become(DraftRank rank, const ProcessEnv& env, bool on_gpu,
                                                KeptShards* built) {
  SessionParts parts;
  parts.membership = std::move(rank.membership);
  const auto join = [&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<HostMemory> memory,
                             MapMemory(std::move(rank.handoff)));
    TESSERA_RETURN_IF_ERROR(CheckLengths(*memory));
    const v1::AgentHello& hello = memory->handoff.hello;
    TESSERA_ASSIGN_OR_RETURN(FaultPoints faults,
                             FaultPoints::Parse(env.test_fault, hello.assignment().rank()));
    parts.assignment = hello.assignment();
    parts.spec = hello.spec();
    parts.layout = hello.layout();
    parts.host = hello.host();
    parts.incarnation = hello.incarnation();
    parts.position = std::make_shared<PositionPublisher>();
    parts.membership->SetPosition(parts.position);
    parts.gradients_dir = env.test_gradients_dir;
    parts.writer_faults = std::make_shared<FaultPoints>(faults);
    parts.faults = std::make_unique<FaultPoints>(std::move(faults));
    return BecomeReady(memory, rank.relay, on_gpu, built, parts);
  };
  if (absl::Status status = join(); !status.ok()) {
    rank.relay->Connect(nullptr).IgnoreError();
    parts.membership->Leave(status, BlamedRank(status), kLeaveTimeout);
    return status;
  }
  const bool resumes = parts.spec.checkpoint().resume() != "none";
  const std::unique_ptr<Agreement> held = std::move(parts.held);
  auto impl = std::make_shared<SessionImpl>(std::move(parts));
  absl::Status status = held->Check([&](absl::string_view payload, absl::string_view what) {
    return impl->parts().collectives->Exchange(payload, what);
  });
  if (status.ok() && resumes) status = impl->AgreeOnStart();
  if (!status.ok()) {
    impl->Abort(status);
    return status;
  }
  return std::make_unique<Session>(std::move(impl));
}

absl::StatusOr<std::unique_ptr<Session>> BecomeBuilt(WrapBuilder& builder, const ProcessEnv& env,
                                                     bool on_gpu) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<DraftRank> rank, BuiltRank::Take(builder));
  if (absl::Status status = AwaitFiles(*rank); !status.ok()) {
    rank->membership->Leave(status, BlamedRank(status), kLeaveTimeout);
    return status;
  }
  return Become(std::move(*rank), env, on_gpu, &BuiltRank::Kept(builder));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Join(Options options) {
  TESSERA_ASSIGN_OR_RETURN(const ProcessEnv env, ProcessEnv::Read());
  if (options.built != nullptr) return BecomeBuilt(*options.built, env, options.on_gpu);
  if (!env.agent_fd.has_value()) {
    return absl::FailedPreconditionError(
        "no agent started this process; run it with `tessera-worker --coordinator=HOST:PORT -- "
        "PROGRAM`");
  }
  DraftRank rank;
  TESSERA_ASSIGN_OR_RETURN(rank.handoff, ReceiveHandoff(UniqueFd(*env.agent_fd), kHandoffTimeout));
  if (rank.handoff.hello.draft()) {
    return absl::FailedPreconditionError(
        "the job's model is built by its ranks (model.built), and this program joins without one; "
        "build it with worker/wrap.h, or give the job a model");
  }
  rank.relay = std::make_shared<EndRelay>(std::move(options.on_end));
  rank.membership = CreateMembershipClient(rank.handoff.hello.coordinator());
  return Become(std::move(rank), env, options.on_gpu, nullptr);
}

}  // namespace tessera
