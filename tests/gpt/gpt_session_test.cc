// The workload gpt on the real data path, ranks as threads: gradients against the double reference
// of the global batch, and the same training at every world size, wrap policy and number of
// micro-batches.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "common/text_data.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "worker/workloads/gpt.h"
#include "worker/workloads/gpt_batch.h"
#include "worker/workloads/gpt_reference.h"

namespace tessera {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

// Small, and with a global batch that 1 to 4 ranks divide, also by two micro-batches.
v1::JobSpec Job() {
  v1::JobSpec job;
  job.set_name("gpt");
  job.mutable_model()->set_layers(2);
  job.mutable_model()->set_width(32);
  job.mutable_model()->set_heads(2);
  job.mutable_model()->set_context(16);
  job.set_global_batch(24);
  job.set_steps(1);
  return job;
}

struct Trained {
  Tensors start;      // parameters before the first step
  Tensors gradients;  // of the last step
  std::vector<v1::Progress> progress;
  std::vector<absl::Status> statuses;
};

// Puts a rank's gradient shards into their places in the flat parameters.
void CollectGradients(const Session& session, const v1::Layout& layout,
                      std::vector<std::vector<float>>& flat) {
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    const absl::Span<float> shard = session.GradientShard(unit)->as<float>();
    std::copy(shard.begin(), shard.end(),
              flat[unit].begin() + session.rank() * layout.units(unit).shard_numel());
  }
}

Tensors Split(const v1::Plan& plan, const v1::Layout& layout,
              const std::vector<std::vector<float>>& flat) {
  Tensors tensors;
  for (int unit = 0; unit < plan.units_size(); ++unit) {
    for (int p = 0; p < plan.units(unit).parameters_size(); ++p) {
      const auto begin = flat[unit].begin() + layout.units(unit).parameters(p).offset();
      tensors[plan.units(unit).parameters(p).fqn()].assign(
          begin, begin + plan.units(unit).parameters(p).numel());
    }
  }
  return tensors;
}

absl::StatusOr<Tensors> SummonAll(Session& session) {
  Tensors tensors;
  for (const v1::Unit& unit : session.plan().units()) {
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      TESSERA_ASSIGN_OR_RETURN(const SummonedParameter summoned, session.Summon(parameter.fqn()));
      std::vector<float>& values = tensors[parameter.fqn()];
      values.resize(summoned.bytes.size() / sizeof(float));
      std::memcpy(values.data(), summoned.bytes.data(), summoned.bytes.size());
    }
  }
  return tensors;
}

Trained Train(const v1::JobSpec& job, int world_size) {
  Trained trained;
  auto ranks = ThreadRanks::Create(job, world_size, {});
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  if (!ranks.ok()) return trained;
  const v1::Layout& layout = (*ranks)->plan().layout;
  std::vector<std::vector<float>> flat;
  for (const v1::UnitLayout& unit : layout.units()) flat.emplace_back(unit.padded_numel());
  trained.statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(Tensors start, SummonAll(session));
    if (session.rank() == 0) trained.start = std::move(start);
    TESSERA_RETURN_IF_ERROR(RunGpt(
        session, [&](const v1::Progress& progress) { trained.progress.push_back(progress); }));
    CollectGradients(session, layout, flat);
    return session.Finish();
  });
  trained.gradients = Split((*ranks)->plan().plan, layout, flat);
  return trained;
}

Trained TrainOk(const v1::JobSpec& job, int world_size) {
  Trained trained = Train(job, world_size);
  for (const absl::Status& status : trained.statuses) EXPECT_TRUE(status.ok()) << status;
  return trained;
}

struct Reference {
  double loss = 0;
  std::map<std::string, reference::Values> gradients;
};

