// NcclCollectives: how it is set up and how it ends.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/collectives/nccl_collectives.h"

namespace tessera {

absl::StatusOr<std::string> NcclCollectives::NewId(const CudaApi& api, int device) {
  std::string id(kNcclIdBytes, '\0');
  TESSERA_RETURN_IF_ERROR(
      NcclError(api, api.nccl_get_unique_id(id.data()), "ncclGetUniqueId", device, nullptr));
  return id;
}

NcclCollectives::NcclCollectives(Options options)
    : options_(std::move(options)),
      api_(*options_.api),
      ranks_(static_cast<int64_t>(options_.group.ranks.size())),
      places_(DeviceArenaOf(options_.layout)),
      unsharded_(options_.layout.unsharded_slots_size()),
      reduced_(options_.layout.gradient_slots_size()) {}

absl::StatusOr<std::unique_ptr<NcclCollectives>> NcclCollectives::Create(Options options) {
  if (options.unshard_id.size() != kNcclIdBytes || options.reduce_id.size() != kNcclIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a communicator's id must have ", kNcclIdBytes, " bytes"));
  }
  if (options.layout.unshard_mode() == v1::RESIDENT) {
    return InvalidField("memory.unshard", "resident is for CPUs; GPUs take slots");
  }
  if (options.group.replicas > 1 || options.layout.reshard_slots_size() > 0) {
    return InvalidField("mesh", "replicas and reshard groups are for CPUs; GPUs have neither yet");
  }
  std::unique_ptr<NcclCollectives> collectives(new NcclCollectives(std::move(options)));
  TESSERA_RETURN_IF_ERROR(collectives->SetUp());
  return collectives;
}

absl::Status NcclCollectives::SetUp() {
  TESSERA_ASSIGN_OR_RETURN(
      unshard_stream_,
      CudaStream::Create(
          {.api = &api_, .device = options_.device, .name = "unshard", .wait = options_.wait}));
  TESSERA_ASSIGN_OR_RETURN(
      reduce_stream_,
      CudaStream::Create(
          {.api = &api_, .device = options_.device, .name = "reduce", .wait = options_.wait}));
  TESSERA_RETURN_IF_ERROR(AllocateArena());
  TESSERA_RETURN_IF_ERROR(InitComm(kUnshard, options_.unshard_id));
  TESSERA_RETURN_IF_ERROR(InitComm(kReduce, options_.reduce_id));
  TESSERA_RETURN_IF_ERROR(RegisterArena(kUnshard));
  return RegisterArena(kReduce);
}

absl::Status NcclCollectives::AllocateArena() {
  void* memory = nullptr;
  TESSERA_RETURN_IF_ERROR(Annotate(NcclError(api_, api_.nccl_mem_alloc(&memory, places_.bytes),
                                             "ncclMemAlloc", options_.device, nullptr),
                                   absl::StrCat("buffers of ", places_.bytes, " bytes")));
  arena_ = static_cast<char*>(memory);
  return absl::OkStatus();
}

absl::Status NcclCollectives::InitComm(Which which, const std::string& id) {
  const std::string what =
      which == kUnshard ? "the communicator for unshard" : "the communicator for reduce";
  {
    MutexLock lock(mutex_);
    TESSERA_RETURN_IF_ERROR(ended_);
    NcclComm comm = nullptr;
    const int result =
        api_.nccl_comm_init_rank(&comm, static_cast<int>(ranks_), id.data(), options_.group.index);
    comms_[which] = comm;
    TESSERA_RETURN_IF_ERROR(
        Annotate(NcclError(api_, result, "ncclCommInitRankConfig", options_.device, comm), what));
  }
  return PollUntil(
      options_.wait, [&] { return Ready(which); }, absl::StrCat(what, " of ", ranks_, " ranks"));
}

absl::Status NcclCollectives::RegisterArena(Which which) {
  void* handle = nullptr;
  TESSERA_RETURN_IF_ERROR(
      CallNccl(which, "ncclCommRegister", "registering buffers", [&](NcclComm comm) {
        return api_.nccl_comm_register(comm, arena_, places_.bytes, &handle);
      }));
  MutexLock lock(mutex_);
  registrations_[which] = handle;
  return absl::OkStatus();
}

NcclCollectives::~NcclCollectives() {
  {
    MutexLock lock(mutex_);
    for (const Which which : {kUnshard, kReduce}) {
      if (comms_[which] != nullptr && registrations_[which] != nullptr) {
        api_.nccl_comm_deregister(comms_[which], registrations_[which]);
      }
    }
    TearDownLocked();
  }
  // After an error kernels may still be on their way to the arena.
  for (const CudaStream* stream : {unshard_stream_.get(), reduce_stream_.get(), options_.compute}) {
    if (stream == nullptr) continue;
    if (absl::StatusOr<EventPointer> last = CudaEvent::Record(*stream); last.ok()) {
      (*last)->Wait().IgnoreError();  // nobody to tell
    }
  }
  unshard_stream_.reset();
  reduce_stream_.reset();
  if (arena_ != nullptr) api_.nccl_mem_free(arena_);
}

// To abort is also how they end in peace: unlike ncclCommDestroy it never waits for a peer.
void NcclCollectives::TearDownLocked() {
  if (comms_[kUnshard] == nullptr && comms_[kReduce] == nullptr) return;
  api_.nccl_group_start();
  for (NcclComm& comm : comms_) {
    if (comm != nullptr) api_.nccl_comm_abort(comm);
    comm = nullptr;
  }
  api_.nccl_group_end();
}

void NcclCollectives::Abort(const absl::Status& status) {
  // The peers hear from the host why their operations end.
  options_.host->Abort(status);
  MutexLock lock(mutex_);
  // The reason first: an aborted operation's event passes.
  if (ended_.ok()) ended_ = status;
  TearDownLocked();
}

void NcclCollectives::Interrupt(const absl::Status& status) {
  Keep(status);
  options_.host->Interrupt(status);
}

void NcclCollectives::Keep(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (ended_.ok()) ended_ = status;
}

}  // namespace tessera
