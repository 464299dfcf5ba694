#include "tests/session/toy_model.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

void AddParameter(v1::Module* module, const std::string& name, std::vector<int64_t> shape,
                  const std::string& tied_to = "") {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(name);
  for (const int64_t extent : shape) parameter->add_shape(extent);
  parameter->set_dtype("float32");
  parameter->set_tied_to(tied_to);
}

std::string Block(int block, const char* parameter) {
  return absl::StrCat("h.", block, ".", parameter);
}

absl::Status WriteGradient(Session& session, int unit, const std::string& fqn,
                           const TensorView& parameter, int64_t step) {
  TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(unit, fqn));
  const float* value = parameter.as<float>();
  float* gradient = slot.view.as<float>();
  for (int64_t i = 0; i < slot.view.numel; ++i) {
    const float g = ToyGradient(value[i], session.rank(), step, i);
    gradient[i] = slot.accumulate ? gradient[i] + g : g;
  }
  return absl::OkStatus();
}

absl::Status Backward(Session& session, int block, int64_t step) {
  TESSERA_ASSIGN_OR_RETURN(const int unit, session.FindUnit(absl::StrCat("h.", block)));
  {
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, Phase::kBackward));
    for (const char* name : {"w", "b"}) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(Block(block, name)));
      TESSERA_RETURN_IF_ERROR(WriteGradient(session, unit, Block(block, name), view, step));
    }
  }
  return session.Reduce(unit);
}

// In the forward, a value that the ranks do not all see alike would show: its sum is compared
// between ranks.
absl::Status Forward(Session& session, int block, double* sum) {
  TESSERA_ASSIGN_OR_RETURN(const int unit, session.FindUnit(absl::StrCat("h.", block)));
  TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, Phase::kForward));
  for (const char* name : {"w", "b", "c"}) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(Block(block, name)));
    for (int64_t i = 0; i < view.numel; ++i)
      *sum += (i + 1) * static_cast<double>(view.as<float>()[i]);
  }
  return absl::OkStatus();
}

absl::Status ForwardAndBackward(Session& session, int64_t step, double* sum) {
  TESSERA_ASSIGN_OR_RETURN(const int root, session.FindUnit(""));
  TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(root, Phase::kForward));
  TESSERA_ASSIGN_OR_RETURN(const TensorView emb, lease.Parameter("emb.weight"));
  TESSERA_ASSIGN_OR_RETURN(const TensorView head, lease.Parameter("head.weight"));
  for (int block = 0; block < kToyBlocks; ++block)
    TESSERA_RETURN_IF_ERROR(Forward(session, block, sum));
  // The tied weight gets a gradient from each of its uses, the first before the blocks' and the
  // second after.
  TESSERA_RETURN_IF_ERROR(WriteGradient(session, root, "head.weight", head, step));
  for (int block = kToyBlocks - 1; block >= 0; --block)
    TESSERA_RETURN_IF_ERROR(Backward(session, block, step));
  TESSERA_RETURN_IF_ERROR(WriteGradient(session, root, "emb.weight", emb, step));
  return session.Reduce(root);
}

}  // namespace

v1::JobSpec ToyJob(const std::string& unshard) {
  v1::JobSpec job;
  job.set_name("toy");
  job.set_global_batch(12);
  job.mutable_memory()->set_unshard(unshard);
  job.mutable_mesh()->set_min_workers(1);
  job.mutable_mesh()->set_max_workers(4);
  job.mutable_wrap()->set_policy("class");
  job.mutable_wrap()->add_wrap_classes("Block");
  job.mutable_wrap()->set_shard_align_bytes(16);  // so that every rank has a part of every unit
  v1::ModelSpec* model = job.mutable_model()->mutable_spec();
  model->set_name("toy");
  v1::Module* root = model->mutable_root();
  root->set_class_name("Toy");
  v1::Module* emb = root->add_children();
  emb->set_name("emb");
  emb->set_class_name("Embedding");
  AddParameter(emb, "weight", {11, 5});
  v1::Module* blocks = root->add_children();
  blocks->set_name("h");
  blocks->set_class_name("ModuleList");
  for (int block = 0; block < kToyBlocks; ++block) {
    v1::Module* child = blocks->add_children();
    child->set_name(absl::StrCat(block));
    child->set_class_name("Block");
    AddParameter(child, "w", {7, 5});
    AddParameter(child, "b", {5});
    AddParameter(child, "c", {3});
  }
  v1::Module* head = root->add_children();
  head->set_name("head");
  head->set_class_name("Linear");
  AddParameter(head, "weight", {11, 5}, "emb.weight");
  return job;
}

