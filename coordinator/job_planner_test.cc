#include "coordinator/job_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Job(const std::string& more = "") {
  auto spec = ParseJobSpec(absl::StrCat(R"({"name":"j")", more, "}"), "job.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto resolved = ResolveJobSpec(*std::move(spec));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? *resolved : v1::JobSpec();
}

JobPlan Planned(const v1::JobSpec& job, int world_size) {
  auto planned = PlanJob(job, world_size);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.ok() ? *std::move(planned) : JobPlan();
}

constexpr char kSlots[] = R"(,"memory":{"unshard":"slots"})";

// The job file of the first five minutes: four blocks of 198,272 elements and a root of 41,216, all
// cut in two.
TEST(JobPlannerTest, DefaultJobByHand) {
  const JobPlan planned = Planned(Job(kSlots), 2);
  ASSERT_EQ(planned.plan.units_size(), 5);
  EXPECT_EQ(planned.layout.units(0).shard_numel(), 99'136);
  EXPECT_EQ(planned.layout.units(4).shard_numel(), 20'608);
  EXPECT_EQ(planned.layout.unsharded_slots_size(), 3);
  EXPECT_EQ(planned.layout.gradient_slots_size(), 3);
  EXPECT_EQ(planned.layout.gradient_stride_bytes(), 1'753'088);

  ASSERT_EQ(planned.forecast.ranks_size(), 2);
  const v1::RankForecast& rank = planned.forecast.ranks(1);
  EXPECT_EQ(rank.rank(), 1);
  EXPECT_EQ(rank.parameter_bytes(), 1'668'608);
  EXPECT_EQ(rank.gradient_bytes(), 1'668'608);
  EXPECT_EQ(rank.optimizer_bytes(), 3'337'216);
  EXPECT_EQ(rank.undo_bytes(), 1'189'632);
  EXPECT_EQ(rank.record_bytes(), 4'160);
  EXPECT_EQ(rank.padding_bytes(), 0);
  EXPECT_EQ(rank.private_total_bytes(), 7'868'224);
  EXPECT_EQ(rank.mapped_bytes(), 7'868'416);

  ASSERT_EQ(planned.forecast.hosts_size(), 1);
  const v1::HostForecast& host = planned.forecast.hosts(0);
  EXPECT_EQ(host.unsharded_bytes(), 1'751'040);
  EXPECT_EQ(host.unsharded_gradient_bytes(), 3'502'080);
  EXPECT_EQ(host.staging_bytes(), 0);
  EXPECT_EQ(host.control_bytes(), 12'288);
  EXPECT_EQ(host.shared_total_bytes(), 5'265'408);
  EXPECT_EQ(host.mapped_bytes(), 1'753'088 + 2 * 1'753'088 + 12'288);

  EXPECT_EQ(planned.forecast.activation_bytes(), 34'658'304);  // gpt_activations_test.cc
  EXPECT_EQ(planned.forecast.activation_certainty(), v1::Forecast::EXACT);
  EXPECT_FALSE(planned.forecast.has_fits());
  EXPECT_FALSE(planned.forecast.has_fit());
  // Half of each block three times, half of the root twice, in float32.
  EXPECT_EQ(planned.forecast.wire_bytes_per_step(), 4 * 99'136 * 12 + 20'608 * 8);
}

TEST(JobPlannerTest, AutoTakesResidentAndSaysWhy) {
  const JobPlan planned = Planned(Job(), 2);
  EXPECT_EQ(planned.layout.unshard_mode(), v1::RESIDENT);
  EXPECT_EQ(planned.layout.unsharded_slots_size(), 5);
  const v1::RankForecast& rank = planned.forecast.ranks(0);
  EXPECT_EQ(rank.parameter_bytes(), 0);  // the master is the resident slice
  EXPECT_EQ(rank.private_total_bytes(), 4'160 + 1'668'608 + 3'337'216 + 1'189'632);
  EXPECT_EQ(rank.mapped_bytes(), 6'201'344);
  const v1::HostForecast& host = planned.forecast.hosts(0);
  EXPECT_EQ(host.unsharded_bytes(), 3'337'216);
  EXPECT_EQ(host.shared_total_bytes(), 3'337'216 + 3'502'080 + 12'288);
  EXPECT_EQ(host.mapped_bytes(), 6'856'704);
  ASSERT_EQ(planned.layout.notes_size(), 1);
  // Two ranks of 6,201,344 or 7,868,416 bytes and the host's 6,856,704 or 5,271,552.
  EXPECT_THAT(planned.layout.notes(0),
              HasSubstr("the host maps 19259392 bytes; slots would map 21008384."));
}

constexpr char kCudaBFloat16[] =
    R"(,"device":"cuda","mixed_precision":{"param_dtype":"bf16","reduce_dtype":"fp32"})";

// The same units with two bytes an element: a slot of 82,432 bytes for the root and two of 396,544.
TEST(JobPlannerTest, GpuJobByHand) {
  const JobPlan planned = Planned(Job(kCudaBFloat16), 2);
  EXPECT_EQ(planned.layout.device(), v1::CUDA);
  EXPECT_EQ(planned.layout.staging_bytes(), 198'272 * 4);
  const v1::RankForecast& rank = planned.forecast.ranks(1);
  EXPECT_EQ(rank.parameter_bytes(), 1'668'608);
  EXPECT_EQ(rank.mapped_bytes(), 7'868'416);
  EXPECT_EQ(rank.gpu().unsharded_bytes(), 875'520);
  EXPECT_EQ(rank.gpu().unsharded_gradient_bytes(), 875'520);
  EXPECT_EQ(rank.gpu().staging_bytes(), 793'088);
  EXPECT_EQ(rank.gpu().total_bytes(), 2'544'128);
  EXPECT_EQ(rank.gpu().allocated_bytes(), 876'544 + 876'544 + 794'624);
  const v1::HostForecast& host = planned.forecast.hosts(0);
  EXPECT_EQ(host.unsharded_bytes(), 0);
  EXPECT_EQ(host.unsharded_gradient_bytes(), 0);
  EXPECT_EQ(host.staging_bytes(), 0);
  EXPECT_EQ(host.unsharded_file_bytes(), 0);
  EXPECT_EQ(host.gradient_file_bytes(), 0);
  EXPECT_EQ(host.mapped_bytes(), 12'288);
  EXPECT_EQ(host.shared_total_bytes(), 12'288);
  ASSERT_EQ(planned.layout.notes_size(), 1);
  EXPECT_EQ(planned.layout.notes(0), "memory.unshard auto took slots, since GPUs share no memory.");
  EXPECT_FALSE(Planned(Job(), 2).forecast.ranks(0).has_gpu());
}

TEST(JobPlannerTest, OneRankSendsNothing) {
  EXPECT_EQ(Planned(Job(), 1).forecast.wire_bytes_per_step(), 0);
}

TEST(JobPlannerTest, EveryMicroBatchTravels) {
  EXPECT_EQ(Planned(Job(R"(,"micro_batches":3)"), 2).forecast.wire_bytes_per_step(),
            3 * Planned(Job(), 2).forecast.wire_bytes_per_step());
}

TEST(JobPlannerTest, AccumulationReducesOnceAndKeepsEveryUnitsGradients) {
  const JobPlan planned =
      Planned(Job(R"(,"micro_batches":3,"memory":{"accumulate_unsynchronized":true})"), 2);
  // All gathers of three micro-batches, one reduction.
  EXPECT_EQ(planned.forecast.wire_bytes_per_step(),
            4 * 99'136 * (3 * 8 + 4) + 20'608 * (3 * 4 + 4));
  // Of each rank as much as all units unsharded, in slots of 128 bytes' alignment.
  const v1::HostForecast& host = planned.forecast.hosts(0);
  EXPECT_EQ(planned.layout.gradient_slots_size(), 5);
  EXPECT_EQ(host.unsharded_gradient_bytes(), 2 * 3'337'216);
  EXPECT_EQ(host.gradient_file_bytes(), 2 * 3'338'240);
  // Of each rank: 4,096 fixed, and 16 bytes for each of 10 slots; 4,096 for the host.
  EXPECT_EQ(host.control_bytes(), 12'288);
}

TEST(JobPlannerTest, PlanDoesNotKnowTheWorldSize) {
  const JobPlan two = Planned(Job(), 2);
  const JobPlan three = Planned(Job(), 3);
  EXPECT_EQ(two.plan.DebugString(), three.plan.DebugString());
  EXPECT_NE(two.layout.layout_fingerprint(), three.layout.layout_fingerprint());
}

TEST(ForecastTest, DealsRanksOutToHosts) {
  const v1::Forecast forecast = Planned(Job(R"(,"mesh":{"local_world_size":2})"), 5).forecast;
  ASSERT_EQ(forecast.hosts_size(), 3);
  EXPECT_EQ(forecast.hosts(2).host(), 2);
  EXPECT_EQ(forecast.hosts(0).ranks(), 2);
  EXPECT_EQ(forecast.hosts(2).ranks(), 1);
  EXPECT_EQ(forecast.hosts(0).unsharded_gradient_bytes(),
            2 * forecast.hosts(2).unsharded_gradient_bytes());
  EXPECT_EQ(forecast.hosts(0).unsharded_bytes(), forecast.hosts(2).unsharded_bytes());
  EXPECT_EQ(forecast.hosts(0).control_bytes(), 12'288);
  EXPECT_EQ(forecast.hosts(2).control_bytes(), 8'192);
}

TEST(ForecastTest, CountsWhatAlignmentCosts) {
  v1::JobSpec job = Job(
      R"(,"wrap":{"policy":"none","param_align_bytes":0,"shard_align_bytes":0},"memory":{"unshard":"slots"},"model":{"spec":
      {"root":{"parameters":[{"name":"w","shape":[5],"dtype":"float32"}]}}})");
  const v1::Forecast forecast = Planned(job, 1).forecast;
  // 20 bytes of parameters at 4,160, gradients at 4,224, 40 of state at 4,288, 60 of undo at 4,352.
  EXPECT_EQ(forecast.ranks(0).private_total_bytes(), 4'412);
  EXPECT_EQ(forecast.ranks(0).padding_bytes(), 44 + 44 + 24);
}

TEST(ForecastTest, FrozenUnitsAreNotReduced) {
  const auto wire = [](const std::string& grad) {
    return Planned(
               Job(absl::StrCat(R"(,"wrap":{"policy":"none"},"model":{"spec":{"root":{"parameters":[
        {"name":"w","shape":[64],"dtype":"float32","requires_grad":)",
                                grad, "}]}}}")),
               2)
        .forecast.wire_bytes_per_step();
  };
  EXPECT_EQ(wire("true"), 32 * 8);
  EXPECT_EQ(wire("false"), 32 * 4);
}

TEST(ForecastTest, MixedPrecisionTravelsInItsDTypes) {
  const JobPlan planned =
      Planned(Job(absl::StrCat(
                  kSlots, R"(,"mixed_precision":{"param_dtype":"bf16","reduce_dtype":"fp32"})")),
              2);
  // bfloat16 twice and float32 once for blocks; once and once for the root.
  EXPECT_EQ(planned.forecast.wire_bytes_per_step(), 4 * 99'136 * 8 + 20'608 * 6);
  EXPECT_EQ(planned.forecast.hosts(0).unsharded_bytes(), 1'751'040 / 2);
}

TEST(JobPlannerTest, RefusesWhatCannotBePlanned) {
  EXPECT_EQ(Field(PlanJob(Job(), 0).status()), "world_size");
  EXPECT_EQ(Field(PlanJob(Job(R"(,"wrap":{"wrap_classes":["Blok"]})"), 2).status()),
            "wrap.wrap_classes");
  EXPECT_EQ(
      Field(PlanJob(Job(R"(,"wrap":{"policy":"none"},"model":{"file":"m.json"})"), 2).status()),
      "model.file");
}

TEST(ChooseWorldSizeTest, LargestThatDividesTheBatch) {
  const v1::JobSpec job = Job(R"(,"global_batch":24,"mesh":{"min_workers":2,"max_workers":8})");
  EXPECT_EQ(ChooseWorldSize(job, 100), 8);
  EXPECT_EQ(ChooseWorldSize(job, 8), 8);
  EXPECT_EQ(ChooseWorldSize(job, 7), 6);
  EXPECT_EQ(ChooseWorldSize(job, 5), 4);
  EXPECT_EQ(ChooseWorldSize(job, 3), 3);
  EXPECT_EQ(ChooseWorldSize(job, 2), 2);
  EXPECT_EQ(ChooseWorldSize(job, 1), 0);
  EXPECT_EQ(ChooseWorldSize(job, 0), 0);
  EXPECT_EQ(ChooseWorldSize(job, -1), 0);
  const v1::JobSpec micro =
      Job(R"(,"global_batch":24,"micro_batches":3,"mesh":{"min_workers":2,"max_workers":8})");
  EXPECT_EQ(ChooseWorldSize(micro, 7), 4);
}

TEST(CheckRunnableTest, TheDefaultJobRuns) {
  EXPECT_TRUE(CheckRunnable(Job(), Planned(Job(), 2).plan).ok());
  const v1::JobSpec explicit_fp32 = Job(R"(,"mixed_precision":{"param_dtype":"fp32"})");
  EXPECT_TRUE(CheckRunnable(explicit_fp32, Planned(explicit_fp32, 2).plan).ok());
}

TEST(CheckRunnableTest, AttachedProgramsTrainAnyModel) {
  const v1::JobSpec own = Job(
      R"(,"workload":"attached","wrap":{"policy":"none"},"model":{"spec":{"root":{"parameters":[
      {"name":"w","shape":[8],"dtype":"float32"}]}}})");
  EXPECT_TRUE(CheckRunnable(own, Planned(own, 2).plan).ok());
  const v1::JobSpec builtin = Job(R"(,"workload":"attached")");
  EXPECT_TRUE(CheckRunnable(builtin, Planned(builtin, 2).plan).ok());
}

TEST(CheckRunnableTest, NamesWhatComesLater) {
  const std::string spec =
      R"(,"wrap":{"policy":"none"},"model":{"spec":{"root":{"parameters":[{"name":"w","shape":[8],"dtype":"float32"}]}}})";
  std::vector<std::tuple<v1::JobSpec, std::string, std::string>> cases = {
      {Job(R"(,"device":"cuda")"), "device", "the workload gpt computes on the CPU"},
      {Job(R"(,"workload":"replay","device":"cuda")"), "device", "the workload replay computes"},
      {Job(R"(,"mixed_precision":{"param_dtype":"fp64"})"), "mixed_precision.param_dtype",
       "is float64, and the workload gpt computes in float32"},
      {Job(spec), "model", "drop spec and file"},
  };
  // What ResolveJobSpec refuses already.
  v1::JobSpec job = Job();
  job.set_workload("dreams");
  cases.emplace_back(job, "workload", "use gpt, replay or attached");
  for (auto& [resolved, field, because] : cases) {
    v1::JobSpec plannable = Job(field == "model" ? spec : "");
    *plannable.mutable_mixed_precision() = resolved.mixed_precision();
    const absl::Status status = CheckRunnable(resolved, Planned(plannable, 2).plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(Field(status), field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(because));
  }
}

}  // namespace
}  // namespace tessera
