#include "common/mixed_precision.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "common/errors.h"

namespace tessera {
namespace {

constexpr DType F64 = v1::FLOAT64, F32 = v1::FLOAT32, F16 = v1::FLOAT16, BF16 = v1::BFLOAT16;

v1::MixedPrecisionSpec Spec(const std::string& param, const std::string& reduce) {
  v1::MixedPrecisionSpec spec;
  spec.set_param_dtype(param);
  spec.set_reduce_dtype(reduce);
  return spec;
}

struct Row {
  DType original;
  std::string param, reduce;
  DType compute, reduced;
  bool low_precision_shard, cast_before, cast_after;
  DType final_grad, kept_grad, unsynced_grad;
};

// FSDP's table, a row for each combination. kept_grad is what FSDP documents and, where nothing is
// sharded, also does; its code gives the compute dtype for the sharded strategies.
TEST(MixedPrecisionTest, FollowsTheTableOfFsdp) {
  const std::vector<Row> table = {
      {F32, "", "", F32, F32, false, false, false, F32, F32, F32},
      {F32, "fp32", "", F32, F32, false, false, false, F32, F32, F32},
      {F32, "bf16", "", BF16, BF16, true, false, true, F32, BF16, BF16},
      {F32, "fp16", "", F16, F16, true, false, true, F32, F16, F16},
      {F32, "bf16", "fp32", BF16, F32, true, true, false, F32, F32, BF16},
      {F32, "bf16", "fp16", BF16, F16, true, true, true, F32, F16, BF16},
      {F32, "fp32", "bf16", F32, BF16, false, true, true, F32, BF16, F32},
      {F32, "", "bf16", F32, BF16, false, true, true, F32, BF16, F32},
      {BF16, "", "", BF16, BF16, false, false, false, BF16, BF16, BF16},
      {BF16, "bf16", "fp32", BF16, F32, false, true, true, BF16, F32, BF16},
      {BF16, "", "fp32", BF16, F32, false, true, true, BF16, F32, BF16},
      {BF16, "fp32", "", F32, F32, true, false, true, BF16, F32, F32},
      {BF16, "fp32", "bf16", F32, BF16, true, true, false, BF16, BF16, F32},
      {F64, "", "", F64, F64, false, false, false, F64, F64, F64},
      {F64, "fp32", "", F32, F32, true, false, true, F64, F32, F32},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(DTypeName(row.original) + "," + row.param + "," + row.reduce);
    v1::MixedPrecisionSpec spec = Spec(row.param, row.reduce);
    const auto dtypes = ResolveDTypes(row.original, spec);
    ASSERT_TRUE(dtypes.ok()) << dtypes.status();
    EXPECT_EQ(dtypes->original, row.original);
    EXPECT_EQ(dtypes->param, row.compute);
    EXPECT_EQ(dtypes->reduce, row.reduced);
    EXPECT_EQ(dtypes->mixed_param(), row.low_precision_shard);
    EXPECT_EQ(dtypes->mixed_reduce(), row.reduced != row.original);
    EXPECT_EQ(dtypes->cast_before_reduce(), row.cast_before);
    EXPECT_EQ(dtypes->cast_after_reduce(), row.cast_after);
    EXPECT_EQ(dtypes->gradient, row.final_grad);
    EXPECT_EQ(dtypes->unsynced_gradient, row.unsynced_grad);
    spec.set_unsynced_grad_dtype("reduce");  // FSDP2
    spec.set_keep_grads_in_reduce_dtype(true);
    const auto kept = ResolveDTypes(row.original, spec);
    ASSERT_TRUE(kept.ok());
    EXPECT_EQ(kept->gradient, row.kept_grad);
    EXPECT_FALSE(kept->cast_after_reduce());
    EXPECT_EQ(kept->unsynced_gradient, row.reduced);
    spec.clear_keep_grads_in_reduce_dtype();
    spec.set_keep_low_precision_grads(true);
    EXPECT_EQ(ResolveDTypes(row.original, spec)->gradient, row.kept_grad);
  }
}

// pytorch #90584: float32 said aloud on a float32 model.
TEST(MixedPrecisionTest, ExplicitOriginalDTypeIsNotMixed) {
  const auto dtypes = ResolveDTypes(F32, Spec("float32", ""));
  ASSERT_TRUE(dtypes.ok());
  EXPECT_FALSE(dtypes->mixed_param());
  EXPECT_FALSE(dtypes->mixed_reduce());
}

// pytorch #90838 and #91192: the model's dtype changes between construction and first use.
TEST(MixedPrecisionTest, AChangedModelDTypeFollowsTheTableOf91192) {
  // param_dtype and reduce_dtype given -> compute and reduce after float32 has become bfloat16.
  const std::vector<std::tuple<std::string, std::string, DType, DType>> table = {
      {"", "", BF16, BF16},
      {"fp16", "", F16, F16},
      {"", "fp16", BF16, F16},
      {"fp16", "fp32", F16, F32},
  };
  for (const auto& [param, reduce, compute, reduced] : table) {
    SCOPED_TRACE(param + "," + reduce);
    const v1::MixedPrecisionSpec spec = Spec(param, reduce);
    const auto before = ResolveDTypes(F32, spec);
    ASSERT_TRUE(before.ok());
    const auto after = ChangeOriginalDType(*before, BF16, spec);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(after->original, BF16);
    EXPECT_EQ(after->param, compute);
    EXPECT_EQ(after->reduce, reduced);
    EXPECT_EQ(after->gradient, BF16);
    EXPECT_EQ(after->unsynced_gradient, compute);
    // As if the model had been so from the start.
    const auto fresh = ResolveDTypes(BF16, spec);
    EXPECT_EQ(fresh->param, after->param);
    EXPECT_EQ(fresh->reduce, after->reduce);
    EXPECT_EQ(ChangeOriginalDType(*before, F32, spec)->param, before->param);
  }
  EXPECT_FALSE(ChangeOriginalDType(*ResolveDTypes(F32, {}), v1::INT8, {}).ok());
}

TEST(MixedPrecisionTest, BuffersKeepTheirOwnUnlessTheyAreFloatingPoint) {
  v1::MixedPrecisionSpec spec;
  EXPECT_EQ(*ResolveBufferDType(F32, spec), F32);
  EXPECT_EQ(*ResolveBufferDType(v1::INT64, spec), v1::INT64);
  spec.set_param_dtype("bf16");  // says nothing of buffers
  EXPECT_EQ(*ResolveBufferDType(F32, spec), F32);
  spec.set_buffer_dtype("fp16");
  EXPECT_EQ(*ResolveBufferDType(F32, spec), F16);
  EXPECT_EQ(*ResolveBufferDType(F64, spec), F16);
  EXPECT_EQ(*ResolveBufferDType(v1::FLOAT8_E5M2, spec), F16);
  EXPECT_EQ(*ResolveBufferDType(v1::INT64, spec), v1::INT64);
  EXPECT_EQ(*ResolveBufferDType(v1::BOOL, spec), v1::BOOL);
}

TEST(MixedPrecisionTest, RefusesWhatCannotBeTrainedIn) {
  EXPECT_EQ(Field(ResolveDTypes(F32, Spec("int8", "")).status()), "mixed_precision.param_dtype");
  EXPECT_EQ(Field(ResolveDTypes(F32, Spec("", "float33")).status()),
            "mixed_precision.reduce_dtype");
  EXPECT_FALSE(ResolveDTypes(v1::INT64, {}).ok());
  v1::MixedPrecisionSpec spec;
  spec.set_buffer_dtype("int8");
  EXPECT_EQ(Field(ResolveBufferDType(F32, spec).status()), "mixed_precision.buffer_dtype");
  spec.set_unsynced_grad_dtype("both");
  EXPECT_EQ(Field(ResolveDTypes(F32, spec).status()), "mixed_precision.unsynced_grad_dtype");
}

TEST(MixedPrecisionTest, RefusesTheTwoNamesOfOneSettingThatContradict) {
  v1::MixedPrecisionSpec spec;
  spec.set_keep_grads_in_reduce_dtype(true);
  spec.set_keep_low_precision_grads(false);
  EXPECT_EQ(Field(ResolveDTypes(F32, spec).status()), "mixed_precision.keep_low_precision_grads");
  spec.set_keep_low_precision_grads(true);
  EXPECT_TRUE(ResolveDTypes(F32, spec).ok());
}

}  // namespace
}  // namespace tessera
