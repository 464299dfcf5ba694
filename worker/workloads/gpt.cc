#include "worker/workloads/gpt.h"

#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/file_roots.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "common/text_data.h"
#include "worker/workloads/bfloat16_linear.h"
#include "worker/workloads/gpt_batch.h"
#include "worker/workloads/gpt_float32.h"
#include "worker/workloads/gpt_model.h"
#include "worker/workloads/gpt_units.h"
#include "worker/workloads/onednn_kernel.h"
#include "worker/workloads/schedule.h"

namespace tessera {
namespace {

constexpr int64_t kProgressEvery = 20;  // steps

using OnProgress = std::function<void(const v1::Progress&)>;
using Leases = std::vector<UnitLease>;

// Tokens of all ranks per second of training since the last Take.
class Throughput {
 public:
  void Start() { start_ = std::chrono::steady_clock::now(); }
  void Stop(int64_t tokens) {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    tokens_ += tokens;
  }
  double Take() {
    const double rate = seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0;
    seconds_ = 0;
    tokens_ = 0;
    return rate;
  }

 private:
  std::chrono::steady_clock::time_point start_;
  double seconds_ = 0;
  int64_t tokens_ = 0;
};

GptShape ShapeOf(const v1::JobSpec& job, int world_size) {
  const v1::ModelSource& model = job.model();
  return {.layers = model.layers(),
          .width = model.width(),
          .heads = model.heads(),
          .context = model.context(),
          .vocab = model.vocab(),
          .sequences = job.global_batch() / world_size / job.micro_batches(),
          .attention = !model.has_attention() || model.attention(),
          .recompute = job.activations().recompute() == "unit"};
}

// Whether blocks multiply in bfloat16; says what becomes of parameters that are not float32.
bool MultipliesBFloat16(const Session& session) {
  for (const v1::Unit& unit : session.plan().units()) {
    if (unit.param_dtype() == v1::FLOAT32) continue;
    const bool multiplies = unit.param_dtype() == v1::BFLOAT16 && CheckBFloat16().ok();
    if (session.rank() == 0) {
      LogInfo(multiplies ? "gpt multiplies in bfloat16, and does everything else in float32"
                         : absl::StrCat("gpt computes in float32 on parameters and gradients in ",
                                        DTypeName(unit.param_dtype()), ", cast at each use",
                                        unit.param_dtype() == v1::BFLOAT16
                                            ? absl::StrCat(": ", CheckBFloat16().message())
                                            : ""));
    }
    return multiplies;
  }
  return false;
}

class GptProgram {
 public:
  static absl::StatusOr<std::unique_ptr<GptProgram>> Create(Session& session,
                                                            OnProgress on_progress) {
    const v1::JobSpec& job = session.job();
    SetComputeThreads(static_cast<int>(job.threads_per_worker()));
    GptShape shape = ShapeOf(job, session.world_size());
    shape.bfloat16 = MultipliesBFloat16(session);
    TESSERA_RETURN_IF_ERROR(FileRoots::OfProcess().CheckData(job.data()));
    TESSERA_ASSIGN_OR_RETURN(TextData text,
                             LoadText(job.data(), job.global_batch(), shape.context));
    TESSERA_ASSIGN_OR_RETURN(GptUnits units, FindGptUnits(session.plan(), shape));
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<GptModel> model, GptModel::Create(shape));
    TESSERA_RETURN_IF_ERROR(
        session.DeclareOrder(units.Order(job.micro_batches(), shape.recompute)));
    return std::make_unique<GptProgram>(session, std::move(text), std::move(units),
                                        std::move(model), std::move(on_progress));
  }

