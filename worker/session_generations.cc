// A Session's generations: how one ends, and how the rank goes on in the next with all others.
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "worker/blame.h"
#include "worker/session_impl.h"
#include "worker/step_recovery.h"

namespace tessera {
namespace {

BackwardPrefetch BackwardPrefetchOf(const v1::MemorySpec& memory) {
  if (memory.backward_prefetch() == "post") return BackwardPrefetch::kPost;
  return memory.backward_prefetch() == "none" ? BackwardPrefetch::kNone : BackwardPrefetch::kPre;
}

CheckpointSaver::Options MakeSaverOptions(const SessionParts& parts) {
  CheckpointSaver::Options options;
  options.job = parts.spec;
  options.index = MakeCheckpointIndex(parts.spec, parts.layout, parts.planned.units,
                                      parts.planned.layouts, *parts.store);
  options.index.set_run(parts.run);
  options.rank = parts.assignment.rank();
  options.shard_index = parts.assignment.shard_index();
  options.replica_index = parts.assignment.replica_index();
  options.store = parts.store.get();
  options.collectives = parts.collectives.get();
  options.faults = parts.writer_faults;
  return options;
}

// What another generation mends: a rank, a host or its answer is missing.
bool IsLoss(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || GenerationEnded(status);
}

}  // namespace

void SessionImpl::MakeExecutor() {
  executor_ = std::make_unique<UnitExecutor>(
      UnitExecutor::Options{.layout = parts_.layout,
                            .units = parts_.planned.units,
                            .layouts = parts_.planned.layouts,
                            .collectives = parts_.collectives.get(),
                            .store = parts_.store.get(),
                            .backward_prefetch = BackwardPrefetchOf(parts_.spec.memory()),
                            .stats = &stats_,
                            .divide_factor = parts_.spec.mixed_precision().divide_factor()});
  // An order that was recorded is recorded again: a new process does not have it, and gathers ahead
  // by it, as all ranks have to alike.
  if (order_.has_value()) executor_->SetOrder(*order_).IgnoreError();  // it was valid before
  if (reduce_hook_ != nullptr) executor_->SetReduceHook(reduce_hook_);
  for (const auto& [place, ahead] : prefetch_)
    executor_->SetPrefetch(place.first, place.second, ahead);
  for (int unit = 0; unit < plan_.units_size(); ++unit) executor_->PublishShard(unit);
}

void SessionImpl::MakeSaver(int64_t loaded_step) {
  CheckpointSaver::Options options = MakeSaverOptions(parts_);
  options.loaded_step = loaded_step;
  saver_ = std::make_unique<CheckpointSaver>(std::move(options));
}

void SessionImpl::SetReduceHook(UnitExecutor::ReduceHook hook) {
  reduce_hook_ = std::move(hook);
  executor_->SetReduceHook(reduce_hook_);
}

void SessionImpl::SetPrefetch(int unit, bool backward, std::vector<int> ahead) {
  executor_->SetPrefetch(unit, backward, ahead);
  prefetch_[{unit, backward}] = std::move(ahead);
}

absl::Status SessionImpl::Keep(absl::Status status) {
  if (status.ok() || !failure_.ok()) return status;
  failure_ = parts_.next != nullptr && !left_ && IsLoss(status) ? EndGeneration(status) : status;
  return failure_;
}

absl::Status SessionImpl::EndGeneration(const absl::Status& why) {
  ended_ = true;
  in_step_ = false;
  summoned_unit_ = -1;
  life_.reset();
  // Whoever waits for this rank is to know at once.
  parts_.collectives->Abort(why);
  if (parts_.membership != nullptr && !absl::IsAborted(why))
    parts_.membership->Break(why, BlamedRank(why));
  return WithReason(absl::AbortedError(absl::StrCat("the generation has ended (", why.message(),
                                                    "); BeginStep joins the next one")),
                    "GENERATION_ENDED");
}

absl::Status SessionImpl::Rejoin() {
  LogInfo(absl::StrCat("after step ", state_.step, " ", failure_.message()));
  trace_.Rejoins();
  life_ = std::make_shared<char>();
  // Whoever writes a checkpoint stops; events of the executor are the collectives'.
  saver_.reset();
  executor_.reset();
  for (;;) {
    absl::StatusOr<GenerationParts> next = parts_.next->Await();
    absl::Status status = next.status();
    if (status.ok()) {
      status = TakeOver(*std::move(next));
      if (status.ok()) return status;
      saver_.reset();
      executor_.reset();
      if (IsLoss(status) && !left_) {
        EndGeneration(status).IgnoreError();  // another one is lost: another generation comes
        life_ = std::make_shared<char>();
        continue;
      }
    }
    ended_ = false;
    failure_ = status;
    return status;
  }
}

absl::Status SessionImpl::TakeOver(GenerationParts next) {
  std::unique_ptr<MembershipClient> last_membership;
  std::unique_ptr<Collectives> last_collectives;
  {
    MutexLock lock(mutex_);
    if (left_) return WithReason(absl::AbortedError("the session is over"), "JOB_ENDED");
    last_membership = std::exchange(parts_.membership, std::move(next.membership));
    last_collectives = std::exchange(parts_.collectives, std::move(next.collectives));
    parts_.assignment = next.assignment;
  }
  // Its threads call into the collectives.
  last_membership.reset();
  last_collectives.reset();
  return Recover();
}

absl::Status SessionImpl::EnterRecovered() {
  absl::Status status = Recover();
  if (status.ok() || !IsLoss(status)) return Keep(status);
  failure_ = EndGeneration(status);
  return Rejoin();
}

absl::Status AgreeOnPlan(const SessionParts& parts) {
  if (parts.held == nullptr) return absl::OkStatus();
  return parts.held->Check([&](absl::string_view payload, absl::string_view what) {
    return parts.collectives->Exchange(payload, what);
  });
}

void SessionImpl::LeaveUnusedStep() {
  if (!in_step_ || !step_unused_) return;
  executor_->Sweep();
  in_step_ = false;
}

void SessionImpl::SetState(const FilledWith& start) {
  state_ = TrainingState();
  state_.step = start.step;
  state_.updates = start.updates;
  state_.data_position = start.data_position;
  loss_scale_.Restore(start.loss_scale, start.loss_scale_steps);
  KeepLossScale();
}

absl::Status SessionImpl::Recover() {
  const FilledWith start = parts_.store->filled().value_or(FilledWith());
  const KeptSteps own = KeptStepsOf(*parts_.store, start.step);
  TESSERA_RETURN_IF_ERROR(AgreeOnPlan(parts_));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> payloads,
                           parts_.collectives->Exchange(
                               absl::string_view(reinterpret_cast<const char*>(&own), sizeof(own)),
                               "every rank to say which steps it has kept"));
  std::vector<KeptSteps> kept(payloads.size());
  for (size_t i = 0; i < payloads.size(); ++i)
    std::memcpy(&kept[i], payloads[i].data(), sizeof(KeptSteps));
  TESSERA_ASSIGN_OR_RETURN(const RecoveryPoint point, FindRecoveryPoint(kept));
  recovered_.reset();
  if (point.voted) {
    TESSERA_RETURN_IF_ERROR(FinishCommitted(point.committed));
  } else {
    SetState(start);
  }
  attempt_ = point.attempt;
  MakeExecutor();
  MakeSaver(/*loaded_step=*/-1);
  if (parts_.next != nullptr) {
    TESSERA_RETURN_IF_ERROR(parts_.next->Start(parts_.membership.get(), state_.step));
  }
  // What was being saved is begun again.
  if (point.voted) TESSERA_RETURN_IF_ERROR(saver_->AfterStep(state_));
  ended_ = false;
  failure_ = absl::OkStatus();
  unsent_progress_ = recent_progress_;
  reports_.Restart();
  LogInfo(absl::StrCat("goes on with step ", state_.step + 1, " in generation ",
                       parts_.assignment.generation(),
                       attempt_ > 1 ? absl::StrCat(", attempt ", attempt_) : ""));
  return absl::OkStatus();
}