// The whole global batch of step 1 at once, from the parameters that training starts with.
Reference RunReference(const v1::JobSpec& job, const Tensors& start) {
  const v1::ModelSource& m = job.model();
  reference::Model model, gradients;
  model.shape = {.layers = m.layers(),
                 .width = m.width(),
                 .heads = m.heads(),
                 .context = m.context(),
                 .vocab = 256,
                 .sequences = job.global_batch()};
  model.blocks.resize(m.layers());
  gradients.blocks.resize(m.layers());
  const auto each = [](reference::Model& of, auto visit) {
    for (int i = 0; i < kRootParameters; ++i) visit(kRootParameterNames[i], of.root[i]);
    for (size_t layer = 0; layer < of.blocks.size(); ++layer) {
      for (int i = 0; i < kBlockParameters; ++i) {
        visit(absl::StrCat("h.", layer, ".", kBlockParameterNames[i]), of.blocks[layer][i]);
      }
    }
  };
  each(model, [&](const std::string& fqn, reference::Values& values) {
    values.assign(start.at(fqn).begin(), start.at(fqn).end());
  });
  const TextData text = LoadText("", job.global_batch(), m.context()).value();
  GptBatch batch(job.global_batch(), m.context());
  TrainingWindows(text.train, /*seed=*/1, job.global_batch(), m.context()).Fill(1, 0, batch);
  const double tokens = static_cast<double>(batch.tokens.size());
  Reference result;
  result.loss = model.Run(batch.tokens, batch.targets, 1 / tokens, &gradients) / tokens;
  each(gradients,
       [&](const std::string& fqn, reference::Values& values) { result.gradients[fqn] = values; });
  return result;
}

void ExpectWithin(absl::Span<const float> actual, absl::Span<const double> expected,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    worst = std::max(worst, std::abs(actual[i] - expected[i]));
  }
  EXPECT_LE(worst, tolerance) << what;
}

double Largest(absl::Span<const double> values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// Within 1e-5 of each tensor's largest; the key's bias, whose true gradient is zero, within 1e-6 of
// the query's largest.
void ExpectGradients(const Tensors& actual, const Reference& expected, int64_t width) {
  ASSERT_EQ(actual.size(), expected.gradients.size());
  for (const auto& [fqn, values] : expected.gradients) {
    const absl::Span<const float> got = actual.at(fqn);
    const absl::Span<const double> want = values;
    if (fqn.find("c_attn.bias") == std::string::npos) {
      ExpectWithin(got, want, 1e-5 * Largest(want), fqn);
      continue;
    }
    const double query = Largest(want.subspan(0, width));
    ExpectWithin(got.subspan(0, width), want.subspan(0, width), 1e-5 * query, fqn + " (query)");
    ExpectWithin(got.subspan(width, width), want.subspan(width, width), 1e-6 * query,
                 fqn + " (key)");
    ExpectWithin(got.subspan(2 * width), want.subspan(2 * width),
                 1e-5 * Largest(want.subspan(2 * width)), fqn + " (value)");
  }
}

TEST(GptSessionTest, FirstStepMatchesReferenceOfGlobalBatchAtEveryWorldSize) {
  for (const int world_size : {1, 2, 3, 4}) {
    SCOPED_TRACE(world_size);
    const Trained trained = TrainOk(Job(), world_size);
    const Reference expected = RunReference(Job(), trained.start);
    ASSERT_EQ(trained.progress.size(), 1u);
    EXPECT_NEAR(trained.progress[0].loss(), expected.loss, 1e-6 * expected.loss);
    ExpectGradients(trained.gradients, expected, 32);
  }
}

TEST(GptSessionTest, MicroBatchesAddUpToTheSameGradient) {
  v1::JobSpec job = Job();
  job.set_micro_batches(2);
  for (const bool unsynchronized : {false, true}) {
    job.mutable_memory()->set_accumulate_unsynchronized(unsynchronized);
    for (const int world_size : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(world_size, unsynchronized ? " ranks, reduced once" : " ranks"));
      const Trained trained = TrainOk(job, world_size);
      const Reference expected = RunReference(job, trained.start);
      EXPECT_NEAR(trained.progress.at(0).loss(), expected.loss, 1e-6 * expected.loss);
      ExpectGradients(trained.gradients, expected, 32);
    }
  }
}

