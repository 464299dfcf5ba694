#include "client/plan_table.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "client/text_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two equal blocks of 124 elements and an empty root, in bf16 on two ranks.
v1::Plan SmallPlan() {
  v1::Plan plan;
  plan.set_plan_fingerprint("0123456789abcdef");
  plan.set_model_name("two-layer");
  for (const char* fqn : {"h.0", "h.1"}) {
    v1::Unit* unit = plan.add_units();
    unit->set_fqn(fqn);
    unit->set_class_name("Block");
    unit->set_numel(124);
    unit->set_original_dtype(v1::FLOAT32);
    unit->set_param_dtype(v1::BFLOAT16);
    unit->set_reduce_dtype(v1::FLOAT32);
  }
  v1::Unit* root = plan.add_units();
  root->set_class_name("Sequential");
  root->set_original_dtype(v1::FLOAT32);
  root->set_param_dtype(v1::FLOAT32);
  root->set_reduce_dtype(v1::FLOAT32);
  plan.add_notes("the root has no parameters of its own");
  return plan;
}

v1::Layout SmallLayout() {
  v1::Layout layout;
  layout.set_layout_fingerprint("fedcba9876543210");
  layout.set_world_size(2);
  layout.set_sharding_strategy(v1::FULL_SHARD);
  layout.set_unshard_mode(v1::SLOTS);
  for (int i = 0; i < 2; ++i) {
    v1::UnitLayout* unit = layout.add_units();
    unit->set_padded_numel(128);
    unit->set_shard_numel(64);
  }
  layout.add_units();
  return layout;
}

TEST(PlanTableTest, FoldsEqualUnitsAndRanks) {
  v1::Forecast forecast;
  for (int i = 0; i < 2; ++i) {
    v1::RankForecast* rank = forecast.add_ranks();
    rank->set_rank(i);
    rank->set_parameter_bytes(512);
    rank->set_gradient_bytes(512);
    rank->set_optimizer_bytes(1024);
    rank->set_undo_bytes(768);
    rank->set_private_total_bytes(6976);
    rank->set_mapped_bytes(8192);
  }
  v1::HostForecast* host = forecast.add_hosts();
  host->set_unsharded_bytes(512);
  host->set_unsharded_gradient_bytes(1024);
  host->set_control_bytes(12288);
  host->set_shared_total_bytes(13824);
  host->set_mapped_bytes(20480);
  forecast.set_activation_certainty(v1::Forecast::UNKNOWN);
  forecast.set_wire_bytes_per_step(1536);
  EXPECT_EQ(PlanTable(SmallPlan(), SmallLayout(), forecast),
            "model two-layer, 3 units, world size 2, full_shard, unshard slots\n"
            "plan 0123456789ab, layout fedcba987654\n"
            "\n"
            "Elements of each unit, and bytes of a shard and of the whole\n"
            "UNIT      CLASS       NUMEL  PARAM     REDUCE   SHARDED  UNSHARDED\n"
            "h.0-1 x2  Block         124  bfloat16  float32      256        256\n"
            "(root)    Sequential      0  float32   float32        0          0\n"
            "\n"
            "Bytes of a rank's own memory\n"
            "RANK    PARAMETERS  GRADIENTS  OPTIMIZER  UNDO  TOTAL  MAPPED\n"
            "0-1 x2         512        512      1,024   768  6,976   8,192\n"
            "\n"
            "Bytes that the ranks of a host share\n"
            "HOST  UNSHARDED  GRADIENTS  STAGING  CONTROL   TOTAL  MAPPED\n"
            "0           512      1,024        0   12,288  13,824  20,480\n"
            "\n"
            "activations  unknown\n"
            "on a wire    1,536 bytes a rank and step\n"
            "note: the root has no parameters of its own\n");
}

