// Bytes of ranks, hosts and phases for every strategy: semantics.md 6.1 and 6.2 with N = 160
// elements of float32 in units of 64, 64 and 32, Adam, and no padding within units.
#include "coordinator/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/json_message.h"
#include "coordinator/layout.h"
#include "coordinator/planning_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

v1::Forecast Forecast(const v1::Plan& plan, const std::string& mesh, int world_size,
                      const std::string& more = "", const ForecastOptions& options = {}) {
  const auto layout = MakeLayout(
      plan, TestJob(absl::StrCat(kTightSlots, ",\"mesh\":{", mesh, "}", more)), world_size);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? MakeForecast(plan, *layout, options) : v1::Forecast();
}

TEST(StrategyForecastTest, WhatARankHoldsAllTheTime) {
  // Mesh of four ranks -> parameters, gradients, Adam's state.
  const std::vector<std::tuple<std::string, int64_t>> cases = {
      {"", 4},
      {R"("strategy":"shard_grad_op")", 4},
      {R"("strategy":"hybrid_shard","local_world_size":2)", 2},
      {R"("strategy":"hybrid_shard_zero2","local_world_size":2)", 2},
      {R"("strategy":"no_shard")", 1},
      {R"("reshard_group":2)", 4},
  };
  for (const auto& [mesh, shards] : cases) {
    SCOPED_TRACE(mesh);
    const v1::Forecast forecast = Forecast(ThreeUnits(64, 64, 32), mesh, 4);
    for (const v1::RankForecast& rank : forecast.ranks()) {
      EXPECT_EQ(rank.parameter_bytes(), 4 * 160 / shards);
      EXPECT_EQ(rank.gradient_bytes(), 4 * 160 / shards);
      EXPECT_EQ(rank.optimizer_bytes(), 8 * 160 / shards);
      EXPECT_EQ(rank.undo_bytes(), 12 * 64 / shards);
    }
  }
}

TEST(StrategyForecastTest, OptimizersKeepWhatTheyNeed) {
  const auto optimizer = [](const std::string& json) {
    return Forecast(ThreeUnits(64, 64, 32), "", 4, absl::StrCat(R"(,"optimizer":)", json))
        .ranks(0)
        .optimizer_bytes();
  };
  EXPECT_EQ(optimizer(R"({"name":"adamw"})"), 320);
  EXPECT_EQ(optimizer(R"({"name":"adam"})"), 320);
  EXPECT_EQ(optimizer(R"({"name":"sgd"})"), 0);
  EXPECT_EQ(optimizer(R"({"name":"sgd","momentum":0.9})"), 160);
}

TEST(StrategyForecastTest, KeptGradientsAreInReduceDType) {
  v1::Plan plan = ThreeUnits(64, 64, 32);
  for (v1::Unit& unit : *plan.mutable_units()) unit.set_gradient_dtype(v1::BFLOAT16);
  EXPECT_EQ(Forecast(plan, "", 4).ranks(0).gradient_bytes(), 2 * 160 / 4);
}

