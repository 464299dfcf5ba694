#include "tests/fakes/thread_ranks.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "common/control_file.h"
#include "common/dtype.h"
#include "common/job_spec.h"
#include "common/optimizer_state.h"
#include "common/status_macros.h"
#include "common/unsharded_file.h"
#include "coordinator/layout.h"
#include "worker/checkpoint_loader.h"
#include "worker/collectives/shm_collectives.h"
#include "worker/parameter_init.h"

namespace tessera {
namespace {

// [begin, end) in bytes, in order.
using Regions = std::vector<std::pair<int64_t, int64_t>>;

Regions RegionsOf(const google::protobuf::RepeatedPtrField<v1::Slot>& slots, int64_t base) {
  Regions regions;
  for (const v1::Slot& slot : slots) {
    const int64_t begin = base + slot.offset_bytes();
    regions.emplace_back(begin, begin + slot.bytes());
  }
  std::sort(regions.begin(), regions.end());
  return regions;
}

Regions RankFileRegions(const JobPlan& plan) {
  const v1::RankFileLayout& file = plan.layout.rank_file();
  Regions regions = {{0, file.record_bytes()},
                     {file.undo_offset_bytes(), file.undo_offset_bytes() + file.undo_bytes()}};
  for (int i = 0; i < plan.layout.units_size(); ++i) {
    const v1::UnitLayout& unit = plan.layout.units(i);
    const DType original = plan.plan.units(i).original_dtype();
    const int64_t shard_bytes = unit.shard_numel() * DTypeBytes(original);
    const int64_t state_bytes =
        unit.shard_numel() * DTypeBytes(OptimizerStateDType(original)) * file.optimizer_arrays();
    regions.emplace_back(unit.gradient_offset_bytes(),
                         unit.gradient_offset_bytes() +
                             unit.shard_numel() * DTypeBytes(GradientDType(plan.plan.units(i))));
    regions.emplace_back(unit.optimizer_offset_bytes(),
                         unit.optimizer_offset_bytes() + state_bytes);
    if (MasterIsResident(plan.plan.units(i), plan.layout)) continue;
    regions.emplace_back(unit.parameter_offset_bytes(),
                         unit.parameter_offset_bytes() + shard_bytes);
  }
  std::sort(regions.begin(), regions.end());
  return regions;
}

// A GPU's slots are not in it.
int64_t UnshardedBytes(const v1::Layout& layout) {
  return layout.device() == v1::CUDA ? 0 : layout.replica_count() * UnshardedGroupBytes(layout);
}

}  // namespace

ThreadRanks::Buffer::Buffer(int64_t bytes, bool forked) : bytes_(bytes), forked_(forked) {
  if (forked) {
    data_ = static_cast<char*>(mmap(nullptr, std::max(bytes, kPageBytes), PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    return;
  }
  data_ = static_cast<char*>(operator new(bytes, std::align_val_t(kPageBytes)));
  std::memset(data_, 0, bytes);
}

ThreadRanks::Buffer::~Buffer() {
  ASAN_UNPOISON_MEMORY_REGION(data_, bytes_);
  if (forked_) {
    munmap(data_, std::max(bytes_, kPageBytes));
  } else {
    operator delete(data_, std::align_val_t(kPageBytes));
  }
}

void ThreadRanks::Buffer::AllowOnly(const std::vector<std::pair<int64_t, int64_t>>& regions) {
  int64_t free = 0;  // where the gap before the next region begins
  for (const auto& [begin, end] : regions) {
    if (begin > free) ASAN_POISON_MEMORY_REGION(data_ + free, begin - free);
    free = std::max(free, end);
  }
  if (free < bytes_) ASAN_POISON_MEMORY_REGION(data_ + free, bytes_ - free);
}

ThreadRanks::ThreadRanks(v1::JobSpec spec, JobPlan plan, int world_size, Options options)
    : spec_(std::move(spec)),
      plan_(std::move(plan)),
      world_size_(world_size),
      options_(std::move(options)),
      unsharded_(UnshardedBytes(plan_.layout), options_.forked),
      gradients_(plan_.layout.gradient_stride_bytes() * world_size, options_.forked),
      control_(ControlFileBytes(world_size, plan_.layout.unsharded_slots_size(),
                                plan_.layout.gradient_slots_size()),
               options_.forked),
      idle_(world_size),
      ended_(world_size) {
  // A GPU's slots are not in these buffers.
  const bool shared = plan_.layout.device() != v1::CUDA;
  Regions unsharded;
  for (int group = 0; shared && group < plan_.layout.replica_count(); ++group) {
    const Regions own =
        RegionsOf(plan_.layout.unsharded_slots(), group * UnshardedGroupBytes(plan_.layout));
    unsharded.insert(unsharded.end(), own.begin(), own.end());
  }
  if (shared) unsharded_.AllowOnly(unsharded);
  Regions gradients;
  for (int rank = 0; rank < world_size; ++rank) {
    for (const auto* slots : {&plan_.layout.gradient_slots(), &plan_.layout.reshard_slots(),
                              &plan_.layout.accumulation_slots()}) {
      const Regions own = RegionsOf(*slots, rank * plan_.layout.gradient_stride_bytes());
      gradients.insert(gradients.end(), own.begin(), own.end());
    }
    files_.push_back(
        std::make_unique<Buffer>(plan_.layout.rank_file().total_bytes(), options_.forked));
    files_.back()->AllowOnly(RankFileRegions(plan_));
  }
  std::sort(gradients.begin(), gradients.end());
  if (shared) gradients_.AllowOnly(gradients);
}

absl::StatusOr<std::unique_ptr<ThreadRanks>> ThreadRanks::Create(const v1::JobSpec& spec,
                                                                 int world_size, Options options) {
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec resolved, ResolveJobSpec(spec));
  TESSERA_ASSIGN_OR_RETURN(JobPlan plan, PlanJob(resolved, world_size));
  return std::unique_ptr<ThreadRanks>(
      new ThreadRanks(std::move(resolved), std::move(plan), world_size, std::move(options)));
}

void ThreadRanks::Lag() {
  lags_.fetch_add(1, std::memory_order_relaxed);
  auto others_idle = [&] {
    bool met = options_.meet_point.empty() || met_.load(std::memory_order_relaxed);
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank == options_.lag_rank) continue;
      if (!idle_[rank].load(std::memory_order_relaxed)) return false;
      met = met || ended_[rank].load(std::memory_order_relaxed);
    }
    return met;
  };
  while (!others_idle()) std::this_thread::yield();
}

