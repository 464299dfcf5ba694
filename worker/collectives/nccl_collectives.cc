#include "worker/collectives/nccl_collectives.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

absl::StatusOr<KernelDType> KernelDTypeOf(DType dtype) {
  if (dtype == v1::FLOAT32) return KernelDType::kFloat32;
  if (dtype == v1::BFLOAT16) return KernelDType::kBFloat16;
  if (dtype == v1::FLOAT16) return KernelDType::kFloat16;
  return absl::InvalidArgumentError(absl::StrCat("no GPU kernel for ", DTypeName(dtype)));
}

absl::Status CheckFits(int64_t bytes, int64_t buffer_bytes, absl::string_view what) {
  if (bytes <= buffer_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " needs ", bytes, " bytes, but its buffer has ", buffer_bytes));
}

}  // namespace

// Passes when its event has, unless the work before it was cut short.
class NcclCollectives::Pending final : public Event::State {
 public:
  Pending(NcclCollectives* owner, EventPointer event, std::string what, std::vector<Work> work,
          OpTiming* timing)
      : owner_(owner),
        event_(std::move(event)),
        what_(std::move(what)),
        work_(std::move(work)),
        timing_(timing) {}

  absl::StatusOr<bool> Poll() override {
    absl::StatusOr<bool> passed = event_->Poll();
    if (!passed.ok()) return Annotate(passed.status(), what_);
    // Asked also when it has passed: it does so, with half of the bytes, when NCCL gives up.
    TESSERA_RETURN_IF_ERROR(Annotate(*passed ? owner_->NcclHealth() : owner_->Health(), what_));
    if (*passed && timing_ != nullptr) TESSERA_RETURN_IF_ERROR(TakeTime());
    return passed;
  }
  absl::Status Wait() override {
    return PollUntil(
        owner_->options_.wait, [this] { return Poll(); }, what_);
  }

 private:
  absl::Status TakeTime() {
    double work_us = 0;
    for (const Work& work : work_) {
      TESSERA_ASSIGN_OR_RETURN(const double us, work.end->MicrosecondsSince(*work.begin));
      work_us += us;
    }
    timing_->work_us = work_us;
    timing_ = nullptr;
    return absl::OkStatus();
  }

  NcclCollectives* const owner_;
  const EventPointer event_;
  const std::string what_;
  const std::vector<Work> work_;
  OpTiming* timing_;  // null when it is final
};

absl::Status NcclCollectives::AsyncErrorLocked(Which which, int* result) {
  *result = kNcclSuccess;
  TESSERA_RETURN_IF_ERROR(ended_);
  NcclComm comm = comms_[which];
  if (comm == nullptr) return absl::OkStatus();
  const int asked = api_.nccl_comm_get_async_error(comm, result);
  return NcclError(api_, asked != kNcclSuccess ? asked : *result, "ncclCommGetAsyncError",
                   options_.device, comm);
}

absl::StatusOr<bool> NcclCollectives::Ready(Which which) {
  TESSERA_RETURN_IF_ERROR(options_.host->Progress());
  MutexLock lock(mutex_);
  int result = kNcclSuccess;
  TESSERA_RETURN_IF_ERROR(AsyncErrorLocked(which, &result));
  return result != kNcclInProgress;
}

absl::Status NcclCollectives::Health() {
  // First: NCCL too sees that a peer is gone, but does not know whose process it was.
  TESSERA_RETURN_IF_ERROR(options_.host->Progress());
  return NcclHealth();
}

absl::Status NcclCollectives::NcclHealth() {
  MutexLock lock(mutex_);
  int result = kNcclSuccess;
  TESSERA_RETURN_IF_ERROR(AsyncErrorLocked(kUnshard, &result));
  return AsyncErrorLocked(kReduce, &result);
}

