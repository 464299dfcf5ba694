// Whole parameters written back, groups of parameters and norms, with ranks as threads, against
// values worked out in double precision.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/session/run_ranks.h"
#include "worker/gradient_norm.h"
#include "worker/write_back.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

float* Values(SummonedParameter& parameter) {
  return reinterpret_cast<float*>(parameter.bytes.data());
}

class ParametersTest : public ::testing::TestWithParam<ToyWorld> {
 protected:
  int world_size() const { return GetParam().ranks; }
  v1::JobSpec job() const { return ToyJobOf(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, ParametersTest, ::testing::ValuesIn(ToyWorlds()));

TEST_P(ParametersTest, WhatIsWrittenBackIsWhatEveryRankComputesWith) {
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    TESSERA_ASSIGN_OR_RETURN(const int block, session.FindUnit("h.1"));
    // Gathered ahead of the change: must not be what the step sees.
    TESSERA_RETURN_IF_ERROR(session.Prefetch(block));
    TESSERA_ASSIGN_OR_RETURN(SummonedParameter weight, session.Summon("h.1.w", true));
    for (int i = 0; i < 35; ++i) Values(weight)[i] = 2 * Values(weight)[i] + static_cast<float>(i);
    TESSERA_RETURN_IF_ERROR(WriteBack(session, {&weight, 1}));
    ToyValues want = start;
    for (int i = 0; i < 35; ++i)
      want["h.1.w"][i] = 2 * start.at("h.1.w")[i] + static_cast<float>(i);
    {
      TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(block, Phase::kEval));
      TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter("h.1.w"));
      EXPECT_EQ(std::vector<float>(view.as<float>(), view.as<float>() + 35), want["h.1.w"]);
    }
    for (int step = 0; step < 2; ++step) TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
    const ToyValues trained = ToyReference(want, world_size(), 2, 0.01);
    TESSERA_ASSIGN_OR_RETURN(const ToyValues end, ToySummonAll(session));
    for (const auto& [fqn, values] : trained) {
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(end.at(fqn)[i], values[i], 2e-5) << fqn << " " << i;
    }
    return session.Finish();
  };
  ExpectOk(RunRanks(job(), world_size(), body));
}

TEST_P(ParametersTest, WholeUnitIsWrittenBackByTiedNamesToo) {
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(SummonedParameter head, session.Summon("head.weight", true));
    for (int i = 0; i < 55; ++i) Values(head)[i] = static_cast<float>(i);
    TESSERA_RETURN_IF_ERROR(WriteBack(session, {&head, 1}));
    TESSERA_ASSIGN_OR_RETURN(SummonedParameter emb, session.Summon("emb.weight"));
    for (int i = 0; i < 55; ++i) EXPECT_EQ(Values(emb)[i], static_cast<float>(i));
    // A unit without a Summon before, several parameters at once, one left alone.
    TESSERA_ASSIGN_OR_RETURN(std::vector<SummonedParameter> block, session.SummonUnit(0));
    const std::vector<char> w = block[0].bytes;
    block.erase(block.begin());
    for (SummonedParameter& parameter : block)
      std::fill_n(Values(parameter), parameter.bytes.size() / sizeof(float), 7.0f);
    TESSERA_RETURN_IF_ERROR(WriteBack(session, block));
    TESSERA_ASSIGN_OR_RETURN(std::vector<SummonedParameter> now, session.SummonUnit(0));
    EXPECT_EQ(now[0].bytes, w);
    EXPECT_EQ(now[1].bytes, block[0].bytes);
    EXPECT_EQ(now[2].bytes, block[1].bytes);
    return session.Finish();
  };
  ExpectOk(RunRanks(job(), world_size(), body));
}

TEST_P(ParametersTest, LowPrecisionCopyFollowsTheMaster) {
  v1::JobSpec spec = job();
  spec.mutable_mixed_precision()->set_param_dtype("bfloat16");
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(SummonedParameter weight, session.Summon("h.2.w", true));
    for (int i = 0; i < 35; ++i) Values(weight)[i] = 1 + 0x1p-9f;  // rounds to 1
    TESSERA_RETURN_IF_ERROR(WriteBack(session, {&weight, 1}));
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(2, Phase::kEval));
    TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter("h.2.w"));
    for (int i = 0; i < 35; ++i) EXPECT_EQ(view.as<uint16_t>()[i], 0x3f80);
    return session.Barrier("every rank has looked");
  };
  ExpectOk(RunRanks(spec, world_size(), body));
}

