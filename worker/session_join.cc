// Session::Join: from the socket of the agent to a rank that is ready for its first step.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/process_env.h"
#include "common/status_macros.h"
#include "worker/agent_generations.h"
#include "worker/agent_socket.h"
#include "worker/agreement.h"
#include "worker/blame.h"
#include "worker/checkpoint.h"
#include "worker/checkpoint_loader.h"
#include "worker/data_path.h"
#include "worker/device/probe.h"
#include "worker/draft_rank.h"
#include "worker/host_joining.h"
#include "worker/host_meeting.h"
#include "worker/mapped_bytes.h"
#include "worker/parameter_init.h"
#include "worker/session.h"
#include "worker/session_impl.h"

namespace tessera {
namespace {

// The agent sends the handoff as soon as it has started all its workers.
constexpr absl::Duration kHandoffTimeout = absl::Seconds(60);
// A rank that cannot join says so for at most so long: the coordinator may be stopped.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

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

// Fills the shards, unless an earlier process of a job that recovers has.
absl::Status FillUnlessKept(const v1::AgentHello& hello, KeptShards* built, SessionParts& parts) {
  if (parts.recover && parts.store->filled().has_value()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(FillShards(hello, parts.planned, built, *parts.store));
  TESSERA_ASSIGN_OR_RETURN(parts.start, LoadValues({.job = hello.spec(),
                                                    .units = parts.planned.units,
                                                    .layouts = parts.planned.layouts,
                                                    .shard_index = hello.assignment().shard_index(),
                                                    .store = *parts.store,
                                                    .log = hello.assignment().rank() == 0,
                                                    .run = hello.run(),
                                                    .attempt = hello.attempt()}));
  return absl::OkStatus();
}

absl::Status MakeStore(const HostMemory& memory, SessionParts& parts) {
  const v1::AgentHello& hello = memory.hello;
  ShardStore::Options store;
  store.file = memory.file(HandoffFile::kRank);
  store.layout = hello.layout();
  store.units = parts.planned.units;
  store.layouts = parts.planned.layouts;
  store.shard_index = hello.assignment().shard_index();
  TESSERA_ASSIGN_OR_RETURN(store.optimizer, OptimizerOptionsOf(hello.spec().optimizer()));
  TESSERA_ASSIGN_OR_RETURN(store.groups, ParameterGroups::Create(hello.spec().optimizer()));
  TESSERA_ASSIGN_OR_RETURN(store.norm_type, NormTypeOf(hello.spec().optimizer()));
  store.slices = ResidentSlices(store.layout, store.units, store.layouts, store.shard_index,
                                memory.unsharded());
  store.faults = parts.faults.get();
  TESSERA_ASSIGN_OR_RETURN(parts.store, ShardStore::Create(std::move(store)));
  return absl::OkStatus();
}

// Takes the rank, unless it has `built` as that, gets its units and makes its memory ready. `parts`
// has what it takes to leave when this fails.
absl::Status BecomeReady(const std::shared_ptr<HostMemory>& memory,
                         const std::shared_ptr<EndRelay>& relay, bool on_gpu, KeptShards* built,
                         SessionParts& parts) {
  const v1::AgentHello& hello = memory->hello;
  const absl::Duration timeout = memory->form_timeout();
  parts.faults->Hit("join");
  const JoinWatch watch(*memory, parts.membership.get());
  const v1::JoinRank join = JoinOf(hello);
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
  parts.held = std::make_shared<Agreement>(
      AgreementText(parts.planned.units, hello.layout(), parts.planned.layouts, hello.spec()));
  const RankContext context{parts.faults.get(), parts.position, parts.held->fingerprint()};
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<HostLinks> links,
      MeetHosts(hello, memory->file(HandoffFile::kGradient), parts.membership.get()));
  parts.collectives = MakeHostCollectives(memory, parts.planned, context, std::move(links));
  TESSERA_RETURN_IF_ERROR(relay->Connect(parts.collectives.get()));
  TESSERA_RETURN_IF_ERROR(TakeDevice(hello, on_gpu, memory->file(HandoffFile::kRank), parts));
  TESSERA_RETURN_IF_ERROR(MakeStore(*memory, parts));
  TESSERA_RETURN_IF_ERROR(FillUnlessKept(hello, built, parts));
  if (CanRecover(hello.spec(), hello.layout())) {
    parts.next = std::make_shared<AgentGenerations>(AgentGenerations::Options{
        .memory = memory, .relay = relay, .planned = parts.planned, .context = context});
  }
  // The other ranks wait to hear what the file has kept; after that it is ready.
  if (parts.recover) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(parts.measured_bytes, MeasureMappedBytes());
  return parts.membership->AwaitStart(parts.measured_bytes, parts.start.step, timeout);
}

absl::Status TakeHandoff(AgentHandoff handoff, const ProcessEnv& env,
                         std::shared_ptr<HostMemory>& memory, SessionParts& parts) {
  TESSERA_ASSIGN_OR_RETURN(memory, HostMemory::Map(std::move(handoff)));
  const v1::AgentHello& hello = memory->hello;
  // A process that takes over from one that a fault has ended has none.
  const int64_t generation = hello.assignment().generation();
  TESSERA_ASSIGN_OR_RETURN(
      FaultPoints faults,
      FaultPoints::Parse(env.test_fault, hello.assignment().rank(), generation));
  parts.assignment = hello.assignment();
  parts.spec = hello.spec();
  parts.layout = hello.layout();
  parts.host = hello.host();
  parts.incarnation = hello.incarnation();
  parts.position = std::make_shared<PositionPublisher>();
  parts.membership->SetPosition(parts.position);
  parts.gradients_dir = env.test_gradients_dir;
  parts.run = hello.run();
  parts.recover = hello.recover();
  parts.writer_faults = std::make_shared<FaultPoints>(faults);
  parts.faults = std::make_unique<FaultPoints>(std::move(faults));
  return absl::OkStatus();
}

// The generation that this process was started for ended, `why`, before it could join: the agent
// hands out the next.
absl::Status TakeNext(const absl::Status& why, std::shared_ptr<HostMemory>& memory,
                      std::shared_ptr<EndRelay>& relay, SessionParts& parts) {
  relay->Connect(nullptr).IgnoreError();
  if (!absl::IsAborted(why)) parts.membership->Break(why, BlamedRank(why));
  const absl::Time deadline = Clock::Real()->Now() + LongestRecovery(memory->hello.spec());
  TESSERA_ASSIGN_OR_RETURN(AgentHandoff handoff,
                           AwaitFurtherHandoff(*memory, *relay, /*wake_fd=*/-1, deadline));
  parts.directory_lock.Reset();
  parts.next.reset();
  parts.store.reset();
  parts.membership.reset();
  parts.collectives.reset();
  TESSERA_ASSIGN_OR_RETURN(memory, memory->Next(std::move(handoff)));
  relay = std::make_shared<EndRelay>(relay->on_end());
  parts.membership = CreateMembershipClient(memory->hello.coordinator());
  parts.membership->SetPosition(parts.position);
  parts.assignment = memory->hello.assignment();
  return absl::OkStatus();
}

// Ends with Leave whatever fails from now on.
absl::StatusOr<std::unique_ptr<Session>> Become(DraftRank rank, const ProcessEnv& env, bool on_gpu,
                                                KeptShards* built) {
  SessionParts parts;
  parts.membership = std::move(rank.membership);
  std::shared_ptr<HostMemory> memory;
  absl::Status status = TakeHandoff(std::move(rank.handoff), env, memory, parts);
  if (status.ok()) status = BecomeReady(memory, rank.relay, on_gpu, built, parts);
  while (parts.recover && IsPassedOver(status)) {
    status = TakeNext(status, memory, rank.relay, parts);
    if (!status.ok()) break;
    status = BecomeReady(memory, rank.relay, on_gpu, built, parts);
  }
  if (!status.ok()) {
    rank.relay->Connect(nullptr).IgnoreError();
    if (parts.membership != nullptr)
      parts.membership->Leave(status, BlamedRank(status), kLeaveTimeout);
    return status;
  }
  const bool recover = parts.recover;
  const bool loads = parts.spec.checkpoint().resume() != "none" || memory->hello.attempt() > 1;
  memory.reset();
  auto impl = std::make_shared<SessionImpl>(std::move(parts));
  if (recover) {
    status = impl->EnterRecovered();
  } else {
    status = AgreeOnPlan(impl->parts());
    if (status.ok() && loads) status = impl->AgreeOnStart();
  }
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