void ThreadRanks::Meet() {
  while (lags_.load(std::memory_order_relaxed) == 0 &&
         !ended_[options_.lag_rank].load(std::memory_order_relaxed))
    std::this_thread::yield();
  met_.store(true, std::memory_order_relaxed);
}

std::unique_ptr<FaultPoints> ThreadRanks::MakeFaults(int rank) {
  if (options_.lag_rank < 0) return std::make_unique<FaultPoints>();
  const bool lags = rank == options_.lag_rank;
  const std::string point = lags ? options_.lag_point : options_.meet_point;
  const int only = lags ? options_.lag_passage : options_.meet_passage;
  return std::make_unique<FaultPoints>(
      [this, point, only, lags, passage = 0](absl::string_view at, int64_t) mutable {
        if (at != point || (++passage != only && only != 0)) return;
        lags ? Lag() : Meet();
      });
}

int64_t ThreadRanks::UnshardedOffset(int rank) const {
  return plan_.layout.device() == v1::CUDA ? 0 : UnshardedGroupOffset(plan_.layout, rank);
}

int64_t ThreadRanks::control_bytes() const {
  return ControlFileBytes(world_size_, plan_.layout.unsharded_slots_size(),
                          plan_.layout.gradient_slots_size());
}

v1::Assignment ThreadRanks::AssignmentOf(int rank, int64_t generation) const {
  v1::Assignment assignment;
  assignment.set_job(spec_.name());
  assignment.set_generation(generation);
  assignment.set_rank(rank);
  assignment.set_world_size(world_size_);
  assignment.set_shard_index(rank % plan_.layout.shard_count());
  assignment.set_replica_index(rank / plan_.layout.shard_count());
  assignment.set_local_world_size(world_size_);
  return assignment;
}

