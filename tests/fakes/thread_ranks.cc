#include "tests/fakes/thread_ranks.h"

#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "common/control_file.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "worker/collectives/shm_collectives.h"
#include "worker/parameter_init.h"

namespace tessera {
namespace {

int64_t SlotsEnd(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  int64_t end = 0;
  for (const v1::Slot& slot : slots) end = std::max(end, slot.offset_bytes() + slot.bytes());
  return end;
}

}  // namespace

ThreadRanks::Buffer::Buffer(int64_t bytes) : bytes_(std::max(bytes, kPageBytes)) {
  data_ = static_cast<char*>(
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

ThreadRanks::Buffer::~Buffer() { munmap(data_, bytes_); }

ThreadRanks::ThreadRanks(v1::JobSpec spec, JobPlan plan, int world_size, Options options)
    : spec_(std::move(spec)),
      plan_(std::move(plan)),
      world_size_(world_size),
      options_(std::move(options)),
      unsharded_(SlotsEnd(plan_.layout.unsharded_slots())),
      gradients_(plan_.layout.gradient_stride_bytes() * world_size),
      control_(ControlFileBytes(world_size, plan_.layout.unsharded_slots_size(),
                                plan_.layout.gradient_slots_size())),
      idle_(world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    files_.push_back(std::make_unique<Buffer>(plan_.layout.rank_file().total_bytes()));
  }
}

absl::StatusOr<std::unique_ptr<ThreadRanks>> ThreadRanks::Create(const v1::JobSpec& spec,
                                                                 int world_size, Options options) {
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec resolved, ResolveJobSpec(spec));
  TESSERA_ASSIGN_OR_RETURN(JobPlan plan, PlanJob(resolved, world_size));
  return std::unique_ptr<ThreadRanks>(
      new ThreadRanks(std::move(resolved), std::move(plan), world_size, std::move(options)));
}

void ThreadRanks::Lag() {
  ++lags_;
  auto others_idle = [&] {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank != options_.lag_rank && !idle_[rank]) return false;
    }
    return true;
  };
  while (!others_idle()) std::this_thread::yield();
}

absl::StatusOr<std::unique_ptr<Session>> ThreadRanks::MakeSession(int rank) {
  SessionParts parts;
  parts.assignment.set_job(spec_.name());
  parts.assignment.set_generation(1);
  parts.assignment.set_rank(rank);
  parts.assignment.set_world_size(world_size_);
  parts.assignment.set_shard_index(rank);
  parts.assignment.set_local_world_size(world_size_);
  parts.spec = spec_;
  parts.layout = plan_.layout;
  parts.planned.units.assign(plan_.plan.units().begin(), plan_.plan.units().end());
  parts.planned.layouts.assign(plan_.layout.units().begin(), plan_.layout.units().end());
  parts.faults = std::make_unique<FaultPoints>();
  if (rank == options_.lag_rank) {
    *parts.faults = FaultPoints([this](absl::string_view point, int64_t) {
      if (point == options_.lag_point) Lag();
    });
  }

  ShmCollectives::Options collectives;
  for (int i = 0; i < world_size_; ++i) collectives.group.ranks.push_back(i);
  collectives.group.hosts.assign(world_size_, 0);
  collectives.group.index = rank;
  collectives.sync.control = control_.data();
  collectives.sync.local_world_size = world_size_;
  collectives.sync.local_rank = rank;
  collectives.sync.unsharded_slots = plan_.layout.unsharded_slots_size();
  collectives.sync.gradient_slots = plan_.layout.gradient_slots_size();
  collectives.sync.timeout = options_.timeout;
  collectives.sync.on_park = [this, rank](bool parked) { idle_[rank] = parked; };
  collectives.unsharded = unsharded_.data();
  collectives.gradients = gradients_.data();
  collectives.layout = plan_.layout;
  for (const v1::Unit& unit : plan_.plan.units())
    collectives.unit_names.push_back(unit.fqn().empty() ? "(root)" : unit.fqn());
  collectives.faults = parts.faults.get();
  parts.collectives = std::make_unique<ShmCollectives>(std::move(collectives));

  if (options_.prepare != nullptr)
    TESSERA_RETURN_IF_ERROR(options_.prepare(rank, rank_file(rank), parts));

  ShardStore::Options store;
  store.file = rank_file(rank);
  store.layout = plan_.layout;
  store.units = parts.planned.units;
  store.layouts = parts.planned.layouts;
  store.shard_index = rank;
  TESSERA_ASSIGN_OR_RETURN(store.optimizer, OptimizerOptionsOf(spec_.optimizer()));
  store.slices = ResidentSlices(store.layout, store.units, store.layouts, rank, unsharded_.data());
  store.faults = parts.faults.get();
  TESSERA_ASSIGN_OR_RETURN(parts.store, ShardStore::Create(std::move(store)));
  for (int unit = 0; unit < plan_.plan.units_size(); ++unit) {
    TESSERA_RETURN_IF_ERROR(FillShard(plan_.plan.units(unit), plan_.layout.units(unit), rank,
                                      static_cast<uint64_t>(spec_.seed()),
                                      parts.store->Parameters(unit)));
  }
  return std::make_unique<Session>(std::make_shared<SessionImpl>(std::move(parts)));
}

std::vector<absl::Status> ThreadRanks::Run(const std::function<absl::Status(Session&)>& body) {
  std::vector<absl::Status> statuses(world_size_);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world_size_; ++rank) {
      threads.emplace_back([this, rank, &body, &statuses] {
        absl::StatusOr<std::unique_ptr<Session>> session = MakeSession(rank);
        statuses[rank] = session.ok() ? body(**session) : session.status();
        if (session.ok() && !statuses[rank].ok()) (*session)->Abort(statuses[rank]);
        idle_[rank] = true;
      });
    }
  }
  return statuses;
}

}  // namespace tessera