absl::Status NcclCollectives::CallNccl(Which which, absl::string_view call, absl::string_view what,
                                       absl::FunctionRef<int(NcclComm)> function) {
  {
    MutexLock lock(mutex_);
    TESSERA_RETURN_IF_ERROR(ended_);
    const int result = function(comms_[which]);
    TESSERA_RETURN_IF_ERROR(
        Annotate(NcclError(api_, result, call, options_.device, comms_[which]), what));
    if (result != kNcclInProgress) return absl::OkStatus();
  }
  // Until then nothing is on the stream, and an event recorded there would pass too early.
  return Annotate(PollUntil(
                      options_.wait, [&] { return Ready(which); }, call),
                  what);
}

void* NcclCollectives::Unsharded(int slot) {
  return arena_ + options_.layout.unsharded_slots(slot).offset_bytes();
}

void* NcclCollectives::Gradient(int gradient_slot) {
  return arena_ + places_.gradients_offset +
         options_.layout.gradient_slots(gradient_slot).offset_bytes();
}

const CudaStream& NcclCollectives::UserOf(Stream* stream) const {
  // Every stream of a GPU's rank is one of CUDA's.
  return stream == nullptr ? *options_.compute : *static_cast<CudaStream*>(stream);
}

std::string NcclCollectives::Describe(absl::string_view action, int unit) const {
  return absl::StrCat(action, " of unit ", options_.unit_names[unit]);
}

absl::Status NcclCollectives::RunKernel(const CudaStream& stream, absl::string_view call,
                                        absl::FunctionRef<int()> launch, std::vector<Work>* timed) {
  if (timed == nullptr) return stream.Error(launch(), call);
  Work work;
  TESSERA_ASSIGN_OR_RETURN(work.begin, CudaEvent::Record(stream));
  TESSERA_RETURN_IF_ERROR(stream.Error(launch(), call));
  TESSERA_ASSIGN_OR_RETURN(work.end, CudaEvent::Record(stream));
  timed->push_back(std::move(work));
  return absl::OkStatus();
}

absl::StatusOr<Event> NcclCollectives::Passing(const CudaStream& stream, std::string what,
                                               std::vector<Work> work, OpTiming* timing,
                                               EventPointer* kept) {
  TESSERA_ASSIGN_OR_RETURN(EventPointer event, CudaEvent::Record(stream));
  if (kept != nullptr) *kept = event;
  return Event(
      std::make_shared<Pending>(this, std::move(event), std::move(what), std::move(work), timing));
}

absl::StatusOr<Event> NcclCollectives::AllGather(const AllGatherOp& op, Stream* stream,
                                                 OpTiming* timing) {
  const std::string what = Describe("unshard", op.unit);
  TESSERA_RETURN_IF_ERROR(Annotate(Health(), what));
  TESSERA_ASSIGN_OR_RETURN(const KernelDType dtype, KernelDTypeOf(op.param_dtype));
  const int64_t slice_bytes = op.shard.numel * KernelDTypeBytes(dtype);
  TESSERA_RETURN_IF_ERROR(
      CheckFits(slice_bytes * ranks_, options_.layout.unsharded_slots(op.slot).bytes(), what));
  UnshardedSlot& slot = unsharded_[op.slot];
  if (slot.released != nullptr) TESSERA_RETURN_IF_ERROR(unshard_stream_->WaitFor(*slot.released));
  if (shards_written_ != nullptr)
    TESSERA_RETURN_IF_ERROR(unshard_stream_->WaitFor(*shards_written_));
  slot.user = &UserOf(stream);
  char* whole = static_cast<char*>(Unsharded(op.slot));
  char* slice = whole + options_.group.index * slice_bytes;
  std::vector<Work> work;
  const CastRun cast = {
      .in = op.shard.as<float>().data(), .numel = op.shard.numel, .out = slice, .out_dtype = dtype};
  TESSERA_RETURN_IF_ERROR(Annotate(RunKernel(
                                       *unshard_stream_, "the cast kernel",
                                       [&] { return api_.cast(cast, unshard_stream_->handle()); },
                                       timing == nullptr ? nullptr : &work),
                                   what));
  if (timing != nullptr) {
    shards_read_ = work.back().end;
  } else {
    TESSERA_ASSIGN_OR_RETURN(shards_read_, CudaEvent::Record(*unshard_stream_));
  }
  TESSERA_RETURN_IF_ERROR(CallNccl(kUnshard, "ncclAllGather", what, [&](NcclComm comm) {
    return api_.nccl_all_gather(slice, whole, op.shard.numel, NcclDataType(dtype), comm,
                                unshard_stream_->handle());
  }));
  return Passing(*unshard_stream_, what, std::move(work), timing, nullptr);
}

