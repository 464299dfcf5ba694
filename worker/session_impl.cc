#include "worker/session_impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint_index.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/parameter_groups.h"
#include "common/status_macros.h"
#include "worker/blame.h"

namespace tessera {
namespace {

// A session that is over says so for at most so long: its coordinator may be stopped.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);
// Lines that a generation's end may have kept from the coordinator, which drops those it has.
constexpr size_t kRecentProgress = 8;

v1::Plan MakePlan(const SessionParts& parts) {
  v1::Plan plan;
  plan.set_plan_fingerprint(parts.layout.plan_fingerprint());
  for (const v1::Unit& unit : parts.planned.units) *plan.add_units() = unit;
  return plan;
}

// As torch.nn.utils.clip_grad_norm_.
double ClipCoefficient(double clip_norm, double gradient_norm) {
  return clip_norm > 0 ? std::min(1.0, clip_norm / (gradient_norm + 1e-6)) : 1.0;
}

}  // namespace

Group ShardGroupOf(const v1::Assignment& assignment, const v1::Layout& layout, int host) {
  Group group;
  group.index = assignment.shard_index();
  group.replicas = std::max(1, layout.replica_count());
  const int first = assignment.rank() - group.index;
  for (int i = 0; i < layout.shard_count(); ++i) {
    group.ranks.push_back(first + i);
    group.hosts.push_back(host);
  }
  return group;
}

SessionImpl::SessionImpl(SessionParts parts)
    : parts_(std::move(parts)),
      plan_(MakePlan(parts_)),
      stats_(static_cast<int>(parts_.planned.units.size())),
      trace_(parts_.position.get(), &stats_),
      norm_type_(NormTypeOf(parts_.spec.optimizer()).value_or(2)),
      unmanaged_(norm_type_),
      loss_scale_(parts_.spec.mixed_precision().loss_scale()),
      state_(parts_.start),
      reports_(parts_.assignment.world_size(), static_cast<int64_t>(parts_.planned.units.size()),
               parts_.assignment.rank()) {
  if (!state_.path.empty()) loss_scale_.Restore(state_.loss_scale, state_.loss_scale_steps);
  KeepLossScale();
  parts_.store->WriteComputeSlices();
  if (!parts_.recover || !parts_.store->filled().has_value()) {
    parts_.store->StartFrom({.step = state_.step,
                             .updates = state_.updates,
                             .data_position = state_.data_position,
                             .loss_scale = state_.loss_scale,
                             .loss_scale_steps = state_.loss_scale_steps});
  }
  for (int unit = 0; unit < plan_.units_size(); ++unit) {
    for (int p = 0; p < plan_.units(unit).parameters_size(); ++p) {
      const v1::UnitParameter& parameter = plan_.units(unit).parameters(p);
      places_[parameter.fqn()] = {unit, p};
      for (const std::string& tied : parameter.tied_fqns()) places_[tied] = {unit, p};
    }
  }
  if (parts_.recover) return;
  MakeExecutor();
  const std::string own =
      absl::StrCat(parts_.spec.checkpoint().dir(), "/", CheckpointDirectory(state_.step));
  MakeSaver(state_.path == own ? state_.step : -1);
}

SessionImpl::~SessionImpl() {
  if (left_) return;
  Abort(failure_.ok()
            ? absl::CancelledError("the program ended its session before its work was done")
            : failure_);
}

absl::Status SessionImpl::Alive() const {
  if (!failure_.ok() || !left_) return failure_;
  return WithReason(absl::AbortedError("the session is over"), "JOB_ENDED");
}

absl::Status SessionImpl::Usable() const {
  TESSERA_RETURN_IF_ERROR(Alive());
  if (summoned_unit_ < 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("unit \"", plan_.units(summoned_unit_).fqn(),
                   "\" was summoned with writeback = true; call WriteBack first"));
}

absl::Status SessionImpl::DeclareOrder(std::vector<int> order) {
  TESSERA_RETURN_IF_ERROR(Usable());
  if (begun_) return absl::FailedPreconditionError("DeclareOrder comes before the first step");
  TESSERA_RETURN_IF_ERROR(executor_->SetOrder(order));
  order_ = std::move(order);
  return absl::OkStatus();
}

absl::StatusOr<StepInfo> SessionImpl::BeginStep(const StepOptions& options) {
  if (ended_) TESSERA_RETURN_IF_ERROR(Rejoin());
  TESSERA_RETURN_IF_ERROR(Usable());
  if (in_step_)
    return Keep(absl::FailedPreconditionError("BeginStep inside a step; call EndStep first"));
  // A rank that never has to wait (it is alone, or always last) notices here that it should stop.
  if (absl::Status status = Keep(executor_->Progress()); !status.ok()) {
    if (!ended_) return status;
    TESSERA_RETURN_IF_ERROR(Rejoin());
  }
  in_step_ = begun_ = true;
  step_unused_ = recovered_.has_value() || state_.step >= parts_.spec.steps();
  step_options_ = options;
  if (options.learning_rate_at)
    step_options_.learning_rate = options.learning_rate_at(state_.step + 1);
  parts_.faults->set_step(state_.step + 1);
  trace_.SetStep(state_.step + 1);
  executor_->BeginStep();
  unmanaged_ = NormSum(norm_type_);
  StepInfo info;
  info.step = state_.step + 1;
  info.attempt = attempt_;
  info.loss_scale = loss_scale_.factor();
  info.recovered = std::exchange(recovered_, std::nullopt);
  return info;
}

absl::Status SessionImpl::BeginMicroBatch(const MicroBatch& micro_batch) {
  TESSERA_RETURN_IF_ERROR(Usable());
  if (!in_step_ && micro_batch.gradients) {
    return Keep(absl::FailedPreconditionError(
        "BeginMicroBatch with gradients outside a step; call BeginStep first"));
  }
  if (!micro_batch.synchronize && !parts_.spec.memory().accumulate_unsynchronized()) {
    return Keep(absl::FailedPreconditionError(
        "a micro-batch with synchronize = false needs a gradient buffer for each unit; set "
        "memory.accumulate_unsynchronized to true in the job file"));
  }
  if (micro_batch.gradients) step_unused_ = false;
  micro_batch_ = micro_batch;
  return absl::OkStatus();
}

absl::StatusOr<UnitLease> SessionImpl::Unshard(int unit, Phase phase) {
  TESSERA_RETURN_IF_ERROR(Usable());
  TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  const bool in_order =
      phase == Phase::kForward || phase == Phase::kRecompute || phase == Phase::kBackward;
  if (in_order && !in_step_) {
    return Keep(absl::FailedPreconditionError(
        "Unshard for forward or backward outside a step; call BeginStep first"));
  }
  TESSERA_RETURN_IF_ERROR(
      Keep(executor_->Unshard(unit, in_order, phase != Phase::kForward,
                              phase == Phase::kEval && parts_.layout.full_precision_eval())));
  if (in_order) step_unused_ = false;
  return UnitLease(std::shared_ptr<SessionImpl>(life_, this), unit);
}

absl::Status SessionImpl::Prefetch(int unit) {
  TESSERA_RETURN_IF_ERROR(Usable());
  TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  return Keep(executor_->Prefetch(unit));
}

void SessionImpl::Release(int unit) {
  // After a failure nobody waits for this rank's leases any more.
  if (Alive().ok()) executor_->Release(unit);
}

absl::Status SessionImpl::Reduce(int unit) {
  TESSERA_RETURN_IF_ERROR(Usable());
  TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  if (!in_step_ || !micro_batch_.gradients) {
    return Keep(absl::FailedPreconditionError("Reduce outside a micro-batch with gradients"));
  }
  TESSERA_RETURN_IF_ERROR(Keep(executor_->PrefetchAfter(unit)));
  if (micro_batch_.synchronize) return Keep(executor_->Reduce(unit, micro_batch_.all_reduce));
  return Keep(executor_->KeepGradient(unit));
}

absl::StatusOr<std::vector<Vote>> SessionImpl::ExchangeVotes(const Vote& own) {
  static_assert(std::is_trivially_copyable_v<Vote>);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> payloads,
                           parts_.collectives->Exchange(
                               absl::string_view(reinterpret_cast<const char*>(&own), sizeof(own)),
                               absl::StrCat("the commit vote of step ", own.step)));
  std::vector<Vote> votes(payloads.size());
  for (size_t i = 0; i < payloads.size(); ++i)
    std::memcpy(&votes[i], payloads[i].data(), sizeof(Vote));
  for (size_t i = 0; i < votes.size(); ++i) {
    if (votes[i].step == own.step && votes[i].order_hash == own.order_hash) continue;
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "rank ", i, " voted for step ", votes[i].step, " with order ",
                          absl::Hex(votes[i].order_hash), ", rank ", parts_.assignment.rank(),
                          " for step ", own.step, " with order ", absl::Hex(own.order_hash))),
                      "ORDER_MISMATCH");
  }
  return votes;
}

