#include "worker/workloads/replay.h"

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/workloads/replay_checks.h"
#include "worker/workloads/replay_values.h"
#include "worker/workloads/schedule.h"

namespace tessera {
namespace {

constexpr int64_t kProgressEvery = 20;  // steps

using OnProgress = std::function<void(const v1::Progress&)>;

// Of sessions that scale the loss: by how much.
template <typename Info>
double LossScaleOf(const Info& info) {
  if constexpr (requires { info.loss_scale; }) {
    return info.loss_scale;
  } else {
    return 1;
  }
}

class ReplayProgram {
 public:
  ReplayProgram(Session& session, OnProgress on_progress)
      : session_(session),
        job_(session.job()),
        on_progress_(std::move(on_progress)),
        below_(session.plan().units_size()) {}

  absl::Status Prepare() {
    for (int unit = 0; unit < session_.plan().units_size(); ++unit) {
      const v1::Unit& planned = session_.plan().units(unit);
      if (planned.has_enclosing_unit()) {
        below_[planned.enclosing_unit()].push_back(unit);
      } else {
        outermost_.push_back(unit);
      }
      TESSERA_ASSIGN_OR_RETURN(
          const ReplayRule rule,
          MakeReplayRule(planned, job_, session_.world_size(), job_.replay().uses()));
      rules_.push_back(rule);
    }
    return absl::OkStatus();
  }

  // Also to be called again after a generation's end that came later, in Finish.
  absl::Status Run() {
    for (;;) {
      const absl::StatusOr<bool> done = Step();
      // A rank was lost: BeginStep says where the job goes on.
      if (GenerationEnded(done.status())) continue;
      if (!done.ok() || *done) return done.status();
    }
  }

 private:
  // One step, and what was left undone by a generation that ended. Whether it was the last.
  absl::StatusOr<bool> Step() {
    StepOptions options;
    options.learning_rate_at = [this](int64_t step) {
      return LearningRate(job_.optimizer(), step, job_.steps());
    };
    TESSERA_ASSIGN_OR_RETURN(const StepInfo info, session_.BeginStep(options));
    bits_ = ParameterBits();  // without those of a step that was lost
    if (info.recovered.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(const bool done, FollowUp(*info.recovered));
      if (done) return true;
    }
    if (info.step > job_.steps()) return true;
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, TrainStep(info));
    return FollowUp(result);
  }

  // What follows from a step's result: whether it was the last.
  absl::StatusOr<bool> FollowUp(const StepResult& result) {
    const bool last = result.step == job_.steps();
    const bool done = last || result.drain;
    if (last || (job_.eval_every() > 0 && result.step % job_.eval_every() == 0)) {
      TESSERA_RETURN_IF_ERROR(Evaluate());
    }
    if (done || result.step % kProgressEvery == 0) Report(result.step);
    return done;
  }

  absl::StatusOr<StepResult> TrainStep(const StepInfo& info) {
    pass_.seed = job_.seed();
    pass_.rank = session_.rank();
    pass_.step = info.step;
    scale_ = LossScaleOf(info);
    for (pass_.micro_batch = 0; pass_.micro_batch < job_.micro_batches(); ++pass_.micro_batch) {
      const bool last = pass_.micro_batch + 1 == job_.micro_batches();
      TESSERA_RETURN_IF_ERROR(session_.BeginMicroBatch(
          {.index = pass_.micro_batch,
           .synchronize = last || !job_.memory().accumulate_unsynchronized()}));
      TESSERA_RETURN_IF_ERROR(ForwardAndBackward());
    }
    TESSERA_RETURN_IF_ERROR(CompareBits());
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, session_.EndStep({.loss_count = 1}));
    // A scale that was too large: what overflowed is nobody's gradient, and no rank took the step.
    if (result.non_finite && scale_ != 1) return result;
    TESSERA_RETURN_IF_ERROR(CheckGradients(info.step));
    return result;
  }

  absl::Status ForwardAndBackward() {
    UnitLease root;  // until its backward is over
    for (const int unit : outermost_) {
      TESSERA_ASSIGN_OR_RETURN(UnitLease lease, Forward(unit, Phase::kForward));
      if (session_.plan().units(unit).fqn().empty()) root = std::move(lease);
    }
    for (size_t i = outermost_.size(); i-- > 0;) {
      const bool is_root = root.unit() == outermost_[i];
      TESSERA_RETURN_IF_ERROR(Backward(outermost_[i], is_root ? std::move(root) : UnitLease()));
    }
    return absl::OkStatus();
  }

  // All uses of the unit, the last one around the units below it; gives that one's lease.
  absl::StatusOr<UnitLease> Forward(int unit, Phase phase) {
    for (int64_t use = 1; use < job_.replay().uses(); ++use) {
      TESSERA_RETURN_IF_ERROR(Use(unit, phase).status());
    }
    TESSERA_ASSIGN_OR_RETURN(UnitLease lease, Use(unit, phase));
    for (const int below : below_[unit]) {
      TESSERA_RETURN_IF_ERROR(Forward(below, phase).status());
    }
    return lease;
  }

  absl::StatusOr<UnitLease> Use(int unit, Phase phase) {
    TESSERA_ASSIGN_OR_RETURN(UnitLease lease, session_.Unshard(unit, phase));
    TESSERA_RETURN_IF_ERROR(Look(unit, lease));
    Compute();
    return lease;
  }

