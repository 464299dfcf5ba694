#include "worker/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "worker/checkpoint.h"
#include "worker/session_impl.h"

namespace tessera {
namespace {

// A CPU rank computes on the calling thread, whatever stream it names.
absl::Status CheckStream(const Stream* given, const Stream* own) {
  if (own == nullptr || given == nullptr || given == own) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("a rank on a GPU computes on Session::stream alone; stream ", given->name(),
                   " is another one"));
}

}  // namespace

UnitLease::UnitLease(UnitLease&& other) noexcept
    : session_(std::move(other.session_)), unit_(std::exchange(other.unit_, -1)) {}

UnitLease& UnitLease::operator=(UnitLease&& other) noexcept {
  if (this != &other) {
    Drop();
    session_ = std::move(other.session_);
    unit_ = std::exchange(other.unit_, -1);
  }
  return *this;
}

UnitLease::~UnitLease() { Drop(); }

void UnitLease::Drop() {
  if (unit_ < 0) return;
  if (const auto session = session_.lock()) session->Release(unit_);
  session_.reset();
  unit_ = -1;
}

absl::StatusOr<TensorView> UnitLease::Parameter(absl::string_view fqn) const {
  const auto session = session_.lock();
  if (unit_ < 0 || session == nullptr) {
    return absl::FailedPreconditionError("the lease is empty, or its session is over");
  }
  return session->Parameter(unit_, fqn);
}

bool GenerationEnded(const absl::Status& status) {
  return absl::IsAborted(status) && Reason(status) == "GENERATION_ENDED";
}

Session::~Session() = default;
int Session::rank() const { return impl_->parts().assignment.rank(); }
int Session::world_size() const { return impl_->parts().assignment.world_size(); }
int64_t Session::step() const { return impl_->step(); }
int Session::shard_index() const { return impl_->parts().assignment.shard_index(); }
const v1::JobSpec& Session::job() const { return impl_->parts().spec; }
const v1::Plan& Session::plan() const { return impl_->plan(); }
const v1::UnitLayout& Session::layout(int unit) const {
  return impl_->parts().planned.layouts[unit];
}
Stream* Session::stream() const { return impl_->parts().stream; }
absl::StatusOr<int> Session::FindUnit(absl::string_view fqn) const { return impl_->FindUnit(fqn); }
absl::StatusOr<int> Session::FindUnitOf(absl::string_view parameter_fqn) const {
  return impl_->FindUnitOf(parameter_fqn);
}
absl::Status Session::DeclareOrder(std::vector<int> unshard_order) {
  return impl_->DeclareOrder(std::move(unshard_order));
}
absl::StatusOr<StepInfo> Session::BeginStep(const StepOptions& options) {
  const SessionTrace::Call call(impl_->trace(), v1::WORKING, "the beginning of a step");
  return impl_->BeginStep(options);
}
absl::Status Session::BeginMicroBatch(const MicroBatch& micro_batch) {
  return impl_->BeginMicroBatch(micro_batch);
}
absl::StatusOr<UnitLease> Session::Unshard(int unit, Phase phase, Stream* stream) {
  TESSERA_RETURN_IF_ERROR(CheckStream(stream, impl_->parts().stream));
  SessionTrace::Call call(impl_->trace(), v1::WORKING, unit, v1::UNSHARD);
  absl::StatusOr<UnitLease> lease = impl_->Unshard(unit, phase);
  const bool forward = phase == Phase::kForward || phase == Phase::kEval;
  if (lease.ok())
    call.Computes(unit, forward ? v1::FORWARD : v1::BACKWARD, /*record=*/phase != Phase::kEval);
  return lease;
}
absl::Status Session::Prefetch(int unit) { return impl_->Prefetch(unit); }
absl::StatusOr<GradientSlot> Session::GradientView(int unit, absl::string_view fqn) {
  const SessionTrace::Call call(impl_->trace());
  return impl_->GradientView(unit, fqn);
}
absl::Status Session::SubmitGradient(int unit, absl::string_view fqn, const TensorView& gradient,
                                     const Event& ready) {
  const SessionTrace::Call call(impl_->trace());
  return impl_->SubmitGradient(unit, fqn, gradient, ready);
}
absl::Status Session::Reduce(int unit, Stream* stream) {
  TESSERA_RETURN_IF_ERROR(CheckStream(stream, impl_->parts().stream));
  const SessionTrace::Call call(impl_->trace(), v1::WORKING, unit, v1::REDUCE);
  return impl_->Reduce(unit);
}
absl::StatusOr<StepResult> Session::EndStep(const StepMetrics& metrics) {
  const SessionTrace::Call call(impl_->trace(), v1::WORKING, "the end of the step");
  return impl_->EndStep(metrics);
}
absl::StatusOr<SummonedParameter> Session::Summon(absl::string_view fqn, bool writeback) {
  const SessionTrace::Call call(impl_->trace(), v1::WORKING, "summoning a parameter");
  return impl_->Summon(fqn, writeback);
}
absl::StatusOr<std::vector<SummonedParameter>> Session::SummonUnit(int unit, bool keep) {
  const SessionTrace::Call call(impl_->trace(), v1::WORKING, "summoning a unit");
  return impl_->SummonUnit(unit, keep);
}
absl::Status Session::AllReduceSum(absl::Span<double> values) {
  const SessionTrace::Call call(impl_->trace(), v1::WORKING, "a sum over all ranks");
  return impl_->AllReduceSum(values);
}
absl::Status Session::Barrier(absl::string_view what) {
  const SessionTrace::Call call(impl_->trace(), v1::WORKING, what);
  return impl_->Barrier(what);
}
void Session::ReportProgress(const v1::Progress& progress) { impl_->ReportProgress(progress); }
absl::StatusOr<ShardSpan> Session::GradientShard(int unit) const {
  return impl_->GradientShard(unit);
}
absl::Status Session::Finish() {
  const SessionTrace::Call call(impl_->trace(), v1::SAVING, "the last checkpoint and the export");
  TESSERA_RETURN_IF_ERROR(impl_->SaveLast());
  if (impl_->resizing()) return impl_->Finish();
  const absl::StatusOr<std::string> path = WriteExport(*this);
  if (!path.ok()) return impl_->Keep(path.status());
  if (!path->empty()) LogInfo(absl::StrCat("wrote ", *path));
  return impl_->Finish();
}
void Session::Abort(const absl::Status& status) { impl_->Abort(status); }

}  // namespace tessera