TEST(StrategyForecastTest, HostsHoldUnitsOnceForEachShardGroup) {
  // Slots of 128, 256 and 256 bytes, unsharded and as gradients.
  const v1::Forecast one = Forecast(ThreeUnits(64, 64, 32), "", 4);
  ASSERT_EQ(one.hosts_size(), 1);
  EXPECT_EQ(one.hosts(0).unsharded_bytes(), 640);
  EXPECT_EQ(one.hosts(0).unsharded_gradient_bytes(), 4 * 640);
  EXPECT_EQ(one.hosts(0).shard_groups(), 1);
  const v1::Forecast none = Forecast(ThreeUnits(64, 64, 32), R"("strategy":"no_shard")", 4);
  EXPECT_EQ(none.hosts(0).unsharded_bytes(), 4 * 640);
  EXPECT_EQ(none.hosts(0).unsharded_file_bytes(), 4 * 4096);
  EXPECT_EQ(none.hosts(0).shard_groups(), 4);
  const v1::Forecast hybrid = Forecast(
      ThreeUnits(64, 64, 32), R"("strategy":"hybrid_shard","local_world_size":4,"replicas":4)", 8);
  ASSERT_EQ(hybrid.hosts_size(), 2);
  EXPECT_EQ(hybrid.hosts(1).unsharded_bytes(), 2 * 640);
  EXPECT_EQ(hybrid.hosts(1).ranks(), 4);
  // All of every unit, from forward to backward.
  const v1::Forecast whole = Forecast(ThreeUnits(64, 64, 32), R"("strategy":"shard_grad_op")", 4);
  EXPECT_EQ(whole.hosts(0).unsharded_bytes(), 4 * 160);
  // A half of "a" and of "b" on each of four ranks.
  const v1::Forecast reshard = Forecast(ThreeUnits(64, 64, 32), R"("reshard_group":2)", 4);
  EXPECT_EQ(reshard.hosts(0).resharded_bytes(), 4 * 2 * 128);
  EXPECT_EQ(reshard.hosts(0).shared_total_bytes(),
            640 + 4 * 640 + 4 * 256 + reshard.hosts(0).control_bytes());
}

TEST(StrategyForecastTest, GpusHoldThemThemselves) {
  const v1::Forecast forecast =
      Forecast(ThreeUnits(64, 64, 32), R"("reshard_group":2)", 4, R"(,"device":"cuda")");
  const v1::GpuForecast& gpu = forecast.ranks(3).gpu();
  EXPECT_EQ(gpu.unsharded_bytes(), 640);
  EXPECT_EQ(gpu.unsharded_gradient_bytes(), 640);
  EXPECT_EQ(gpu.resharded_bytes(), 256);
  EXPECT_EQ(gpu.total_bytes(), 640 + 640 + 256);
  EXPECT_EQ(gpu.allocated_bytes(), 2 * 4096);
  EXPECT_EQ(forecast.hosts(0).resharded_bytes(), 0);
}

// "PHASE UNIT unsharded gradients resharded staging" without what a rank holds all the time.
std::vector<std::string> Phases(const v1::Forecast& forecast) {
  std::vector<std::string> lines;
  for (const v1::PhaseForecast& phase : forecast.phases()) {
    lines.push_back(absl::StrCat(v1::PhaseForecast::Phase_Name(phase.phase()), " ",
                                 phase.unit_fqn(), " ", phase.unsharded_bytes(), " ",
                                 phase.unsharded_gradient_bytes(), " ", phase.resharded_bytes(),
                                 " ", phase.staging_bytes()));
  }
  return lines;
}

TEST(PhaseForecastTest, FullShard) {
  // Root, unit and the next; their gradients; while "b" is reduced "a" is at work and has no next.
  EXPECT_THAT(Phases(Forecast(ThreeUnits(64, 64, 32), "", 4)),
              ElementsAre("RESTING  0 0 0 0", "FORWARD a 640 0 0 0", "BACKWARD b 640 384 0 0",
                          "REDUCTION b 384 640 0 0", "PEAK b 640 384 0 0"));
}

TEST(PhaseForecastTest, WithoutPrefetch) {
  v1::JobSpec job = TestJob(kTightSlots);
  job.mutable_memory()->set_prefetch(0);
  const v1::Plan plan = ThreeUnits(64, 64, 32);
  EXPECT_THAT(Phases(MakeForecast(plan, *MakeLayout(plan, job, 4), {})),
              ElementsAre("RESTING  0 0 0 0", "FORWARD a 384 0 0 0", "BACKWARD b 384 384 0 0",
                          "REDUCTION b 384 640 0 0", "PEAK b 384 640 0 0"));
}

TEST(PhaseForecastTest, ShardGradOpIsWholeAtTheEndOfTheForward) {
  EXPECT_THAT(Phases(Forecast(ThreeUnits(64, 64, 32), R"("strategy":"shard_grad_op")", 4)),
              ElementsAre("RESTING  0 0 0 0", "FORWARD a 640 0 0 0", "BACKWARD b 640 384 0 0",
                          "REDUCTION b 384 640 0 0", "PEAK b 640 384 0 0"));
}

