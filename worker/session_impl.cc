#include "worker/session_impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/blame.h"

namespace tessera {
namespace {

// Often enough for people who watch, seldom enough to cost nothing.
constexpr absl::Duration kReportPeriod = absl::Milliseconds(500);
// A session that is over says so for at most so long: its coordinator may be stopped.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

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

SessionImpl::SessionImpl(SessionParts parts)
    : parts_(std::move(parts)),
      plan_(MakePlan(parts_)),
      stats_(static_cast<int>(parts_.planned.units.size())),
      executor_({.layout = parts_.layout,
                 .units = parts_.planned.units,
                 .layouts = parts_.planned.layouts,
                 .collectives = parts_.collectives.get(),
                 .store = parts_.store.get(),
                 .stats = &stats_}) {
  parts_.store->WriteComputeSlices();
  for (int unit = 0; unit < plan_.units_size(); ++unit) {
    executor_.PublishShard(unit);
    for (int p = 0; p < plan_.units(unit).parameters_size(); ++p) {
      const v1::UnitParameter& parameter = plan_.units(unit).parameters(p);
      places_[parameter.fqn()] = {unit, p};
      for (const std::string& tied : parameter.tied_fqns()) places_[tied] = {unit, p};
    }
  }
}

SessionImpl::~SessionImpl() {
  if (left_) return;
  Abort(failure_.ok()
            ? absl::CancelledError("the program ended its session before its work was done")
            : failure_);
}

absl::Status SessionImpl::Usable() const {
  if (!failure_.ok() || !left_) return failure_;
  return WithReason(absl::AbortedError("the session is over"), "GENERATION_ENDED");
}

absl::Status SessionImpl::Keep(absl::Status status) {
  if (!status.ok() && failure_.ok()) failure_ = status;
  return status;
}

absl::Status SessionImpl::DeclareOrder(std::vector<int> order) {
  TESSERA_RETURN_IF_ERROR(Usable());
  if (step_ > 0 || in_step_)
    return absl::FailedPreconditionError("DeclareOrder comes before the first step");
  return executor_.SetOrder(std::move(order));
}

absl::StatusOr<StepInfo> SessionImpl::BeginStep(const StepOptions& options) {
  TESSERA_RETURN_IF_ERROR(Usable());
  if (in_step_)
    return Keep(absl::FailedPreconditionError("BeginStep inside a step; call EndStep first"));
  // A rank that never has to wait (it is alone, or always last) notices here that it should stop.
  TESSERA_RETURN_IF_ERROR(Keep(executor_.Progress()));
  in_step_ = true;
  step_options_ = options;
  parts_.faults->set_step(step_ + 1);
  executor_.BeginStep();
  return StepInfo{.step = step_ + 1, .attempt = 1};
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
  TESSERA_RETURN_IF_ERROR(Keep(executor_.Unshard(unit, in_order)));
  return UnitLease(weak_from_this(), unit);
}

absl::Status SessionImpl::Prefetch(int unit) {
  TESSERA_RETURN_IF_ERROR(Usable());
  TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  return Keep(executor_.Prefetch(unit));
}

void SessionImpl::Release(int unit) {
  // After a failure nobody waits for this rank's leases any more.
  if (Usable().ok()) executor_.Release(unit);
}

absl::Status SessionImpl::Reduce(int unit) {
  TESSERA_RETURN_IF_ERROR(Usable());
  TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  if (!in_step_ || !micro_batch_.gradients) {
    return Keep(absl::FailedPreconditionError("Reduce outside a micro-batch with gradients"));
  }
  if (micro_batch_.synchronize) return Keep(executor_.Reduce(unit));
  executor_.KeepGradient(unit);
  return absl::OkStatus();
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
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "rank ", parts_.collectives->group().ranks[i], " voted for step ", votes[i].step,
            " with order ", absl::Hex(votes[i].order_hash), ", rank ", parts_.assignment.rank(),
            " for step ", own.step, " with order ", absl::Hex(own.order_hash))),
        "ORDER_MISMATCH");
  }
  return votes;
}

StepResult SessionImpl::Tally(const std::vector<Vote>& votes) const {
  StepResult result;
  double loss = 0, squared_norm = 0;
  int64_t count = 0;
  for (const Vote& vote : votes) {
    loss += vote.loss_sum;
    count += vote.loss_count;
    squared_norm += vote.squared_norm;
    result.non_finite = result.non_finite || vote.non_finite != 0;
    result.drain = result.drain || vote.drain != 0;
  }
  result.step = votes.front().step;
  result.loss_mean = count > 0 ? loss / static_cast<double>(count) : 0;
  result.gradient_norm = std::sqrt(squared_norm);
  return result;
}