// What WriteBack is given, and what the error says.
absl::Status WriteWrongly(Session& session, const std::string& how) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<SummonedParameter> block, session.SummonUnit(0));
  std::vector<SummonedParameter> given = {block[0]};
  UnitLease lease;
  if (how == "other values" && session.rank() == 1) Values(given[0])[3] += 1;
  if (how == "other parameters" && session.rank() == 1) given[0] = block[1];
  if (how == "twice") given.push_back(block[0]);
  if (how == "unknown") given[0].fqn = "h.0.x";
  if (how == "shape") given[0].shape = {5, 7};
  if (how == "dtype") given[0].dtype = v1::BFLOAT16;
  if (how == "bytes") given[0].bytes.pop_back();
  if (how == "none") given.clear();
  if (how == "step") TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
  if (how == "two units" || how == "not summoned") {
    TESSERA_ASSIGN_OR_RETURN(const SummonedParameter other,
                             session.Summon("emb.weight", how == "not summoned"));
    if (how == "two units") given.push_back(other);
  }
  if (how == "lease") {
    TESSERA_ASSIGN_OR_RETURN(lease, session.Unshard(0, Phase::kEval));
  }
  return WriteBack(session, given);
}

TEST(WriteBackTest, WhatCannotBeWrittenIsNamed) {
  const std::vector<std::tuple<std::string, absl::StatusCode, std::string>> cases = {
      {"other values", absl::StatusCode::kInvalidArgument, "writes back other values than rank"},
      {"other parameters", absl::StatusCode::kInvalidArgument, "other parameters than rank"},
      {"twice", absl::StatusCode::kInvalidArgument, "\"h.0.w\" is written back twice"},
      {"unknown", absl::StatusCode::kNotFound, "no parameter is called \"h.0.x\""},
      {"shape", absl::StatusCode::kInvalidArgument, "keeps its shape"},
      {"dtype", absl::StatusCode::kInvalidArgument, "\"h.0.w\" is written back as bfloat16"},
      {"bytes", absl::StatusCode::kInvalidArgument, "in 139 bytes"},
      {"none", absl::StatusCode::kInvalidArgument, "none was summoned"},
      {"step", absl::StatusCode::kFailedPrecondition, "WriteBack inside a step"},
      {"two units", absl::StatusCode::kInvalidArgument, "\"emb.weight\" is not in unit h.0"},
      {"not summoned", absl::StatusCode::kFailedPrecondition, "\"h.0.w\" is not in unit (root)"},
      {"lease", absl::StatusCode::kFailedPrecondition, "unit h.0 is in use"},
  };
  for (const auto& [how, code, message] : cases) {
    const auto statuses = RunRanks(ToyJob("resident"), 2, [&](Session& session) -> absl::Status {
      return WriteWrongly(session, how);
    });
    // A rank may hear of the other's error first.
    bool found = false;
    for (const absl::Status& status : statuses) {
      EXPECT_FALSE(status.ok()) << how;
      found = found || status.code() == code;
    }
    EXPECT_TRUE(found) << how;
    EXPECT_THAT(Messages(statuses), HasSubstr(message)) << how;
  }
}

TEST(WriteBackTest, NothingElseComesBetweenSummonAndWriteBack) {
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(session.Summon("h.0.w", true).status());
    for (const absl::Status& status :
         {session.Summon("h.1.w", true).status(), session.BeginStep({}).status(),
          session.Unshard(1, Phase::kEval).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()), HasSubstr("\"h.0\" was summoned with writeback"));
    }
    TESSERA_RETURN_IF_ERROR(WriteBack(session, {}));  // nothing has changed
    TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
    return session.Finish();
  };
  ExpectOk(RunRanks(ToyJob("slots"), 2, body));
}

TEST_P(ParametersTest, GroupsSetRateAndDecayOfWhatTheyMatch) {
  v1::JobSpec spec = job();
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_lr(0.5);
  spec.mutable_optimizer()->set_weight_decay(0.25);
  v1::ParameterGroup* biases = spec.mutable_optimizer()->add_groups();
  biases->set_pattern("h.*.b");
  biases->set_weight_decay(0.5);
  v1::ParameterGroup* head = spec.mutable_optimizer()->add_groups();
  head->set_pattern("head.*");  // the tied name of emb.weight
  head->set_lr(1);
  v1::ParameterGroup* first = spec.mutable_optimizer()->add_groups();
  first->set_pattern("h.0.**");
  first->set_lr_scale(0);
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.125).status());
    TESSERA_ASSIGN_OR_RETURN(const ToyValues end, ToySummonAll(session));
    for (const auto& [fqn, values] : start) {
      for (size_t i = 0; i < values.size(); ++i) {
        const double p = values[i];
        double g = 0;
        for (int rank = 0; rank < world_size() && fqn.back() != 'c'; ++rank)
          g += ToyGradient(values[i], rank, 1, static_cast<int64_t>(i)) / world_size();
        const bool root = fqn == "emb.weight";
        if (root) g *= 2;  // used twice
        const double decay = fqn.back() == 'b' ? 0.5 : fqn.back() == 'c' ? 0 : 0.25;
        // h.0.b is the biases', which come first.
        const double rate = root                                              ? 0.25
                            : absl::StartsWith(fqn, "h.0.") && fqn != "h.0.b" ? 0
                                                                              : 0.125;
        EXPECT_NEAR(end.at(fqn)[i], p - rate * (g + decay * p), 1e-6) << fqn << " " << i;
      }
    }
    return session.Finish();
  };
  ExpectOk(RunRanks(spec, world_size(), body));
}

