#include "tests/session/precision_model.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

void AddParameter(v1::Module* module, const std::string& name, std::vector<int64_t> shape,
                  const std::string& dtype) {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(name);
  for (const int64_t extent : shape) parameter->add_shape(extent);
  parameter->set_dtype(dtype);
  parameter->mutable_init()->set_kind("ones");
}

v1::Module* AddChild(v1::Module* parent, const std::string& name, const std::string& type) {
  v1::Module* child = parent->add_children();
  child->set_name(name);
  child->set_class_name(type);
  return child;
}

class Rank {
 public:
  Rank(Session& session, const PrecisionSteps& steps, const GradientRule& rule, PrecisionRun& run)
      : session_(session), steps_(steps), rule_(rule), run_(run) {}

  absl::Status Train() {
    for (int64_t i = 0; i < steps_.steps; ++i) {
      TESSERA_ASSIGN_OR_RETURN(const StepInfo info,
                               session_.BeginStep({.learning_rate = steps_.learning_rate}));
      run_.loss_scales.push_back(info.loss_scale);
      for (int64_t index = 0; index < steps_.micro_batches; ++index) {
        const bool last = index + 1 == steps_.micro_batches;
        TESSERA_RETURN_IF_ERROR(session_.BeginMicroBatch(
            {.index = index, .synchronize = last || !steps_.unsynchronized}));
        for (int unit = session_.plan().units_size() - 1; unit >= 0; --unit) {
          TESSERA_RETURN_IF_ERROR(Backward(unit, info.step, index));
        }
      }
      TESSERA_ASSIGN_OR_RETURN(const StepResult result, session_.EndStep({}));
      run_.steps.push_back(result);
    }
    TESSERA_RETURN_IF_ERROR(Collect());
    return session_.Finish();
  }

 private:
  absl::Status Backward(int unit, int64_t step, int64_t micro_batch) {
    {
      TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session_.Unshard(unit, Phase::kBackward));
      for (const v1::UnitParameter& parameter : session_.plan().units(unit).parameters()) {
        const std::string& fqn = parameter.fqn();
        if (steps_.has_gradient && !steps_.has_gradient(session_.rank(), micro_batch, fqn))
          continue;
        TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(fqn));
        const std::vector<double> values = AsDoubles(view.data, view.dtype, view.numel);
        std::vector<double> gradient(values.size());
        for (size_t i = 0; i < values.size(); ++i) {
          gradient[i] =
              rule_({session_.rank(), step, micro_batch, fqn, static_cast<int64_t>(i), values[i]});
        }
        std::vector<char> cast(values.size() * sizeof(double));
        CastElements(gradient.data(), v1::FLOAT64, view.numel, view.dtype, cast.data());
        TensorView submitted = view;
        submitted.data = cast.data();
        TESSERA_RETURN_IF_ERROR(session_.SubmitGradient(unit, fqn, submitted, Event()));
      }
    }
    return session_.Reduce(unit);
  }

  absl::Status Collect() {
    for (int unit = 0; unit < session_.plan().units_size(); ++unit) {
      TESSERA_ASSIGN_OR_RETURN(const ShardSpan shard, session_.GradientShard(unit));
      const std::string& fqn = session_.plan().units(unit).fqn();
      run_.gradients[fqn] = AsDoubles(shard.data, shard.dtype, shard.numel);
      run_.gradient_dtypes[fqn] = shard.dtype;
      TESSERA_ASSIGN_OR_RETURN(const std::vector<SummonedParameter> whole,
                               session_.SummonUnit(unit));
      for (const SummonedParameter& parameter : whole) {
        const int64_t numel =
            static_cast<int64_t>(parameter.bytes.size()) / DTypeBytes(parameter.dtype);
        run_.parameters[parameter.fqn] = AsDoubles(parameter.bytes.data(), parameter.dtype, numel);
        run_.dtypes[parameter.fqn] = parameter.dtype;
      }
    }
    return absl::OkStatus();
  }

  Session& session_;
  const PrecisionSteps& steps_;
  const GradientRule& rule_;
  PrecisionRun& run_;
};

}  // namespace

v1::JobSpec PrecisionJob(const Precision& precision, const std::string& unshard) {
  v1::JobSpec job;
  job.set_name("precision");
  job.set_global_batch(12);
  job.mutable_memory()->set_unshard(unshard);
  job.mutable_mesh()->set_min_workers(1);
  job.mutable_mesh()->set_max_workers(4);
  job.mutable_wrap()->set_policy("class");
  job.mutable_wrap()->add_wrap_classes("Block");
  job.mutable_wrap()->set_shard_align_bytes(16);  // so that every rank has a part of the root
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_weight_decay(0);
  job.mutable_optimizer()->set_clip_norm(0);
  v1::MixedPrecisionSpec* mixed = job.mutable_mixed_precision();
  if (!precision.param.empty()) mixed->set_param_dtype(precision.param);
  if (!precision.reduce.empty()) mixed->set_reduce_dtype(precision.reduce);
  if (precision.keep) mixed->set_keep_grads_in_reduce_dtype(true);
  mixed->add_ignored_classes("");  // the batch norm is the root's
  v1::ModelSpec* model = job.mutable_model()->mutable_spec();
  model->set_name("precision");
  v1::Module* root = model->mutable_root();
  root->set_class_name("Model");
  AddParameter(root, "emb", {11, 5}, precision.original);
  v1::Module* block = AddChild(AddChild(root, "h", "ModuleList"), "0", "Block");
  AddParameter(block, "w", {7, 5}, precision.original);
  AddParameter(block, "b", {5}, precision.original);
  AddParameter(AddChild(root, "bn", "BatchNorm1d"), "weight", {5}, precision.original);
  return job;
}

std::vector<double> AsDoubles(const void* data, DType dtype, int64_t numel) {
  std::vector<double> values(numel);
  CastElements(data, dtype, numel, v1::FLOAT64, values.data());
  return values;
}

std::vector<PrecisionRun> RunPrecision(const v1::JobSpec& job, int world_size,
                                       const PrecisionSteps& steps, const GradientRule& rule) {
  std::vector<PrecisionRun> runs(world_size);
  const auto ranks = ThreadRanks::Create(job, world_size, {});
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  if (!ranks.ok()) return runs;
  const std::vector<absl::Status> statuses = (*ranks)->Run(
      [&](Session& session) { return Rank(session, steps, rule, runs[session.rank()]).Train(); });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return runs;
}

}  // namespace tessera