StepResult SessionImpl::Tally(const std::vector<Vote>& votes) const {
  StepResult result;
  double loss = 0;
  NormSum norm(norm_type_);
  int64_t count = 0;
  const size_t shards = parts_.collectives->group().ranks.size();
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const Vote& vote = votes[rank];
    loss += vote.loss_sum;
    count += vote.loss_count;
    // The other shard groups have the same gradients.
    if (rank < shards) norm.AddTerm(vote.norm_term);
    result.non_finite = result.non_finite || vote.non_finite != 0;
    result.drain = result.drain || vote.drain != 0;
  }
  result.step = votes.front().step;
  result.loss_mean = count > 0 ? loss / static_cast<double>(count) : 0;
  result.gradient_norm = norm.norm() / loss_scale_.factor();
  result.clip_coefficient =
      ClipCoefficient(parts_.spec.optimizer().clip_norm(), result.gradient_norm);
  return result;
}

Vote SessionImpl::MeasureGradients() const {
  Vote vote = parts_.store->MeasureGradients();
  if (!std::isfinite(unmanaged_.term())) vote.non_finite = 1;
  if (parts_.assignment.rank() != 0) return vote;
  // Every rank has them: one counts them.
  NormSum norm = unmanaged_;
  norm.AddTerm(vote.norm_term);
  vote.norm_term = norm.term();
  return vote;
}