// All parameters in the root; all blocks in one unit; the default.
TEST(GptSessionTest, WrapPolicyChangesNoBit) {
  v1::JobSpec job = Job();
  job.set_steps(3);
  const Trained expected = TrainOk(job, 2);
  v1::JobSpec none = job;
  none.mutable_wrap()->set_policy("none");
  v1::JobSpec list = job;
  list.mutable_wrap()->set_policy("class");
  list.mutable_wrap()->add_wrap_classes("ModuleList");
  for (const v1::JobSpec& wrapped : {none, list}) {
    SCOPED_TRACE(wrapped.wrap().ShortDebugString());
    const Trained trained = TrainOk(wrapped, 2);
    EXPECT_EQ(trained.start, expected.start);
    EXPECT_EQ(trained.gradients, expected.gradients);
    EXPECT_EQ(trained.progress.at(0).loss(), expected.progress.at(0).loss());
    EXPECT_EQ(trained.progress.at(0).val_loss(), expected.progress.at(0).val_loss());
  }
}

// A power of two, which every product has exactly.
TEST(GptSessionTest, LossScaleIsInTheGradientsAndNowhereElse) {
  v1::JobSpec job = Job();
  job.set_steps(3);
  const Trained expected = TrainOk(job, 2);
  job.mutable_mixed_precision()->set_loss_scale("1024");
  const Trained trained = TrainOk(job, 2);
  EXPECT_EQ(trained.progress.at(0).loss(), expected.progress.at(0).loss());
  EXPECT_EQ(trained.progress.at(0).val_loss(), expected.progress.at(0).val_loss());
  for (const auto& [fqn, values] : expected.gradients) {
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(trained.gradients.at(fqn)[i], 1024 * values[i]) << fqn << " " << i;
    }
  }
}

// Nothing is trained: what is evaluated in full precision is the model that float32 has.
TEST(GptSessionTest, EvaluationInFullPrecisionIsThatOfFloat32) {
  v1::JobSpec job = Job();
  job.set_steps(1);
  job.mutable_optimizer()->set_lr(0);
  const Trained full = TrainOk(job, 2);
  job.mutable_mixed_precision()->set_param_dtype("bfloat16");
  const Trained half = TrainOk(job, 2);
  job.mutable_mixed_precision()->set_full_precision_eval(true);
  const Trained both = TrainOk(job, 2);
  EXPECT_EQ(both.progress.at(0).val_loss(), full.progress.at(0).val_loss());
  EXPECT_NE(half.progress.at(0).val_loss(), full.progress.at(0).val_loss());
  EXPECT_EQ(both.progress.at(0).loss(), half.progress.at(0).loss());
}

TEST(GptSessionTest, RecomputationChangesNoBit) {
  v1::JobSpec job = Job();
  job.set_steps(3);
  job.set_micro_batches(2);
  for (const char* policy : {"class", "none", "always"}) {
    for (const char* unshard : {"slots", "resident"}) {
      for (const char* dtype : {"float32", "bfloat16", "float16"}) {
        SCOPED_TRACE(absl::StrCat(policy, " ", unshard, " ", dtype));
        v1::JobSpec keeps = job;
        keeps.mutable_wrap()->set_policy(policy);
        keeps.mutable_mixed_precision()->set_param_dtype(dtype);
        keeps.mutable_memory()->set_unshard(unshard);
        if (keeps.wrap().policy() == "class") keeps.mutable_wrap()->add_wrap_classes("Block");
        // All of a block's units at once.
        if (keeps.wrap().policy() == "always") {
          keeps.mutable_memory()->set_max_live_units(20);
          keeps.mutable_memory()->set_accumulate_unsynchronized(true);
        }
        v1::JobSpec again = keeps;
        again.mutable_activations()->set_recompute("unit");
        const Trained expected = TrainOk(keeps, 2), trained = TrainOk(again, 2);
        EXPECT_EQ(trained.gradients, expected.gradients);
        ASSERT_EQ(trained.progress.size(), 1u);
        EXPECT_EQ(trained.progress[0].loss(), expected.progress.at(0).loss());
        EXPECT_EQ(trained.progress[0].val_loss(), expected.progress[0].val_loss());
      }
    }
  }
}