  // Looks at every parameter of a unit that is whole.
  absl::Status Look(int unit, const UnitLease& lease) {
    const v1::Unit& planned = session_.plan().units(unit);
    // An imported or resumed model is not the seed's.
    const bool first = session_.step() == 0 && pass_.step == 1 &&
                       job_.checkpoint().import().empty() && job_.checkpoint().resume() == "none";
    for (const v1::UnitParameter& parameter : planned.parameters()) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(parameter.fqn()));
      bits_.Add(view);
      if (!first) continue;
      TESSERA_RETURN_IF_ERROR(
          CheckFirstValues(job_.seed(), session_.rank(), planned, parameter, view));
    }
    return absl::OkStatus();
  }

  // `lease`: a use that the unit has kept since its forward; or none.
  absl::Status Backward(int unit, UnitLease lease) {
    if (lease.unit() < 0) {
      TESSERA_ASSIGN_OR_RETURN(lease, session_.Unshard(unit, Phase::kBackward));
    }
    for (size_t i = below_[unit].size(); i-- > 0;) {
      TESSERA_RETURN_IF_ERROR(Backward(below_[unit][i], UnitLease()));
    }
    for (pass_.use = 0; pass_.use < job_.replay().uses(); ++pass_.use) {
      if (pass_.use > 0) {
        lease = UnitLease();
        TESSERA_ASSIGN_OR_RETURN(lease, session_.Unshard(unit, Phase::kBackward));
      }
      Compute();
      TESSERA_RETURN_IF_ERROR(WriteGradients(unit));
    }
    lease = UnitLease();
    return session_.Reduce(unit);
  }

  absl::Status WriteGradients(int unit) {
    const v1::Unit& planned = session_.plan().units(unit);
    for (const v1::UnitParameter& parameter : planned.parameters()) {
      if (!parameter.requires_grad()) continue;
      TESSERA_RETURN_IF_ERROR(WriteGradient(unit, parameter.fqn()));
      for (const std::string& tied : parameter.tied_fqns()) {
        TESSERA_RETURN_IF_ERROR(WriteGradient(unit, tied));
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteGradient(int unit, const std::string& fqn) {
    const v1::Unit& planned = session_.plan().units(unit);
    if (!ReplayRule::Contributes(pass_, planned.fqn(), fqn)) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session_.GradientView(unit, fqn));
    const ReplayRule& rule = rules_[unit];
    WriteReplay(rule.Stream(pass_, fqn), rule.factor * scale_, slot.accumulate, slot.view);
    return absl::OkStatus();
  }

  absl::Status CheckGradients(int64_t step) {
    const ReplayStep made = {.seed = job_.seed(),
                             .step = step,
                             .world_size = session_.world_size(),
                             .micro_batches = job_.micro_batches(),
                             .uses = job_.replay().uses(),
                             .scale = scale_};
    for (int unit = 0; unit < session_.plan().units_size(); ++unit) {
      TESSERA_ASSIGN_OR_RETURN(const ShardSpan shard, session_.GradientShard(unit));
      ReplayShard own;
      own.rank = session_.rank();
      own.shard_index = session_.shard_index();
      own.data = shard.data;
      own.dtype = shard.dtype;
      TESSERA_RETURN_IF_ERROR(CheckGradientShard(rules_[unit], made, session_.plan().units(unit),
                                                 session_.layout(unit), own));
    }
    return absl::OkStatus();
  }

  absl::Status Evaluate() {
    TESSERA_RETURN_IF_ERROR(session_.BeginMicroBatch({.gradients = false}));
    for (const int unit : outermost_) {
      TESSERA_RETURN_IF_ERROR(Forward(unit, Phase::kEval).status());
    }
    return CompareBits();
  }

  // Whether every rank has unsharded the same since the last time.
  absl::Status CompareBits() {
    const double own = bits_.Take();
    std::array<double, 1> sum = {own};
    TESSERA_RETURN_IF_ERROR(session_.AllReduceSum(absl::MakeSpan(sum)));
    if (sum[0] == own * session_.world_size()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "rank ", session_.rank(), " unsharded other bits in step ", pass_.step, " than its peers"));
  }

  // Processor time, as a model would take it.
  void Compute() const {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::microseconds(job_.replay().compute_us());
    while (std::chrono::steady_clock::now() < end) {
    }
  }

  void Report(int64_t step) {
    if (session_.rank() != 0) return;
    v1::Progress progress;
    progress.set_step(step);
    progress.set_steps(job_.steps());
    if (on_progress_) on_progress_(progress);
    session_.ReportProgress(progress);
  }

  Session& session_;
  const v1::JobSpec& job_;
  const OnProgress on_progress_;
  std::vector<std::vector<int>> below_;  // by unit: those directly below it, in order
  std::vector<int> outermost_;           // the root, where it is a unit
  std::vector<ReplayRule> rules_;        // by unit
  ReplayPass pass_;
  double scale_ = 1;  // of the loss
  ParameterBits bits_;
};

}  // namespace

absl::Status RunReplay(Session& session, std::function<void(const v1::Progress&)> on_progress) {
  ReplayProgram program(session, std::move(on_progress));
  TESSERA_RETURN_IF_ERROR(program.Prepare());
  return program.Run();
}

absl::Status RunReplayToTheEnd(Session& session) {
  ReplayProgram program(session, nullptr);
  TESSERA_RETURN_IF_ERROR(program.Prepare());
  for (;;) {
    TESSERA_RETURN_IF_ERROR(program.Run());
    const absl::Status finished = session.Finish();
    if (!GenerationEnded(finished)) return finished;
  }
}

}  // namespace tessera
