// mixed_precision.full_precision_eval: a unit is in the model's dtype while it is evaluated, and in
// its own again when it trains.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/precision_model.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr float kGradient = 0x1p-9;
constexpr float kTrained = 1 - 0x1p-10;  // 1 in bfloat16

v1::JobSpec Job(const std::string& strategy, int replicas, int reshard_group) {
  v1::JobSpec job =
      PrecisionJob({.original = "float32", .param = "bfloat16", .reduce = "float32"}, "auto");
  job.mutable_mixed_precision()->set_full_precision_eval(true);
  job.mutable_mesh()->set_strategy(strategy);
  job.mutable_mesh()->set_replicas(replicas);
  job.mutable_mesh()->set_reshard_group(reshard_group);
  return job;
}

// Every element of every parameter of the unit must be `master`, or 1 where that is rounded.
absl::Status ExpectValues(Session& session, int unit, Phase phase, float master) {
  const v1::Unit& planned = session.plan().units(unit);
  const bool full = phase == Phase::kEval || planned.param_dtype() == v1::FLOAT32;
  TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, phase));
  for (const v1::UnitParameter& parameter : planned.parameters()) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(parameter.fqn()));
    EXPECT_EQ(view.dtype, full ? v1::FLOAT32 : v1::BFLOAT16) << parameter.fqn();
    std::vector<float> values(view.numel);
    CastElements(view.data, view.dtype, view.numel, v1::FLOAT32, values.data());
    for (const float element : values) EXPECT_EQ(element, full ? master : 1.0f);
  }
  return absl::OkStatus();
}

absl::Status Reduce(Session& session, int unit) {
  for (const v1::UnitParameter& parameter : session.plan().units(unit).parameters()) {
    TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(unit, parameter.fqn()));
    const std::vector<float> values(slot.view.numel, kGradient);
    CastElements(values.data(), v1::FLOAT32, slot.view.numel, slot.view.dtype, slot.view.data);
  }
  return session.Reduce(unit);
}

// The first step changes the parameters, from 1 to kTrained.
absl::Status TrainAndEvaluate(Session& session) {
  const int units = session.plan().units_size();
  for (int step = 0; step < 3; ++step) {
    const float master = step == 0 ? 1 : kTrained;
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({.gradients = false}));
    for (int unit = 0; unit < units; ++unit)
      TESSERA_RETURN_IF_ERROR(ExpectValues(session, unit, Phase::kEval, master));
    TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = step == 0 ? 0.5 : 0.0}).status());
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    for (const Phase phase : {Phase::kForward, Phase::kEval, Phase::kBackward}) {
      for (int unit = 0; unit < units; ++unit)
        TESSERA_RETURN_IF_ERROR(ExpectValues(session, unit, phase, master));
    }
    for (int unit = 0; unit < units; ++unit) TESSERA_RETURN_IF_ERROR(Reduce(session, unit));
    TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
  }
  return session.Finish();
}

TEST(FullPrecisionEvalTest, UnitsAreInTheModelsDTypeWhileTheyAreEvaluated) {
  const struct {
    std::string strategy;
    int world_size, replicas, reshard_group;
  } meshes[] = {{"full_shard", 1, 1, 0},    {"full_shard", 3, 1, 0}, {"full_shard", 4, 1, 2},
                {"shard_grad_op", 2, 1, 0}, {"no_shard", 2, 1, 0},   {"hybrid_shard", 4, 2, 0}};
  for (const auto& mesh : meshes) {
    SCOPED_TRACE(absl::StrCat(mesh.strategy, " ", mesh.world_size, " ", mesh.reshard_group));
    v1::JobSpec job = Job(mesh.strategy, mesh.replicas, mesh.reshard_group);
    job.mutable_mesh()->set_min_workers(mesh.world_size);
    job.mutable_mesh()->set_max_workers(mesh.world_size);
    auto ranks = ThreadRanks::Create(job, mesh.world_size, {});
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    EXPECT_EQ((*ranks)->plan().layout.unshard_mode(), v1::SLOTS);
    for (const absl::Status& status : (*ranks)->Run(TrainAndEvaluate))
      EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(FullPrecisionEvalTest, AUnitIsNotInTwoDTypesAtOnce) {
  const auto statuses =
      (*ThreadRanks::Create(Job("full_shard", 1, 0), 2, {}))
          ->Run([](Session& session) -> absl::Status {
            TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
            TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(0, Phase::kForward));
            return session.Unshard(0, Phase::kEval).status();
          });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("unit h.0 is in use in bfloat16"));
  }
}

}  // namespace
}  // namespace tessera