// The layers compute in float32 on values that are rounded to 11 bits: the loss moves in the fourth
// digit.
TEST(GptSessionTest, Float16ParametersLearnAsFloat32Does) {
  v1::JobSpec job = Job();
  job.set_steps(40);
  const Trained full = TrainOk(job, 2);
  job.mutable_mixed_precision()->set_param_dtype("float16");
  job.mutable_mixed_precision()->set_reduce_dtype("float32");
  const Trained half = TrainOk(job, 2);
  const v1::Progress &expected = full.progress.back(), &actual = half.progress.back();
  EXPECT_LT(expected.loss(), 5.0);
  EXPECT_NEAR(actual.loss(), expected.loss(), 1e-3 * expected.loss());
  EXPECT_NEAR(actual.val_loss(), expected.val_loss(), 1e-3 * expected.val_loss());
}

TEST(GptSessionTest, LossesAgreeOverHundredStepsAtEveryWorldSize) {
  v1::JobSpec job = Job();
  job.set_steps(100);
  job.set_eval_every(50);
  const Trained alone = TrainOk(job, 1);
  ASSERT_EQ(alone.progress.size(), 6u);  // steps 20, 40, 50, 60, 80 and 100
  EXPECT_LT(alone.progress[5].loss(), alone.progress[0].loss());
  for (const int world_size : {2, 3, 4}) {
    SCOPED_TRACE(world_size);
    const Trained trained = TrainOk(job, world_size);
    ASSERT_EQ(trained.progress.size(), alone.progress.size());
    for (size_t i = 0; i < trained.progress.size(); ++i) {
      const v1::Progress& actual = trained.progress[i];
      const v1::Progress& expected = alone.progress[i];
      EXPECT_EQ(actual.step(), expected.step());
      EXPECT_NEAR(actual.loss(), expected.loss(), 1e-5 * expected.loss()) << actual.step();
      EXPECT_EQ(actual.has_val_loss(), expected.step() % 50 == 0);
      EXPECT_EQ(actual.has_val_loss(), expected.has_val_loss());
      EXPECT_NEAR(actual.val_loss(), expected.val_loss(), 1e-5 * expected.val_loss());
    }
  }
}

TEST(GptSessionTest, TwoRunsAgreeBitForBit) {
  v1::JobSpec job = Job();
  job.set_steps(20);
  const Trained first = TrainOk(job, 3), second = TrainOk(job, 3);
  EXPECT_EQ(first.gradients, second.gradients);
  ASSERT_EQ(first.progress.size(), 1u);
  EXPECT_EQ(first.progress[0].loss(), second.progress.at(0).loss());
  EXPECT_EQ(first.progress[0].val_loss(), second.progress.at(0).val_loss());
}

TEST(GptSessionTest, WithoutAttentionItsParametersHaveNoGradient) {
  v1::JobSpec job = Job();
  job.mutable_model()->set_attention(false);
  const Trained trained = TrainOk(job, 2);
  ASSERT_EQ(trained.gradients.size(), 28u);  // 4 and 12 a block
  for (const auto& [fqn, values] : trained.gradients) {
    const bool zero = std::all_of(values.begin(), values.end(), [](float v) { return v == 0; });
    const bool of_attention =
        fqn.find(".attn.") != std::string::npos || fqn.find(".ln_1.") != std::string::npos;
    EXPECT_EQ(zero, of_attention) << fqn;
  }
}

TEST(GptSessionTest, EveryRankRefusesBadDataByName) {
  v1::JobSpec job = Job();
  job.set_data("/nonexistent/text");
  const Trained trained = Train(job, 2);
  ASSERT_EQ(trained.statuses.size(), 2u);
  for (const absl::Status& status : trained.statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Field(status), "data");
  }
}

TEST(GptSessionTest, DivergenceEndsTheJobNamingTheStep) {
  v1::JobSpec job = Job();
  job.set_steps(50);
  job.mutable_optimizer()->set_lr(1e30);
  job.mutable_optimizer()->set_warmup_steps(0);
  const Trained trained = Train(job, 2);
  ASSERT_EQ(trained.statuses.size(), 2u);
  for (const absl::Status& status : trained.statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    EXPECT_NE(status.message().find("the loss of step"), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace tessera