// The averaged gradient of every element of ToyStep's first step, and every parameter.
void Elements(const ToyValues& start, int world_size, std::vector<double>* gradients,
              std::vector<double>* parameters) {
  for (const auto& [fqn, values] : start) {
    for (size_t i = 0; i < values.size(); ++i) {
      parameters->push_back(values[i]);
      if (fqn.back() == 'c') continue;
      double g = 0;
      for (int rank = 0; rank < world_size; ++rank)
        g += ToyGradient(values[i], rank, 1, static_cast<int64_t>(i)) / world_size;
      gradients->push_back(fqn == "emb.weight" ? 2 * g : g);
    }
  }
}

double Norm(const std::vector<double>& values, double p) {
  double sum = 0;
  for (const double value : values) {
    sum = p == kInfinity ? std::max(sum, std::abs(value)) : sum + std::pow(std::abs(value), p);
  }
  return p == kInfinity ? sum : std::pow(sum, 1 / p);
}

TEST_P(ParametersTest, NormsAreGlobalAndTheSameOnEveryRank) {
  std::vector<std::vector<double>> norms(world_size());
  std::vector<float> unmanaged = {100, -200};
  const auto body = [&](Session& session) -> absl::Status {
    const FlatTensor own = {unmanaged.data(), 2, v1::FLOAT32};
    std::vector<double> gradients, parameters;
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    Elements(start, world_size(), &gradients, &parameters);
    for (const double p : {1.0, 2.0, 3.5, kInfinity}) {
      TESSERA_ASSIGN_OR_RETURN(const double norm, ParameterNorm(session, p));
      EXPECT_NEAR(norm, Norm(parameters, p), 1e-9 * norm) << p;
    }
    TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
    for (const double p : {1.0, 2.0, 3.5, kInfinity}) {
      TESSERA_ASSIGN_OR_RETURN(const double norm, GradientNorm(session, p));
      EXPECT_NEAR(norm, Norm(gradients, p), 1e-6 * norm) << p;
      TESSERA_ASSIGN_OR_RETURN(const double more, GradientNorm(session, p, {&own, 1}));
      std::vector<double> all = gradients;
      all.insert(all.end(), {100, -200});
      EXPECT_NEAR(more, Norm(all, p), 1e-6 * more) << p;
      norms[session.rank()].push_back(norm);
      norms[session.rank()].push_back(more);
    }
    return session.Finish();
  };
  ExpectOk(RunRanks(job(), world_size(), body));
  for (const std::vector<double>& rank : norms) EXPECT_EQ(rank, norms[0]);
}

TEST(NormTest, WrongUseIsNamed) {
  const std::vector<std::pair<std::function<absl::Status(Session&)>, std::string>> cases = {
      {[](Session& session) { return GradientNorm(session).status(); }, "before the first step"},
      {[](Session& session) { return ParameterNorm(session, 0.5).status(); }, "give 1 or more"},
      {[](Session& session) { return ParameterNorm(session, 1 + session.rank()).status(); },
       "ParameterNorm with p 1 on rank 0 and 2 on rank 1"},
      {[](Session& session) {
         const auto step = session.BeginStep({});
         return step.ok() ? ParameterNorm(session).status() : step.status();
       },
       "ParameterNorm inside a step"},
  };
  for (const auto& [body, message] : cases)
    EXPECT_THAT(Messages(RunRanks(ToyJob("slots"), 2, body)), HasSubstr(message));
}

TEST_P(ParametersTest, ClipsByTheNormThatTheJobNames) {
  for (const auto& [type, p] :
       std::vector<std::pair<std::string, double>>{{"inf", kInfinity}, {"1", 1}, {"3", 3}}) {
    v1::JobSpec spec = job();
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_weight_decay(0);
    spec.mutable_optimizer()->set_clip_norm(0.25);
    spec.mutable_optimizer()->set_clip_norm_type(type);
    const auto body = [&, p = p](Session& session) -> absl::Status {
      std::vector<double> gradients, parameters;
      TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
      Elements(start, world_size(), &gradients, &parameters);
      TESSERA_ASSIGN_OR_RETURN(const StepResult result, ToyStep(session, 1));
      const double norm = Norm(gradients, p);
      EXPECT_NEAR(result.gradient_norm, norm, 1e-6 * norm);
      EXPECT_NEAR(result.clip_coefficient, 0.25 / norm, 1e-5 / norm);
      // With SGD at rate 1 each parameter moves by its clipped gradient.
      TESSERA_ASSIGN_OR_RETURN(const ToyValues end, ToySummonAll(session));
      std::vector<double> moved;
      for (const auto& [fqn, values] : start) {
        for (size_t i = 0; i < values.size(); ++i)
          moved.push_back(static_cast<double>(end.at(fqn)[i]) - values[i]);
      }
      EXPECT_NEAR(Norm(moved, p), 0.25, 1e-4);
      return session.Finish();
    };
    ExpectOk(RunRanks(spec, world_size(), body));
  }
}

}  // namespace
}  // namespace tessera
