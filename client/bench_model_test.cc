#include "client/bench_model.h"

#include "common/model_spec.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(BenchModelTest, HasAsManyModulesAsAreAskedFor) {
  for (const int64_t modules : {2, 10, 11, 12, 1000, 12'345}) {
    const v1::ModelSpec model = BenchModel(modules);
    const auto index = ModelIndex::Create(model);
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(static_cast<int64_t>(index->modules().size()), modules);
  }
}

TEST(BenchModelTest, BlocksHaveTheNumelThatIsSaid) {
  const v1::ModelSpec model = BenchModel(11);
  int64_t numel = 0;
  const auto index = ModelIndex::Create(model);
  ASSERT_TRUE(index.ok()) << index.status();
  for (const auto& parameter : index->parameters()) numel += parameter.numel;
  EXPECT_EQ(numel, kBenchBlockNumel);
}

}  // namespace
}  // namespace tessera