void NcclCollectives::ReleaseUnsharded(int slot) {
  UnshardedSlot& state = unsharded_[slot];
  if (state.user == nullptr) return;
  absl::StatusOr<EventPointer> released = CudaEvent::Record(*state.user);
  // Without it the next tenant would not wait: nothing may run any more.
  if (!released.ok()) return Keep(Annotate(released.status(), "release of an unsharded slot"));
  state.released = *std::move(released);
}

void NcclCollectives::PublishShard(int /*unit*/) {
  absl::StatusOr<EventPointer> written = CudaEvent::Record(*options_.compute);
  if (!written.ok()) return Keep(Annotate(written.status(), "publishing a shard"));
  shards_written_ = *std::move(written);
}

absl::StatusOr<Event> NcclCollectives::AcquireGradient(int unit, int gradient_slot,
                                                       Stream* stream) {
  const std::string what = Describe("the gradient buffer", unit);
  TESSERA_RETURN_IF_ERROR(Annotate(Health(), what));
  const EventPointer& reduced = reduced_[gradient_slot];
  if (reduced == nullptr) return Event();
  TESSERA_RETURN_IF_ERROR(Annotate(UserOf(stream).WaitFor(*reduced), what));
  return Event(
      std::make_shared<Pending>(this, reduced, what, std::vector<Work>(), /*timing=*/nullptr));
}

absl::Status NcclCollectives::ZeroGradient(int gradient_slot, int64_t offset_bytes, int64_t bytes,
                                           Stream* stream) {
  const CudaStream& user = UserOf(stream);
  char* const begin = static_cast<char*>(Gradient(gradient_slot)) + offset_bytes;
  return user.Error(api_.memset_async(begin, 0, bytes, user.handle()), "cudaMemsetAsync");
}

absl::StatusOr<Event> NcclCollectives::ReduceScatter(const ReduceScatterOp& op, Stream* stream,
                                                     OpTiming* timing) {
  const std::string what = Describe("reduce", op.unit);
  TESSERA_RETURN_IF_ERROR(Annotate(Health(), what));
  TESSERA_ASSIGN_OR_RETURN(const KernelDType in, KernelDTypeOf(op.gradient_dtype));
  TESSERA_ASSIGN_OR_RETURN(const KernelDType dtype, KernelDTypeOf(op.reduce_dtype));
  const int64_t numel = op.shard.numel * ranks_;
  const int64_t slice_bytes = op.shard.numel * KernelDTypeBytes(dtype);
  TESSERA_RETURN_IF_ERROR(CheckFits(numel * KernelDTypeBytes(in),
                                    options_.layout.gradient_slots(op.gradient_slot).bytes(),
                                    what));
  const DivideFactors divide = DivideFactorsFor(op.reduce_dtype, ranks_);
  std::vector<Work> work;
  std::vector<Work>* const timed = timing == nullptr ? nullptr : &work;
  TESSERA_ASSIGN_OR_RETURN(const EventPointer written, CudaEvent::Record(UserOf(stream)));
  TESSERA_RETURN_IF_ERROR(reduce_stream_->WaitFor(*written));
  char* whole = static_cast<char*>(Gradient(op.gradient_slot));
  if (in != dtype || divide.before != 1) {
    char* to = whole;
    if (in != dtype) {
      to = arena_ + places_.staging_offset;
      TESSERA_RETURN_IF_ERROR(CheckFits(slice_bytes * ranks_, options_.layout.staging_bytes(),
                                        absl::StrCat("the staging of the ", what)));
    }
    const CastRun cast = {.in = whole,
                          .in_dtype = in,
                          .numel = numel,
                          .divide = divide.before,
                          .out = to,
                          .out_dtype = dtype};
    TESSERA_RETURN_IF_ERROR(
        Annotate(RunKernel(
                     *reduce_stream_, "the cast kernel",
                     [&] { return api_.cast(cast, reduce_stream_->handle()); }, timed),
                 what));
    whole = to;
  }
  char* slice = whole + options_.group.index * slice_bytes;
  TESSERA_RETURN_IF_ERROR(CallNccl(kReduce, "ncclReduceScatter", what, [&](NcclComm comm) {
    return api_.nccl_reduce_scatter(whole, slice, op.shard.numel, NcclDataType(dtype), comm,
                                    reduce_stream_->handle());
  }));
  const AverageRun average = {.in = slice,
                              .in_dtype = dtype,
                              .numel = op.shard.numel,
                              .divide = divide.after,
                              .accumulate = op.accumulate,
                              .shard = op.shard.as<float>().data()};
  TESSERA_RETURN_IF_ERROR(
      Annotate(RunKernel(
                   *reduce_stream_, "the average kernel",
                   [&] { return api_.average(average, reduce_stream_->handle()); }, timed),
               what));
  return Passing(*reduce_stream_, what, std::move(work), timing, &reduced_[op.gradient_slot]);
}