// Stacks of layers with a name, class and figures of their own, and a root.
void AddUnit(const std::string& fqn, const std::string& class_name, int64_t numel,
             v1::DType param_dtype, v1::Plan* plan, v1::Layout* layout) {
  v1::Unit* unit = plan->add_units();
  unit->set_fqn(fqn);
  unit->set_class_name(class_name);
  unit->set_numel(numel);
  unit->set_original_dtype(v1::FLOAT32);
  unit->set_param_dtype(param_dtype);
  unit->set_reduce_dtype(v1::FLOAT32);
  v1::UnitLayout* placed = layout->add_units();
  placed->set_shard_numel((numel + 15) / 16);
  placed->set_padded_numel((numel + 15) / 16 * 16);
}

v1::Forecast LargeForecast(int64_t bytes) {
  v1::Forecast forecast;
  for (int i = 0; i < 16; ++i) {
    v1::RankForecast* rank = forecast.add_ranks();
    rank->set_rank(i);
    for (const auto set :
         {&v1::RankForecast::set_parameter_bytes, &v1::RankForecast::set_gradient_bytes,
          &v1::RankForecast::set_optimizer_bytes, &v1::RankForecast::set_undo_bytes,
          &v1::RankForecast::set_private_total_bytes, &v1::RankForecast::set_mapped_bytes}) {
      (rank->*set)(bytes);
    }
  }
  for (int i = 0; i < 2; ++i) {
    v1::HostForecast* host = forecast.add_hosts();
    host->set_host(i);
    for (const auto set :
         {&v1::HostForecast::set_unsharded_bytes, &v1::HostForecast::set_unsharded_gradient_bytes,
          &v1::HostForecast::set_staging_bytes, &v1::HostForecast::set_control_bytes,
          &v1::HostForecast::set_shared_total_bytes, &v1::HostForecast::set_mapped_bytes}) {
      (host->*set)(bytes);
    }
  }
  forecast.set_wire_bytes_per_step(bytes);
  return forecast;
}