TEST(PhaseForecastTest, ReshardGroupsAddTheirParts) {
  EXPECT_THAT(Phases(Forecast(ThreeUnits(64, 64, 32), R"("reshard_group":2)", 4)),
              ElementsAre("RESTING  0 0 0 0", "FORWARD a 640 0 128 0", "BACKWARD b 640 384 256 0",
                          "REDUCTION b 384 640 128 0", "PEAK b 640 384 256 0"));
}

TEST(PhaseForecastTest, ReductionInAnotherDTypeIsStagedOnAGpu) {
  v1::Plan plan = ThreeUnits(64, 64, 32);
  for (v1::Unit& unit : *plan.mutable_units()) unit.set_param_dtype(v1::BFLOAT16);
  EXPECT_THAT(Phases(Forecast(plan, "", 4, R"(,"device":"cuda")")),
              ElementsAre("RESTING  0 0 0 0", "FORWARD a 320 0 0 0", "BACKWARD b 320 192 0 0",
                          "REDUCTION b 192 320 0 256", "PEAK b 192 320 0 256"));
}

TEST(PhaseForecastTest, ResidentUnitsAreAlwaysWhole) {
  const v1::Plan plan = ThreeUnits(64, 64, 32);
  v1::JobSpec job = TestJob(kTightSlots);
  job.mutable_memory()->set_unshard("resident");
  const v1::Forecast forecast = MakeForecast(plan, *MakeLayout(plan, job, 4), {});
  for (const v1::PhaseForecast& phase : forecast.phases()) EXPECT_EQ(phase.unsharded_bytes(), 640);
}