  GptProgram(Session& session, TextData text, GptUnits units, std::unique_ptr<GptModel> model,
             OnProgress on_progress)
      : session_(session),
        job_(session.job()),
        text_(std::move(text)),
        units_(std::move(units)),
        model_(std::move(model)),
        on_progress_(std::move(on_progress)),
        training_(text_.train, static_cast<uint64_t>(job_.seed()), job_.global_batch(),
                  model_->shape().context),
        evaluation_(text_.held_out, model_->shape().context),
        batch_(model_->shape().sequences, model_->shape().context) {}

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
    throughput_.Start();
    StepOptions options;
    options.learning_rate_at = [this](int64_t step) {
      return LearningRate(job_.optimizer(), step, job_.steps());
    };
    TESSERA_ASSIGN_OR_RETURN(const StepInfo info, session_.BeginStep(options));
    if (info.recovered.has_value()) {
      throughput_.Stop(job_.global_batch() * batch_.context);
      TESSERA_ASSIGN_OR_RETURN(const bool done, FollowUp(*info.recovered));
      if (done) return true;
      throughput_.Start();
    }
    if (info.step > job_.steps()) return true;
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, TrainStep(info));
    throughput_.Stop(job_.global_batch() * batch_.context);
    return FollowUp(result);
  }

  // What follows from a step's result: whether it was the last.
  absl::StatusOr<bool> FollowUp(const StepResult& result) {
    if (result.non_finite) {
      LogInfo(absl::StrCat("step ", result.step, " was skipped: a gradient is not finite"));
    }
    if (!std::isfinite(result.loss_mean)) {
      return absl::OutOfRangeError(
          absl::StrCat("the loss of step ", result.step, " is ", result.loss_mean,
                       "; lower optimizer.lr or lengthen optimizer.warmup_steps"));
    }
    const bool last = result.step == job_.steps();
    std::optional<double> held_out_loss;
    if (last || (job_.eval_every() > 0 && result.step % job_.eval_every() == 0)) {
      TESSERA_ASSIGN_OR_RETURN(held_out_loss, Evaluate());
    }
    if (last || result.drain || held_out_loss.has_value() || result.step % kProgressEvery == 0) {
      Report(result, held_out_loss);
    }
    return last || result.drain;
  }

  absl::StatusOr<StepResult> TrainStep(const StepInfo& info) {
    loss_scale_ = info.loss_scale;
    root_gradients_ = Float32Gradients();  // what a step that was lost left open
    const int64_t first = session_.rank() * batch_.sequences * job_.micro_batches();
    StepMetrics metrics;
    for (int64_t index = 0; index < job_.micro_batches(); ++index) {
      const bool last = index + 1 == job_.micro_batches();
      TESSERA_RETURN_IF_ERROR(session_.BeginMicroBatch(
          {.index = index, .synchronize = last || !job_.memory().accumulate_unsynchronized()}));
      training_.Fill(info.step, first + index * batch_.sequences, batch_);
      TESSERA_ASSIGN_OR_RETURN(const double loss_sum, ForwardAndBackward());
      metrics.loss_sum += loss_sum;
      metrics.loss_count += batch_.sequences * batch_.context;
    }
    return session_.EndStep(metrics);
  }

  absl::StatusOr<double> ForwardAndBackward() {
    TESSERA_ASSIGN_OR_RETURN(const Leases root_leases, Unshard(units_.root, Phase::kForward));
    TESSERA_ASSIGN_OR_RETURN(const RootTensors root, RootOf(root_leases));
    TESSERA_ASSIGN_OR_RETURN(const double loss_sum, Forward(root, root_leases, Phase::kForward));
    TESSERA_RETURN_IF_ERROR(Backward(root, root_leases));
    return loss_sum;
  }

  absl::StatusOr<double> Forward(const RootTensors& root, const Leases& root_leases, Phase phase) {
    TESSERA_RETURN_IF_ERROR(model_->EmbedForward(root, batch_.tokens));
    for (size_t layer = 0; layer < units_.blocks.size(); ++layer) {
      const GptPart& part = units_.blocks[layer];
      TESSERA_ASSIGN_OR_RETURN(const Leases leases, Unshard(part, phase));
      TESSERA_ASSIGN_OR_RETURN(const BlockTensors block, BlockOf(part, leases, root_leases));
      TESSERA_RETURN_IF_ERROR(model_->BlockForward(static_cast<int64_t>(layer), block));
    }
    return model_->HeadForward(root, batch_.targets);
  }

  absl::Status Backward(const RootTensors& root, const Leases& root_leases) {
    const double tokens = static_cast<double>(batch_.targets.size());
    const float scale =
        static_cast<float>(loss_scale_ / (tokens * static_cast<double>(job_.micro_batches())));
    RootGradients gradients;
    for (const RootParameter parameter : {kWte, kLnFWeight, kLnFBias}) {
      TESSERA_ASSIGN_OR_RETURN(gradients[parameter], RootGradient(parameter));
    }
    TESSERA_RETURN_IF_ERROR(model_->HeadBackward(root, batch_.targets, scale, gradients));
    for (size_t layer = units_.blocks.size(); layer-- > 0;) {
      TESSERA_RETURN_IF_ERROR(BackwardBlock(layer, root_leases));
    }
    // Asked for again: wte's gradient from the head is there by now, and the embedding's is added.
    for (const RootParameter parameter : {kWte, kWpe}) {
      TESSERA_ASSIGN_OR_RETURN(gradients[parameter], RootGradient(parameter));
    }
    TESSERA_RETURN_IF_ERROR(model_->EmbedBackward(batch_.tokens, gradients));
    root_gradients_.Store();
    return Reduce(units_.root);
  }

  absl::Status BackwardBlock(size_t layer, const Leases& root_leases) {
    const GptPart& part = units_.blocks[layer];
    Leases again;  // held until the backward has its own: the block stays whole
    if (model_->shape().recompute) {
      TESSERA_ASSIGN_OR_RETURN(again, Unshard(part, Phase::kRecompute));
      TESSERA_ASSIGN_OR_RETURN(const BlockTensors block, BlockOf(part, again, root_leases));
      TESSERA_RETURN_IF_ERROR(model_->BlockRecompute(static_cast<int64_t>(layer), block));
    }
    TESSERA_ASSIGN_OR_RETURN(const Leases leases, Unshard(part, Phase::kBackward));
    again.clear();
    TESSERA_ASSIGN_OR_RETURN(const BlockTensors block, BlockOf(part, leases, root_leases));
    BlockGradients gradients;
    for (int parameter = 0; parameter < kBlockParameters; ++parameter) {
      // A gradient that is not asked for is zero, which is what attention's is when it is left out.
      if (!model_->shape().attention && parameter <= kAttnProjBias) continue;
      TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, SlotOf(part, parameter));
      gradients[parameter] = {slot.view.data, slot.accumulate, slot.view.dtype};
    }
    TESSERA_RETURN_IF_ERROR(model_->BlockBackward(static_cast<int64_t>(layer), block, gradients));
    return Reduce(part);
  }

  // The mean over the held-out windows, the same on every rank.
  absl::StatusOr<double> Evaluate() {
    std::array<double, 2> sum_and_count = {0, 0};
    const int64_t passes = evaluation_.Passes(session_.world_size(), batch_.sequences);
    for (int64_t pass = 0; pass < passes; ++pass) {
      TESSERA_RETURN_IF_ERROR(session_.BeginMicroBatch({.index = pass, .gradients = false}));
      evaluation_.Fill(pass, session_.rank(), session_.world_size(), batch_);
      TESSERA_ASSIGN_OR_RETURN(const Leases root_leases, Unshard(units_.root, Phase::kEval));
      TESSERA_ASSIGN_OR_RETURN(const RootTensors root, RootOf(root_leases));
      TESSERA_ASSIGN_OR_RETURN(const double loss_sum, Forward(root, root_leases, Phase::kEval));
      sum_and_count[0] += loss_sum;
      for (const int32_t target : batch_.targets) sum_and_count[1] += target >= 0;
    }
    TESSERA_RETURN_IF_ERROR(session_.AllReduceSum(absl::MakeSpan(sum_and_count)));
    return sum_and_count[0] / sum_and_count[1];
  }

  void Report(const StepResult& result, std::optional<double> held_out_loss) {
    const double rate = throughput_.Take();
    if (session_.rank() != 0) return;
    v1::Progress progress;
    progress.set_step(result.step);
    progress.set_steps(job_.steps());
    progress.set_loss(result.loss_mean);
    if (held_out_loss.has_value()) progress.set_val_loss(*held_out_loss);
    progress.set_tokens_per_second(rate);
    if (on_progress_) on_progress_(progress);
    session_.ReportProgress(progress);
  }

  absl::StatusOr<Leases> Unshard(const GptPart& part, Phase phase) {
    Leases leases;
    leases.reserve(part.unshards.size());
    for (const int unit : part.unshards) {
      TESSERA_ASSIGN_OR_RETURN(UnitLease lease, session_.Unshard(unit, phase));
      leases.push_back(std::move(lease));
    }
    return leases;
  }

  // The root's parameters, widened to float32.
  absl::StatusOr<RootTensors> RootOf(const Leases& leases) {
    RootTensors tensors;
    for (int i = 0; i < kRootParameters; ++i) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView view, ViewOf(units_.root, i, leases, leases));
      tensors[i] = root_float32_.Widen(i, view);
    }
    return tensors;
  }

  absl::StatusOr<BlockTensors> BlockOf(const GptPart& part, const Leases& leases,
                                       const Leases& root_leases) {
    BlockTensors tensors;
    for (int i = 0; i < kBlockParameters; ++i) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView view, ViewOf(part, i, leases, root_leases));
      tensors[i] = {view.data, view.dtype};
    }
    return tensors;
  }

  // A parameter, from the lease of its unit.
  static absl::StatusOr<TensorView> ViewOf(const GptPart& part, int parameter, const Leases& leases,
                                           const Leases& root_leases) {
    const UnitLease* lease = FindLease(leases, part.units[parameter]);
    if (lease == nullptr) lease = FindLease(root_leases, part.units[parameter]);
    if (lease == nullptr)
      return absl::InternalError(absl::StrCat(part.fqns[parameter], " has no lease"));
    return lease->Parameter(part.fqns[parameter]);
  }

  static const UnitLease* FindLease(const Leases& leases, int unit) {
    for (const UnitLease& lease : leases) {
      if (lease.unit() == unit) return &lease;
    }
    return nullptr;
  }

  absl::StatusOr<GradientSlot> SlotOf(const GptPart& part, int parameter) {
    return session_.GradientView(part.units[parameter], part.fqns[parameter]);
  }

  absl::StatusOr<GradientTarget> RootGradient(int parameter) {
    TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, SlotOf(units_.root, parameter));
    return root_gradients_.Open(parameter, slot);
  }

  absl::Status Reduce(const GptPart& part) {
    for (const int unit : part.reduces) TESSERA_RETURN_IF_ERROR(session_.Reduce(unit));
    return absl::OkStatus();
  }

  Session& session_;
  const v1::JobSpec& job_;
  const TextData text_;
  const GptUnits units_;
  const std::unique_ptr<GptModel> model_;
  const OnProgress on_progress_;
  const TrainingWindows training_;
  const EvaluationWindows evaluation_;
  GptBatch batch_;
  Throughput throughput_;
  double loss_scale_ = 1;  // of the step
  Float32Parameters root_float32_;
  Float32Gradients root_gradients_;
};

}  // namespace

absl::Status RunGpt(Session& session, std::function<void(const v1::Progress&)> on_progress) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<GptProgram> program,
                           GptProgram::Create(session, std::move(on_progress)));
  return program->Run();
}

absl::Status RunGptToTheEnd(Session& session) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<GptProgram> program,
                           GptProgram::Create(session, nullptr));
  for (;;) {
    TESSERA_RETURN_IF_ERROR(program->Run());
    const absl::Status finished = session.Finish();
    if (!GenerationEnded(finished)) return finished;
  }
}

}  // namespace tessera