absl::StatusOr<StepResult> SessionImpl::EndStep(const StepMetrics& metrics) {
  TESSERA_RETURN_IF_ERROR(Usable());
  if (!in_step_)
    return Keep(absl::FailedPreconditionError("EndStep outside a step; call BeginStep first"));
  TESSERA_RETURN_IF_ERROR(Keep(executor_->FinishReductions()));
  executor_->Sweep();

  ShardStore& store = *parts_.store;
  if (parts_.faults->Spoils("reduced")) SpoilGradientForTests();
  Vote vote = MeasureGradients();
  vote.step = state_.step + 1;
  vote.attempt = attempt_;
  vote.loss_sum = metrics.loss_sum;
  vote.loss_count = metrics.loss_count;
  vote.order_hash = executor_->order_hash();
  if (parts_.membership != nullptr && parts_.membership->Draining())
    vote.drain = parts_.membership->Resizing() ? 2 : 1;
  if (!parts_.gradients_dir.empty() && vote.step == 1)
    TESSERA_RETURN_IF_ERROR(Keep(WriteGradientsForTests()));
  store.CastVote(vote, {.step = vote.step,
                        .attempt = vote.attempt,
                        .update = state_.updates + 1,
                        .learning_rate = step_options_.learning_rate,
                        .loss_scale = loss_scale_.factor(),
                        .loss_scale_age = loss_scale_.age(),
                        .data_position = state_.data_position});
  parts_.faults->Hit("vote");
  absl::StatusOr<std::vector<Vote>> votes = ExchangeVotes(vote);
  TESSERA_RETURN_IF_ERROR(Keep(votes.status()));

  const StepResult result = Commit(*votes);
  in_step_ = false;
  trace_.Does(v1::SAVING, -1, v1::OPERATION_UNSPECIFIED, "what is due after the step");
  TESSERA_RETURN_IF_ERROR(Keep(saver_->AfterStep(state_)));
  Report(/*now=*/state_.step == 1 || state_.step == parts_.spec.steps());
  return result;
}