float ToyGradient(float parameter, int rank, int64_t step, int64_t element) {
  return 0.5f * parameter +
         0.125f * static_cast<float>((rank + 1) * (1 + (element + step) % 5) - 4);
}

absl::StatusOr<StepResult> ToyStep(Session& session, double learning_rate, int micro_batches) {
  TESSERA_ASSIGN_OR_RETURN(const StepInfo step,
                           session.BeginStep({.learning_rate = learning_rate}));
  return ToyRestOfStep(session, step, micro_batches);
}

absl::StatusOr<StepResult> ToyRestOfStep(Session& session, const StepInfo& step,
                                         int micro_batches) {
  double sum = 0;
  for (int index = 0; index < micro_batches; ++index) {
    TESSERA_RETURN_IF_ERROR(
        session.BeginMicroBatch({.index = index, .synchronize = index + 1 == micro_batches}));
    TESSERA_RETURN_IF_ERROR(ForwardAndBackward(session, step.step, &sum));
  }
  double sums[2] = {sum, -sum * session.world_size()};
  TESSERA_RETURN_IF_ERROR(session.AllReduceSum(absl::MakeSpan(&sums[0], 1)));
  if (std::abs(sums[0] + sums[1]) > 1e-9 * std::abs(sums[0]) + 1e-12) {
    return absl::DataLossError(absl::StrCat(
        "rank ", session.rank(), " saw other parameters than its peers in step ", step.step));
  }
  return session.EndStep({.loss_sum = 1.0 + session.rank(), .loss_count = 1});
}

absl::StatusOr<ToyValues> ToySummonAll(Session& session) {
  ToyValues values;
  for (const v1::Unit& unit : session.plan().units()) {
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      TESSERA_ASSIGN_OR_RETURN(const SummonedParameter whole, session.Summon(parameter.fqn()));
      const float* begin = reinterpret_cast<const float*>(whole.bytes.data());
      values[parameter.fqn()].assign(begin, begin + parameter.numel());
    }
  }
  return values;
}

ToyValues ToyReference(const ToyValues& start, int world_size, int64_t steps,
                       double learning_rate) {
  constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;
  ToyValues values = start;
  for (auto& [fqn, parameter] : values) {
    const bool no_gradient = absl::EndsWith(fqn, ".c");
    const bool matrix = fqn == "emb.weight" || absl::EndsWith(fqn, ".w");
    const int uses = fqn == "emb.weight" ? 2 : 1;
    for (size_t i = 0; i < parameter.size(); ++i) {
      double p = parameter[i], m = 0, v = 0;
      for (int64_t step = 1; step <= steps; ++step) {
        double g = 0;
        for (int rank = 0; rank < world_size && !no_gradient; ++rank) {
          g += uses *
               (0.5 * p + 0.125 * ((rank + 1) * (1 + static_cast<int64_t>(i + step) % 5) - 4));
        }
        g /= world_size;
        if (matrix) p *= 1 - learning_rate * kDecay;
        m = kBeta1 * m + (1 - kBeta1) * g;
        v = kBeta2 * v + (1 - kBeta2) * g * g;
        const double m_hat = m / (1 - std::pow(kBeta1, step)),
                     v_hat = v / (1 - std::pow(kBeta2, step));
        p -= learning_rate * m_hat / (std::sqrt(v_hat) + kEps);
      }
      parameter[i] = static_cast<float>(p);
    }
  }
  return values;
}

}  // namespace tessera
