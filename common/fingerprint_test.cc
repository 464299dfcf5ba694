#include "common/fingerprint.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace tessera {
namespace {

v1::Plan SmallPlan() {
  v1::Plan plan;
  v1::Unit* block = plan.add_units();
  block->set_fqn("h.0");
  block->set_class_name("Block");
  block->set_numel(30);
  block->set_original_dtype(v1::FLOAT32);
  block->set_param_dtype(v1::BFLOAT16);
  block->set_reduce_dtype(v1::FLOAT32);
  block->set_enclosing_unit(1);
  v1::UnitParameter* weight = block->add_parameters();
  weight->set_fqn("h.0.weight");
  weight->add_shape(5);
  weight->add_shape(6);
  weight->set_numel(30);
  weight->set_requires_grad(true);
  weight->add_tied_fqns("h.0.again");
  v1::Unit* root = plan.add_units();
  root->set_class_name("GPT");
  root->set_original_dtype(v1::FLOAT32);
  root->set_param_dtype(v1::BFLOAT16);
  root->set_reduce_dtype(v1::FLOAT32);
  root->set_input_dtype(v1::BFLOAT16);
  return plan;
}

v1::Layout SmallLayout() {
  v1::Layout layout;
  layout.set_plan_fingerprint("abc");
  layout.set_world_size(2);
  layout.set_sharding_strategy(v1::FULL_SHARD);
  layout.set_shard_count(2);
  layout.set_replica_count(1);
  layout.set_unshard_mode(v1::SLOTS);
  layout.set_prefetch(1);
  layout.set_gradient_stride_bytes(4096);
  v1::Slot* slot = layout.add_unsharded_slots();
  slot->set_bytes(128);
  slot->set_level(1);
  v1::Slot* spare = layout.add_unsharded_slots();
  spare->set_offset_bytes(128);
  spare->set_bytes(128);
  *layout.add_gradient_slots() = *slot;
  v1::RankFileLayout* file = layout.mutable_rank_file();
  file->set_record_bytes(4160);
  file->set_undo_offset_bytes(5184);
  file->set_undo_bytes(768);
  file->set_total_bytes(5952);
  v1::UnitLayout* unit = layout.add_units();
  unit->set_fqn("h.0");
  unit->set_level(1);
  unit->set_padded_numel(128);
  unit->set_shard_numel(64);
  unit->set_parameter_offset_bytes(4160);
  unit->set_gradient_offset_bytes(4416);
  unit->set_optimizer_offset_bytes(4672);
  v1::ParameterLayout* weight = unit->add_parameters();
  weight->set_fqn("h.0.weight");
  weight->set_offset(0);
  return layout;
}

TEST(FingerprintTest, Sha256OfKnownText) {
  // FIPS 180-2, appendix B.1.
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(FingerprintTest, PlanGolden) {
  EXPECT_EQ(
      PlanText(SmallPlan().units()),
      "tessera-plan 1\n"
      "unit h.0\nclass Block\nnumel 30\n"
      "original_dtype float32\nparam_dtype bfloat16\nreduce_dtype float32\nenclosing_unit 1\n"
      "parameter h.0.weight\nshape 5,6\nrequires_grad 1\ntied h.0.again\n"
      "unit \nclass GPT\nnumel 0\n"
      "original_dtype float32\nparam_dtype bfloat16\nreduce_dtype float32\nenclosing_unit -\n");
  EXPECT_EQ(PlanFingerprint(SmallPlan().units()),
            "649fc0b844f380f6d8953594dd037d7603f698e1169a0badba7803e777098610");
}

TEST(FingerprintTest, LayoutGolden) {
  const v1::Layout layout = SmallLayout();
  EXPECT_EQ(LayoutText(layout, layout.units()),
            "tessera-layout 1\n"
            "plan abc\nworld_size 2\nsharding_strategy FULL_SHARD\nshard_count 2\nreplica_count 1\n"
            "unshard_mode SLOTS\nprefetch 1\ngradient_stride_bytes 4096\n"
            "unsharded_slot 0,128,1\nunsharded_slot 128,128,-\ngradient_slot 0,128,1\n"
            "rank_file 4160,5184,768,5952\n"
            "unit h.0\nlevel 1\npadded_numel 128\nshard_numel 64\nregions 4160,4416,4672\n"
            "parameter 0 h.0.weight\n");
  EXPECT_EQ(LayoutFingerprint(layout, layout.units()),
            "e8b510ee446db05df3d9ed7617e667231123b52475e3bbdc78fc3b9356eb0d16");
}

TEST(FingerprintTest, AGpusLayoutSaysSoAndACpusIsAsEver) {
  v1::Layout layout = SmallLayout();
  const std::string cpu = LayoutText(layout, layout.units());
  layout.set_device(v1::CPU);
  EXPECT_EQ(LayoutText(layout, layout.units()), cpu);
  layout.set_device(v1::CUDA);
  layout.set_staging_bytes(512);
  std::string gpu = cpu;
  gpu.insert(gpu.find("rank_file"), "device CUDA\nstaging_bytes 512\n");
  EXPECT_EQ(LayoutText(layout, layout.units()), gpu);
  layout.set_device(v1::CPU);
  std::string several_hosts = cpu;
  several_hosts.insert(several_hosts.find("rank_file"), "staging_bytes 512\n");
  EXPECT_EQ(LayoutText(layout, layout.units()), several_hosts);
}

TEST(FingerprintTest, WorkerGetsTheSameFromHeaderAndUnits) {
  const v1::Layout layout = SmallLayout();
  v1::Layout header = layout;
  header.clear_units();
  header.set_layout_fingerprint("not looked at");
  header.add_notes("nor this");
  EXPECT_EQ(LayoutFingerprint(header, layout.units()), LayoutFingerprint(layout, layout.units()));
}

TEST(FingerprintTest, InitialValuesAreNotInThePlansName) {
  v1::Plan plan = SmallPlan();
  plan.mutable_units(0)->mutable_parameters(0)->mutable_init()->set_kind("ones");
  plan.add_notes("note");
  EXPECT_EQ(PlanFingerprint(plan.units()), PlanFingerprint(SmallPlan().units()));
}

TEST(FingerprintTest, EveryOtherFieldIsInThePlansName) {
  std::vector<v1::Plan> changed(10, SmallPlan());
  changed[0].mutable_units(0)->set_fqn("h.1");
  changed[1].mutable_units(0)->set_class_name("B");
  changed[2].mutable_units(0)->set_original_dtype(v1::FLOAT64);
  changed[3].mutable_units(0)->set_param_dtype(v1::FLOAT32);
  changed[4].mutable_units(0)->set_reduce_dtype(v1::BFLOAT16);
  changed[5].mutable_units(0)->mutable_parameters(0)->set_shape(0, 6);
  changed[6].mutable_units(0)->mutable_parameters(0)->set_requires_grad(false);
  changed[7].mutable_units(0)->mutable_parameters(0)->clear_tied_fqns();
  changed[8].mutable_units()->SwapElements(0, 1);
  changed[9].mutable_units(0)->mutable_parameters(0)->set_fqn("x");
  for (const v1::Plan& plan : changed) {
    EXPECT_NE(PlanFingerprint(plan.units()), PlanFingerprint(SmallPlan().units()))
        << plan.DebugString();
  }
}

// What a plan decides only when it is asked to. A unit that has it as it would be anyway, and one
// made before there was any of it, have the same name.
TEST(FingerprintTest, SettingsAreInThePlansNameWhereTheyDiffer) {
  v1::Plan plan = SmallPlan();
  for (v1::Unit& unit : *plan.mutable_units()) {
    unit.set_gradient_dtype(v1::FLOAT32);
    unit.set_unsynced_gradient_dtype(v1::BFLOAT16);
    unit.set_trainable_numel(30);
  }
  EXPECT_EQ(PlanFingerprint(plan.units()), PlanFingerprint(SmallPlan().units()));
  std::vector<v1::Plan> changed(10, plan);
  changed[0].mutable_units(0)->set_gradient_dtype(v1::BFLOAT16);
  changed[1].mutable_units(0)->set_unsynced_gradient_dtype(v1::FLOAT32);
  changed[2].mutable_units(0)->set_input_dtype(v1::BFLOAT16);
  changed[3].mutable_units(1)->clear_input_dtype();
  changed[4].mutable_units(1)->set_input_dtype(v1::FLOAT32);
  changed[5].mutable_units(0)->mutable_overrides()->set_strategy("shard_grad_op");
  changed[6].mutable_units(0)->mutable_overrides()->set_param_align_bytes(0);
  changed[7].mutable_units(0)->mutable_overrides()->set_shard_align_bytes(0);
  changed[8].mutable_units(0)->mutable_overrides()->set_reshard_group(2);
  v1::UnitBuffer* buffer = changed[9].mutable_units(0)->add_buffers();
  buffer->set_fqn("h.0.mask");
  buffer->add_shape(3);
  buffer->set_original_dtype(v1::FLOAT32);
  buffer->set_buffer_dtype(v1::BFLOAT16);
  EXPECT_NE(PlanText(changed[9].units())
                .find("enclosing_unit 1\nbuffer h.0.mask\nshape 3\noriginal_dtype float32\n"
                      "buffer_dtype bfloat16\nparameter h.0.weight\n"),
            std::string::npos);
  std::set<std::string> names = {PlanFingerprint(plan.units())};
  for (const v1::Plan& one : changed) {
    EXPECT_TRUE(names.insert(PlanFingerprint(one.units())).second) << one.DebugString();
  }
}

TEST(FingerprintTest, EveryFieldIsInTheLayoutsName) {
  std::vector<v1::Layout> changed(14, SmallLayout());
  changed[0].set_plan_fingerprint("abd");
  changed[1].set_world_size(3);
  changed[2].set_sharding_strategy(v1::NO_SHARD);
  changed[3].set_shard_count(1);
  changed[4].set_unshard_mode(v1::RESIDENT);
  changed[5].set_prefetch(0);
  changed[6].set_gradient_stride_bytes(8192);
  changed[7].mutable_unsharded_slots(0)->clear_level();
  changed[8].mutable_gradient_slots(0)->set_bytes(256);
  changed[9].mutable_rank_file()->set_undo_bytes(1);
  changed[10].mutable_units(0)->set_optimizer_offset_bytes(0);
  changed[11].mutable_units(0)->mutable_parameters(0)->set_offset(4);
  changed[12].mutable_units(0)->set_level(2);
  changed[13].set_replica_count(2);
  const v1::Layout original = SmallLayout();
  for (const v1::Layout& layout : changed) {
    EXPECT_NE(LayoutFingerprint(layout, layout.units()),
              LayoutFingerprint(original, original.units()))
        << layout.DebugString();
  }
}

}  // namespace
}  // namespace tessera