void SessionImpl::KeepLossScale() {
  state_.loss_scale = loss_scale_.factor();
  state_.loss_scale_steps = loss_scale_.age();
}

absl::Status SessionImpl::AgreeOnStart() {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> payloads,
      parts_.collectives->Exchange(
          absl::string_view(reinterpret_cast<const char*>(&state_.step), sizeof(state_.step)),
          "every rank to say at which step it starts"));
  for (size_t i = 0; i < payloads.size(); ++i) {
    int64_t step = 0;
    std::memcpy(&step, payloads[i].data(), sizeof(step));
    if (step == state_.step) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", i, " starts at step ", step, ", rank ", parts_.assignment.rank(),
                     " at ", state_.step, "; do all hosts see the same checkpoint.dir?"));
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::SaveLast() {
  TESSERA_RETURN_IF_ERROR(Usable());
  LeaveUnusedStep();
  return Keep(saver_->Finish(state_, /*always=*/resizing_));
}

absl::Status SessionImpl::AllReduceSum(absl::Span<double> values) {
  TESSERA_RETURN_IF_ERROR(Usable());
  if (values.size() > 8) return absl::InvalidArgumentError("AllReduceSum takes at most 8 values");
  absl::StatusOr<std::vector<std::string>> payloads =
      parts_.collectives->Exchange(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                                     values.size() * sizeof(double)),
                                   "a sum over all ranks");
  TESSERA_RETURN_IF_ERROR(Keep(payloads.status()));
  std::fill(values.begin(), values.end(), 0.0);
  for (const std::string& payload : *payloads) {
    for (size_t i = 0; i < values.size(); ++i) {
      double value;
      std::memcpy(&value, payload.data() + i * sizeof(double), sizeof(double));
      values[i] += value;
    }
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::Barrier(absl::string_view what) {
  TESSERA_RETURN_IF_ERROR(Usable());
  return Keep(parts_.collectives->Exchange("", what).status());
}

void SessionImpl::ReportProgress(const v1::Progress& progress) {
  unsent_progress_.push_back(progress);
  recent_progress_.push_back(progress);
  if (recent_progress_.size() > kRecentProgress) recent_progress_.erase(recent_progress_.begin());
  Report(/*now=*/true);
}

void SessionImpl::Report(bool now) {
  const absl::Time time = Clock::Real()->Now();
  if (parts_.membership == nullptr || !reports_.Begin(time, now)) return;
  v1::ReportStatsRequest report;
  report.set_job(parts_.assignment.job());
  report.set_generation(parts_.assignment.generation());
  report.set_rank(parts_.assignment.rank());
  report.set_incarnation(parts_.incarnation);
  report.set_step(state_.step);
  report.set_measured_bytes(parts_.measured_bytes);
  if (reports_.with_samples()) {
    for (v1::OperationSample& sample : stats_.TakeChanged())
      *report.add_samples() = std::move(sample);
  }
  for (v1::Progress& progress : unsent_progress_) *report.add_progress() = std::move(progress);
  unsent_progress_.clear();
  if (parts_.assignment.rank() == 0)
    report.set_checkpoint_step(std::max<int64_t>(0, saver_->last_saved()));
  parts_.membership->ReportStats(std::move(report));
}

absl::Status SessionImpl::Finish() {
  TESSERA_RETURN_IF_ERROR(Barrier("every rank to be done"));
  Report(/*now=*/true);
  {
    MutexLock lock(mutex_);
    if (left_.exchange(true)) return Usable();
  }
  if (parts_.membership != nullptr)
    parts_.membership->Leave(absl::OkStatus(), std::nullopt, 10 * kLeaveTimeout);
  return absl::OkStatus();
}

void SessionImpl::Abort(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (left_.exchange(true)) return;
  }
  if (parts_.next != nullptr) parts_.next->Interrupt(status);
  parts_.collectives->Abort(status);
  parts_.collectives->Interrupt(status);
  if (parts_.membership != nullptr)
    parts_.membership->Leave(status, BlamedRank(status), kLeaveTimeout);
}

}  // namespace tessera