absl::Status NcclCollectives::GatherShards(int unit, int gradient_slot, const ShardSpan& shard,
                                           char* whole) {
  const std::string what = Describe("gather of the master shards", unit);
  TESSERA_RETURN_IF_ERROR(Annotate(Health(), what));
  if (shards_written_ != nullptr)
    TESSERA_RETURN_IF_ERROR(reduce_stream_->WaitFor(*shards_written_));
  TESSERA_RETURN_IF_ERROR(GatherPieces(gradient_slot, shard.as<float>().data(), shard.numel,
                                       reinterpret_cast<float*>(whole), what));
  TESSERA_ASSIGN_OR_RETURN(const Event passed,
                           Passing(*reduce_stream_, what, {}, nullptr, &reduced_[gradient_slot]));
  return passed.Wait();
}

absl::Status NcclCollectives::GatherPieces(int gradient_slot, const float* shard,
                                           int64_t shard_numel, float* whole,
                                           absl::string_view what) {
  constexpr int64_t kBytes = sizeof(float);
  // As much of every rank's shard as the slot holds at once; it may be of a narrower dtype.
  const int64_t piece = options_.layout.gradient_slots(gradient_slot).bytes() / (ranks_ * kBytes);
  if (piece == 0) return CheckFits(ranks_ * kBytes, 0, what);
  const CudaStream& stream = *reduce_stream_;
  auto copy = [&](void* to, const void* from, int64_t bytes) {
    return Annotate(
        stream.Error(api_.memcpy_async(to, from, bytes, stream.handle()), "cudaMemcpyAsync"), what);
  };
  float* const buffer = static_cast<float*>(Gradient(gradient_slot));
  for (int64_t begin = 0; begin < shard_numel; begin += piece) {
    const int64_t count = std::min(piece, shard_numel - begin);
    float* const slice = buffer + options_.group.index * count;
    TESSERA_RETURN_IF_ERROR(copy(slice, shard + begin, count * kBytes));
    TESSERA_RETURN_IF_ERROR(CallNccl(kReduce, "ncclAllGather", what, [&](NcclComm comm) {
      return api_.nccl_all_gather(slice, buffer, count, NcclDataType(KernelDType::kFloat32), comm,
                                  stream.handle());
    }));
    for (int64_t rank = 0; whole != nullptr && rank < ranks_; ++rank) {
      TESSERA_RETURN_IF_ERROR(
          copy(whole + rank * shard_numel + begin, buffer + rank * count, count * kBytes));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> NcclCollectives::Exchange(absl::string_view payload,
                                                                   absl::string_view what) {
  TESSERA_RETURN_IF_ERROR(Annotate(Health(), what));
  // A gather that was released without a use may still read the shard, which whoever hears the
  // votes is free to write.
  if (shards_read_ != nullptr) {
    Pending read(this, std::exchange(shards_read_, nullptr), std::string(what), {}, nullptr);
    TESSERA_RETURN_IF_ERROR(read.Wait());
  }
  return options_.host->Exchange(payload, what);
}

}  // namespace tessera