TEST(PhaseForecastTest, SumsOfRankAndHost) {
  ForecastOptions options;
  options.activations.certainty = v1::Forecast::ESTIMATED;
  options.activations.kept = {1'000, 2'000, 4'000};
  options.activations.constant = 10;
  options.activations.total = 7'010;
  options.unmanaged = {.parameters = 100, .gradients = 40};
  const v1::Forecast forecast = Forecast(ThreeUnits(64, 64, 32), R"("replicas":2)", 4, "", options);
  const int64_t lasting = forecast.ranks(0).private_total_bytes() + 140;
  const v1::PhaseForecast& resting = forecast.phases(0);
  EXPECT_EQ(resting.activation_bytes(), 10);
  EXPECT_EQ(resting.rank_bytes(), lasting + 10);
  const v1::PhaseForecast& forward = forecast.phases(1);
  // The end of the forward, where the activations are.
  EXPECT_EQ(forward.unit_fqn(), "");
  EXPECT_EQ(forward.activation_bytes(), 7'010);
  EXPECT_EQ(forward.rank_bytes(), lasting + 7'010 + 128);
  // Four ranks in two shard groups.
  EXPECT_EQ(forward.host_bytes(), 4 * (lasting + 7'010) + 2 * 128);
  EXPECT_EQ(forecast.activation_bytes(), 7'010);
  EXPECT_EQ(forecast.ranks(2).unmanaged_bytes(), 100);
  EXPECT_EQ(forecast.ranks(2).unmanaged_gradient_bytes(), 40);
}

TEST(ForecastTest, TrafficOfAllRanks) {
  const v1::Forecast forecast =
      Forecast(ThreeUnits(64, 64, 32), R"("strategy":"hybrid_shard","local_world_size":2)", 4);
  EXPECT_EQ(forecast.wire_bytes_per_step(), 896 + 320);
  EXPECT_EQ(forecast.intra_host_wire_bytes_per_step(), 4 * 896);
  EXPECT_EQ(forecast.inter_host_wire_bytes_per_step(), 4 * 320);
  EXPECT_EQ(forecast.ranks(3).intra_host_wire_bytes_per_step(), 896);
  EXPECT_EQ(forecast.ranks(3).inter_host_wire_bytes_per_step(), 320);
  EXPECT_EQ(forecast.largest_message_bytes(), 256);
  EXPECT_EQ(forecast.largest_message_unit(), "a");
  EXPECT_EQ(forecast.collectives_per_step(), 5 + 3 + 3);
}

TEST(ForecastTest, APlanWithoutUnits) {
  const v1::Forecast forecast = Forecast(v1::Plan(), "", 4);
  EXPECT_EQ(forecast.ranks_size(), 4);
  EXPECT_EQ(forecast.ranks(0).parameter_bytes(), 0);
  EXPECT_EQ(forecast.wire_bytes_per_step(), 0);
  EXPECT_EQ(forecast.phases_size(), 2);  // resting and the peak, which is the same
  EXPECT_EQ(forecast.phases(1).rank_bytes(), forecast.phases(0).rank_bytes());
}

TEST(ForecastTest, CheckpointsHaveNoPadding) {
  v1::Plan plan = ThreeUnits(30, 40, 3);
  v1::UnitBuffer* buffer = plan.mutable_units(2)->add_buffers();
  buffer->add_shape(7);
  buffer->add_shape(2);
  buffer->set_original_dtype(v1::FLOAT32);
  buffer->set_buffer_dtype(v1::BFLOAT16);
  const v1::Forecast forecast = Forecast(plan, "", 4);
  EXPECT_EQ(forecast.export_bytes(), 73 * 4 + 14 * 4);
  EXPECT_EQ(forecast.checkpoint_bytes(), 73 * 12 + 14 * 4);
  EXPECT_EQ(forecast.ranks(0).buffer_bytes(), 28);
  EXPECT_EQ(Forecast(plan, R"("strategy":"no_shard")", 4).checkpoint_bytes(),
            forecast.checkpoint_bytes());
}

TEST(ForecastTest, WhatIsInNoUnitIsWholeOnEveryRank) {
  v1::ModelSpec model;
  ASSERT_TRUE(ParseJson(R"({"root":{"class_name":"M",
      "parameters":[{"name":"w","shape":[10],"dtype":"float32"},
                    {"name":"f","shape":[6],"dtype":"bf16","requires_grad":false}],
      "children":[{"name":"c","class_name":"C","parameters":[{"name":"v","shape":[3],"dtype":"float32"}]},
                  {"name":"cc","class_name":"C","parameters":[{"name":"v","shape":[100],"dtype":"float32"}]}]}})",
                        "m.json", "a ModelSpec", &model)
                  .ok());
  v1::Plan plan;
  EXPECT_EQ(UnmanagedOf(plan, model).parameters, 0);
  plan.add_orphans("w");
  plan.add_ignored("f");
  plan.add_ignored("c");  // a module
  const UnmanagedBytes bytes = UnmanagedOf(plan, model);
  EXPECT_EQ(bytes.parameters, 40 + 12 + 12);
  EXPECT_EQ(bytes.gradients, 40 + 12);
  plan.add_ignored("");
  EXPECT_EQ(UnmanagedOf(plan, model).parameters, 64 + 400);
}

TEST(NeededBytesTest, IsWhatAHostMapsOrAGpuAllocates) {
  const v1::Plan plan = ThreeUnits(64, 64, 32);
  ForecastOptions options;
  options.activations.total = 1'000;
  options.unmanaged = {.parameters = 100, .gradients = 40};
  v1::JobSpec job = TestJob(absl::StrCat(kTightSlots, R"(,"mesh":{"local_world_size":2})"));
  const v1::Layout layout = *MakeLayout(plan, job, 4);
  const v1::Forecast forecast = MakeForecast(plan, layout, options);
  EXPECT_EQ(
      NeededBytes(plan, layout, options),
      forecast.hosts(0).mapped_bytes() + 2 * forecast.ranks(0).mapped_bytes() + 2 * (1'000 + 140));
  job.set_device("cuda");
  EXPECT_EQ(NeededBytes(plan, *MakeLayout(plan, job, 4), options), 2 * 4096 + 1'140);
}

}  // namespace
}  // namespace tessera