StepResult SessionImpl::Commit(const std::vector<Vote>& votes) {
  const StepResult result = Tally(votes);
  ShardStore& store = *parts_.store;
  store.Decide(result.step, /*skip=*/result.non_finite, result.clip_coefficient);
  trace_.Does(v1::WORKING, -1, v1::OPTIMIZER, "the optimizer's first unit");
  store.FinishStep(result.step, [&](int unit, double us) {
    trace_.Does(v1::WORKING, unit, v1::OPTIMIZER);
    if (executor_ != nullptr) executor_->PublishShard(unit);
    stats_.Record(unit, v1::OPTIMIZER, us, 3 * store.Parameters(unit).bytes());
  });
  const StepRecord record = store.RecordOf(result.step);
  state_.step = result.step;
  state_.updates = record.updates();
  state_.data_position = record.data_position + parts_.spec.global_batch();
  loss_scale_.Update(result.non_finite);
  KeepLossScale();
  attempt_ = 1;
  resizing_ = result.drain;
  for (const Vote& vote : votes) resizing_ = resizing_ && vote.drain != 1;
  return result;
}

absl::Status SessionImpl::FinishCommitted(int64_t step) {
  const StepRecord record = parts_.store->RecordOf(step);
  loss_scale_.Restore(record.loss_scale, record.loss_scale_age);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Vote> votes,
                           ExchangeVotes(parts_.store->VoteOf(step)));
  parts_.faults->set_step(step);
  recovered_ = Commit(votes);
  state_.path.clear();
  return absl::OkStatus();
}

}  // namespace tessera