absl::StatusOr<StepResult> SessionImpl::EndStep(const StepMetrics& metrics) {
  TESSERA_RETURN_IF_ERROR(Usable());
  if (!in_step_)
    return Keep(absl::FailedPreconditionError("EndStep outside a step; call BeginStep first"));
  TESSERA_RETURN_IF_ERROR(Keep(executor_.FinishReductions()));
  executor_.Sweep();

  ShardStore& store = *parts_.store;
  if (parts_.faults->Spoils("reduced")) SpoilGradientForTests();
  Vote vote = store.MeasureGradients();
  vote.step = step_ + 1;
  vote.attempt = 1;
  vote.loss_sum = metrics.loss_sum;
  vote.loss_count = metrics.loss_count;
  vote.order_hash = executor_.order_hash();
  vote.drain = parts_.membership != nullptr && parts_.membership->Draining() ? 1 : 0;
  if (!parts_.gradients_dir.empty() && vote.step == 1)
    TESSERA_RETURN_IF_ERROR(Keep(WriteGradientsForTests()));
  store.CastVote(vote, {.step = vote.step,
                        .attempt = vote.attempt,
                        .update = updates_ + 1,
                        .learning_rate = step_options_.learning_rate,
                        .data_position = step_ * parts_.spec.global_batch()});
  parts_.faults->Hit("vote");
  absl::StatusOr<std::vector<Vote>> votes = ExchangeVotes(vote);
  TESSERA_RETURN_IF_ERROR(Keep(votes.status()));

  const StepResult result = Tally(*votes);
  store.Decide(/*skip=*/result.non_finite,
               ClipCoefficient(parts_.spec.optimizer().clip_norm(), result.gradient_norm));
  store.FinishStep([&](int unit, double us) {
    executor_.PublishShard(unit);
    stats_.Record(unit, v1::OPTIMIZER, us, 3 * store.Parameters(unit).bytes());
  });
  ++step_;
  if (!result.non_finite) ++updates_;
  in_step_ = false;
  Report(/*now=*/step_ == 1 || step_ == parts_.spec.steps());
  return result;
}

void SessionImpl::SpoilGradientForTests() {
  for (int unit = 0; unit < plan_.units_size(); ++unit) {
    const ShardSpan shard = parts_.store->Gradients(unit);
    if (plan_.units(unit).trainable_numel() == 0 || shard.numel == 0) continue;
    // The last bit of the element in the middle.
    shard.data[shard.numel / 2 * DTypeBytes(shard.dtype)] ^= 1;
    return;
  }
}

absl::Status SessionImpl::WriteGradientsForTests() const {
  for (int unit = 0; unit < plan_.units_size(); ++unit) {
    const ShardSpan gradients = parts_.store->Gradients(unit);
    const std::string path = absl::StrCat(parts_.gradients_dir, "/unit-", unit, "-rank-",
                                          parts_.assignment.rank(), ".f32");
    std::ofstream file(path, std::ios::binary);
    file.write(gradients.data, gradients.bytes());
    if (!file.flush()) return absl::InternalError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
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
  Report(/*now=*/true);
}

void SessionImpl::Report(bool now) {
  const absl::Time time = Clock::Real()->Now();
  if (parts_.membership == nullptr || (!now && time - last_report_ < kReportPeriod)) return;
  last_report_ = time;
  v1::ReportStatsRequest report;
  report.set_job(parts_.assignment.job());
  report.set_generation(parts_.assignment.generation());
  report.set_rank(parts_.assignment.rank());
  report.set_incarnation(parts_.incarnation);
  report.set_step(step_);
  report.set_measured_bytes(parts_.measured_bytes);
  for (v1::OperationSample& sample : stats_.TakeChanged())
    *report.add_samples() = std::move(sample);
  for (v1::Progress& progress : unsent_progress_) *report.add_progress() = std::move(progress);
  unsent_progress_.clear();
  parts_.membership->ReportStats(std::move(report));
}

absl::Status SessionImpl::Finish() {
  TESSERA_RETURN_IF_ERROR(Barrier("every rank to be done"));
  Report(/*now=*/true);
  if (left_.exchange(true)) return Usable();
  if (parts_.membership != nullptr)
    parts_.membership->Leave(absl::OkStatus(), std::nullopt, 10 * kLeaveTimeout);
  return absl::OkStatus();
}

void SessionImpl::Abort(const absl::Status& status) {
  if (left_.exchange(true)) return;
  parts_.collectives->Abort(status);
  parts_.collectives->Interrupt(status);
  if (parts_.membership != nullptr)
    parts_.membership->Leave(status, BlamedRank(status), kLeaveTimeout);
}

}  // namespace tessera