TEST(PlanTableTest, AThousandUnitsAreAFewRows) {
  v1::Plan plan;
  v1::Layout layout;
  for (int i = 0; i < 500; ++i) {
    AddUnit(absl::StrCat("decoder.", i, ".mlp"), "Mlp", 1'000'000, v1::BFLOAT16, &plan, &layout);
    AddUnit(absl::StrCat("decoder.", i), "Block", 2'000'000, v1::BFLOAT16, &plan, &layout);
  }
  AddUnit("", "Model", 3'000, v1::BFLOAT16, &plan, &layout);
  const std::string table = PlanTable(plan, layout, LargeForecast(1'000'000));
  EXPECT_THAT(table, HasSubstr("1001 units"));
  EXPECT_THAT(
      table,
      HasSubstr(
          "UNIT                    CLASS      NUMEL  PARAM     REDUCE   SHARDED  UNSHARDED\n"
          "decoder.0-499.mlp x500  Mlp    1,000,000  bfloat16  float32  250,000  2,000,000\n"
          "decoder.0-499 x500      Block  2,000,000  bfloat16  float32  500,000  4,000,000\n"
          "(root)                  Model      3,000  bfloat16  float32      752      6,016\n"));
  EXPECT_THAT(table, HasSubstr("0-15 x16  "));
  EXPECT_THAT(table, HasSubstr("0-1 x2  "));
  EXPECT_LE(WidestLine(table), 80u);
}

TEST(PlanTableTest, WritesBytesInUnitsWhereTheyDoNotFit) {
  v1::Plan plan;
  v1::Layout layout;
  for (int i = 0; i < 126; ++i) {
    AddUnit(absl::StrCat("model.layers.", i), "LlamaDecoderLayer", 3'187'703'808, v1::BFLOAT16,
            &plan, &layout);
  }
  // 3,187,703,808 / 16 x 4 bytes = 760 MiB; x 2 bytes = 5.94 GiB.
  const std::string table = PlanTable(plan, layout, LargeForecast(123'456'789'012));
  EXPECT_THAT(table, HasSubstr("model.layers.0-125 x126\n"));
  EXPECT_THAT(
      table,
      HasSubstr("LlamaDecoderLayer  3,187,703,808  bfloat16  float32  760.0 MiB    5.9 GiB\n"));
  EXPECT_THAT(
      table,
      HasSubstr("0-15 x16   115.0 GiB  115.0 GiB  115.0 GiB  115.0 GiB  115.0 GiB  115.0 GiB\n"));
  EXPECT_LE(WidestLine(table), 80u);
}

TEST(PlanTableTest, NoLineIsWiderThanEightyColumns) {
  v1::Plan plan;
  v1::Layout layout;
  plan.set_model_name(std::string(300, 'm'));
  const int64_t most = int64_t{1} << 45;
  AddUnit(std::string(500, 'x'), std::string(500, 'C'), most, v1::FLOAT8_E4M3FN, &plan, &layout);
  AddUnit("h.0", "Block", most, v1::FLOAT64, &plan, &layout);
  plan.add_orphans(std::string(200, 'o'));
  plan.add_ignored(std::string(200, 'i'));
  plan.add_notes(absl::StrCat("a note of ", std::string(200, 'n'), " and more words"));
  layout.add_notes(absl::StrCat("another ", std::string(79, 'n')));
  const std::string table = PlanTable(plan, layout, LargeForecast(int64_t{1} << 61));
  EXPECT_LE(WidestLine(table), 80u) << table;
  EXPECT_THAT(table, HasSubstr("e4m3/fp32"));
  EXPECT_THAT(table, HasSubstr("35.18e12"));
}

TEST(PlanTableTest, SaysWhatIsInNoUnit) {
  v1::Plan plan = SmallPlan();
  plan.clear_notes();
  for (int i = 0; i < 3; ++i) plan.add_orphans(absl::StrCat("h.", i, ".bias"));
  plan.add_ignored("lora.weight");
  const std::string table = PlanTable(plan, SmallLayout(), {});
  EXPECT_THAT(table, HasSubstr("\norphan  h.0-2.bias x3\nignored  lora.weight\n"));
  EXPECT_THAT(table, Not(HasSubstr("fits")));
}

TEST(PlanTableTest, ShowsTheBuffersOfEachGpu) {
  v1::Forecast forecast;
  v1::GpuForecast* gpu = forecast.add_ranks()->mutable_gpu();
  gpu->set_unsharded_bytes(1024);
  gpu->set_unsharded_gradient_bytes(2048);
  gpu->set_staging_bytes(512);
  gpu->set_total_bytes(3584);
  gpu->set_allocated_bytes(12288);
  EXPECT_THAT(PlanTable(SmallPlan(), SmallLayout(), forecast),
              HasSubstr("\nBytes on each rank's GPU\n"
                        "UNSHARDED  GRADIENTS  STAGING  TOTAL  ALLOCATED\n"
                        "    1,024      2,048      512  3,584     12,288\n"
                        "\nBytes that the ranks of a host share\n"));
  gpu->set_resharded_bytes(64);
  EXPECT_THAT(PlanTable(SmallPlan(), SmallLayout(), forecast),
              HasSubstr("UNSHARDED  GRADIENTS  RESHARDED  STAGING  TOTAL  ALLOCATED\n"));
}

TEST(PlanTableTest, ShowsThePhases) {
  v1::Forecast forecast;
  v1::PhaseForecast* resting = forecast.add_phases();
  resting->set_phase(v1::PhaseForecast::RESTING);
  resting->set_rank_bytes(6976);
  v1::PhaseForecast* backward = forecast.add_phases();
  backward->set_phase(v1::PhaseForecast::BACKWARD);
  backward->set_unit_fqn("h.0");
  backward->set_unsharded_bytes(512);
  backward->set_unsharded_gradient_bytes(256);
  backward->set_activation_bytes(1024);
  backward->set_rank_bytes(8768);
  backward->set_host_bytes(17024);
  EXPECT_THAT(PlanTable(SmallPlan(), SmallLayout(), forecast),
              HasSubstr("\nBytes in use at the busiest moment of each phase\n"
                        "PHASE     UNIT  WHOLE  GRADIENTS  ACTIVATIONS   RANK    HOST\n"
                        "resting   -         0          0            0  6,976       0\n"
                        "backward  h.0     512        256        1,024  8,768  17,024\n"));
}

TEST(PlanTableTest, ShowsTrafficAndCheckpoints) {
  v1::Forecast forecast;
  forecast.set_intra_host_wire_bytes_per_step(3000);
  forecast.set_inter_host_wire_bytes_per_step(1000);
  forecast.set_largest_message_bytes(256);
  forecast.set_largest_message_unit("h.0");
  forecast.set_checkpoint_bytes(2976);
  forecast.set_export_bytes(992);
  EXPECT_THAT(PlanTable(SmallPlan(), SmallLayout(), forecast),
              HasSubstr("on a wire    0 bytes a rank and step\n"
                        "             of all ranks 3,000 bytes within hosts, 1,000 between them\n"
                        "largest msg  256 bytes, of h.0\n"
                        "checkpoint   2,976 bytes, export 992\n"));
}

TEST(PlanTableTest, SaysWhatIsNeededOfADevice) {
  v1::Forecast forecast;
  forecast.set_fits(false);
  v1::Fit* fit = forecast.mutable_fit();
  fit->set_device("a host of 4 ranks");
  fit->set_needed_bytes(int64_t{90} << 30);
  fit->set_device_memory_bytes(int64_t{80} << 30);
  EXPECT_THAT(PlanTable(SmallPlan(), SmallLayout(), forecast),
              HasSubstr("fits         no: a host of 4 ranks needs 90 GiB of 80 GiB\n"));
}

TEST(PlanTableTest, LeavesUnitsThatAreNotAlikeToJson) {
  v1::Plan plan;
  v1::Layout layout;
  for (int i = 0; i < 1'234; ++i) {
    AddUnit(absl::StrCat("x", i), "Block", 1, v1::FLOAT32, &plan, &layout);
  }
  EXPECT_THAT(PlanTable(plan, layout, {}),
              HasSubstr("... and 234 more, which --output=json has\n"));
}

TEST(PlanTableTest, SaysWhetherItFits) {
  v1::Forecast forecast;
  forecast.set_fits(true);
  EXPECT_THAT(PlanTable(SmallPlan(), SmallLayout(), forecast), HasSubstr("fits         yes\n"));
  forecast.set_fits(false);
  EXPECT_THAT(PlanTable(SmallPlan(), SmallLayout(), forecast), HasSubstr("fits         no\n"));
}

TEST(PlanTableTest, LeavesLongListsToJson) {
  v1::Plan plan = SmallPlan();
  plan.clear_notes();
  for (int i = 0; i < 100; ++i) plan.add_notes(absl::StrCat("note number ", i));
  const std::string table = PlanTable(plan, SmallLayout(), {});
  EXPECT_THAT(table, HasSubstr("note: note number 39\n"));
  EXPECT_THAT(table, Not(HasSubstr("note number 40")));
  EXPECT_THAT(table, HasSubstr("note: ... and 60 more, which --output=json has\n"));
}

TEST(ExplainTextTest, GivesTheReasonsInOrder) {
  v1::ExplainModuleResponse explained;
  explained.set_fqn("h.0.attn");
  explained.set_class_name("Attention");
  explained.set_unit_fqn("h.0");
  explained.add_reasons("The gate passes: 4 elements, at least 2.");
  explained.add_reasons("Not wrapped: 1 element is left, less than 2.");
  EXPECT_EQ(ExplainText(explained),
            "h.0.attn\n"
            "class  Attention\n"
            "is     not a unit; what it holds is in h.0\n"
            "- The gate passes: 4 elements, at least 2.\n"
            "- Not wrapped: 1 element is left, less than 2.\n");
  explained.clear_fqn();
  explained.set_is_unit(true);
  EXPECT_THAT(ExplainText(explained), HasSubstr("(root)\nclass  Attention\nis     a unit\n"));
}

}  // namespace
}  // namespace tessera