std::unique_ptr<Collectives> ThreadRanks::MakeCollectives(int rank, const Wiring& wiring,
                                                          FaultPoints* faults) {
  v1::Layout layout = plan_.layout;
  if (options_.spoil_layout) options_.spoil_layout(layout);
  ShmCollectives::Options collectives;
  collectives.group = ShardGroupOf(AssignmentOf(rank, wiring.generation), layout, /*host=*/0);
  collectives.sync.control = wiring.control != nullptr ? wiring.control : control_.data();
  collectives.sync.local_world_size = world_size_;
  collectives.sync.local_rank = rank;
  collectives.sync.unsharded_slots = plan_.layout.unsharded_slots_size();
  collectives.sync.gradient_slots = plan_.layout.gradient_slots_size();
  collectives.sync.timeout = options_.timeout;
  collectives.sync.peer_pidfds = wiring.peer_fds;
  collectives.sync.on_park = [this, rank](bool parked) {
    idle_[rank].store(parked, std::memory_order_relaxed);
  };
  collectives.unsharded = unsharded_.data() + UnshardedOffset(rank);
  collectives.gradients = gradients_.data();
  collectives.layout = layout;
  for (const v1::Unit& unit : plan_.plan.units())
    collectives.unit_names.push_back(unit.fqn().empty() ? "(root)" : unit.fqn());
  collectives.faults = faults;
  std::unique_ptr<Collectives> made = std::make_unique<ShmCollectives>(std::move(collectives));
  return options_.wrap ? options_.wrap(rank, std::move(made)) : std::move(made);
}

absl::StatusOr<std::unique_ptr<ShardStore>> ThreadRanks::MakeStore(int rank,
                                                                   const SessionParts& parts) {
  ShardStore::Options store;
  store.file = rank_file(rank);
  store.layout = parts.layout;
  store.units = parts.planned.units;
  store.layouts = parts.planned.layouts;
  store.shard_index = parts.assignment.shard_index();
  TESSERA_ASSIGN_OR_RETURN(store.optimizer, OptimizerOptionsOf(spec_.optimizer()));
  TESSERA_ASSIGN_OR_RETURN(store.groups, ParameterGroups::Create(spec_.optimizer()));
  TESSERA_ASSIGN_OR_RETURN(store.norm_type, NormTypeOf(spec_.optimizer()));
  store.slices = ResidentSlices(store.layout, store.units, store.layouts, store.shard_index,
                                unsharded_.data() + UnshardedOffset(rank));
  store.faults = parts.faults.get();
  return ShardStore::Create(std::move(store));
}

absl::StatusOr<SessionParts> ThreadRanks::MakeParts(int rank, Wiring wiring) {
  SessionParts parts;
  parts.assignment = AssignmentOf(rank, wiring.generation);
  parts.spec = spec_;
  parts.layout = plan_.layout;
  if (options_.spoil_layout) options_.spoil_layout(parts.layout);
  parts.planned.units.assign(plan_.plan.units().begin(), plan_.plan.units().end());
  parts.planned.layouts.assign(parts.layout.units().begin(), parts.layout.units().end());
  parts.faults = wiring.faults != nullptr ? std::move(wiring.faults) : MakeFaults(rank);
  parts.recover = wiring.recover;
  parts.next = wiring.next;
  if (options_.membership) parts.membership = options_.membership(rank);
  parts.collectives = MakeCollectives(rank, wiring, parts.faults.get());
  if (options_.prepare != nullptr)
    TESSERA_RETURN_IF_ERROR(options_.prepare(rank, rank_file(rank), parts));
  TESSERA_ASSIGN_OR_RETURN(parts.store, MakeStore(rank, parts));
  parts.writer_faults = wiring.writer_faults;
  if (options_.writer_fault) {
    parts.writer_faults = std::make_shared<FaultPoints>(
        [this, rank](absl::string_view point, int64_t) { options_.writer_fault(rank, point); });
  }
  if (parts.recover && parts.store->filled().has_value()) return parts;
  for (int unit = 0; unit < plan_.plan.units_size(); ++unit) {
    TESSERA_RETURN_IF_ERROR(
        FillShard(plan_.plan.units(unit), plan_.layout.units(unit), parts.assignment.shard_index(),
                  static_cast<uint64_t>(spec_.seed()), parts.store->Parameters(unit)));
  }
  TESSERA_ASSIGN_OR_RETURN(parts.start, LoadValues({.job = spec_,
                                                    .units = parts.planned.units,
                                                    .layouts = parts.planned.layouts,
                                                    .shard_index = rank,
                                                    .store = *parts.store,
                                                    .log = false}));
  return parts;
}

absl::StatusOr<std::unique_ptr<Session>> ThreadRanks::MakeSession(int rank) {
  TESSERA_ASSIGN_OR_RETURN(SessionParts parts, MakeParts(rank, Wiring()));
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
        ended_[rank].store(true, std::memory_order_relaxed);
        idle_[rank].store(true, std::memory_order_relaxed);
      });
    }
  }
  return statuses;
}

}  // namespace tessera
