#include "common/mixed_precision.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "common/errors.h"

namespace tessera {
namespace {

TEST(MixedPrecisionTest, FollowsTheTableOfFsdp) {
  // original, param_dtype, reduce_dtype -> param, reduce.
  const std::vector<std::tuple<DType, std::string, std::string, DType, DType>> table = {
      {v1::FLOAT32, "", "", v1::FLOAT32, v1::FLOAT32},
      {v1::FLOAT32, "fp32", "", v1::FLOAT32, v1::FLOAT32},
      {v1::FLOAT32, "bf16", "", v1::BFLOAT16, v1::BFLOAT16},
      {v1::FLOAT32, "float16", "", v1::FLOAT16, v1::FLOAT16},
      {v1::FLOAT32, "bf16", "fp32", v1::BFLOAT16, v1::FLOAT32},
      {v1::FLOAT32, "bf16", "fp16", v1::BFLOAT16, v1::FLOAT16},
      {v1::FLOAT32, "", "bf16", v1::FLOAT32, v1::BFLOAT16},
      {v1::BFLOAT16, "", "", v1::BFLOAT16, v1::BFLOAT16},
      {v1::BFLOAT16, "", "fp32", v1::BFLOAT16, v1::FLOAT32},
  };
  for (const auto& [original, param, reduce, want_param, want_reduce] : table) {
    v1::MixedPrecisionSpec spec;
    spec.set_param_dtype(param);
    spec.set_reduce_dtype(reduce);
    const auto dtypes = ResolveDTypes(original, spec);
    ASSERT_TRUE(dtypes.ok()) << dtypes.status();
    EXPECT_EQ(dtypes->param, want_param) << param << "," << reduce;
    EXPECT_EQ(dtypes->reduce, want_reduce) << param << "," << reduce;
    EXPECT_EQ(dtypes->mixed_param(), want_param != original);
    EXPECT_EQ(dtypes->mixed_reduce(), want_reduce != original);
  }
}

// pytorch #90584: float32 said aloud on a float32 model.
TEST(MixedPrecisionTest, ExplicitOriginalDTypeIsNotMixed) {
  v1::MixedPrecisionSpec spec;
  spec.set_param_dtype("float32");
  const auto dtypes = ResolveDTypes(v1::FLOAT32, spec);
  ASSERT_TRUE(dtypes.ok());
  EXPECT_FALSE(dtypes->mixed_param());
  EXPECT_FALSE(dtypes->mixed_reduce());
}

TEST(MixedPrecisionTest, RefusesWhatCannotBeTrainedIn) {
  v1::MixedPrecisionSpec spec;
  spec.set_param_dtype("int8");
  EXPECT_EQ(Field(ResolveDTypes(v1::FLOAT32, spec).status()), "mixed_precision.param_dtype");
  spec.set_param_dtype("");
  spec.set_reduce_dtype("float33");
  EXPECT_EQ(Field(ResolveDTypes(v1::FLOAT32, spec).status()), "mixed_precision.reduce_dtype");
  EXPECT_FALSE(ResolveDTypes(v1::INT64, {}).ok());
}

}  // namespace
}  // namespace tessera
