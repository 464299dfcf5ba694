#include "worker/elements.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera {
namespace {

// 1 + 2^-8 is half way between two bfloat16 numbers: to the even one, 1. 1 + 3 x 2^-8 goes up to
// 1 + 2^-6.
TEST(ElementsTest, CastsRoundToNearestEven) {
  std::vector<float> from = {1 + 0x1p-8f, 1 + 0x3p-8f, -2};
  std::vector<uint16_t> to(3);
  CastElements({from.data(), 3, v1::FLOAT32}, {to.data(), 3, v1::BFLOAT16});
  EXPECT_EQ(to, (std::vector<uint16_t>{0x3f80, 0x3f82, 0xc000}));
  std::vector<double> wide(3);
  CastElements({to.data(), 3, v1::BFLOAT16}, {wide.data(), 3, v1::FLOAT64});
  EXPECT_EQ(wide, (std::vector<double>{1, 1 + 0x1p-6, -2}));
}

TEST(ElementsTest, CastsInPlaceToShorterElements) {
  std::vector<float> values = {1, 2, 3, 4};
  CastElements({values.data(), 4, v1::FLOAT32}, {values.data(), 4, v1::FLOAT16});
  const auto* halves = reinterpret_cast<const uint16_t*>(values.data());
  EXPECT_EQ(std::vector<uint16_t>(halves, halves + 4),
            (std::vector<uint16_t>{0x3c00, 0x4000, 0x4200, 0x4400}));
}

TEST(ElementsTest, SumsAndQuotientsAreOfTheTensorsDType) {
  std::vector<uint16_t> to = {0x3f80};  // 1 in bfloat16
  std::vector<float> term = {0x1p-8f};
  AddElements({term.data(), 1, v1::FLOAT32}, {to.data(), 1, v1::BFLOAT16});
  EXPECT_EQ(to[0], 0x3f80);
  std::vector<float> one = {1};
  DivideElements({one.data(), 1, v1::FLOAT32}, 3);
  EXPECT_EQ(one[0], 1.0f / 3.0f);
  std::vector<double> wide = {1};
  DivideElements({wide.data(), 1, v1::FLOAT64}, 3);
  EXPECT_EQ(wide[0], 1.0 / 3.0);
  AddElements({term.data(), 1, v1::FLOAT32}, {wide.data(), 1, v1::FLOAT64});
  EXPECT_EQ(wide[0], 1.0 / 3.0 + 0x1p-8);
}

TEST(ElementsTest, HashesTellEveryByteApart) {
  std::string bytes(21, 'x');
  const uint64_t hash = HashBytes(bytes);
  EXPECT_EQ(HashBytes(bytes), hash);
  EXPECT_NE(HashBytes(bytes, 1), hash);
  EXPECT_NE(HashBytes(bytes.substr(1)), hash);
  for (char& byte : bytes) {
    byte ^= 1;
    EXPECT_NE(HashBytes(bytes), hash);
    byte ^= 1;
  }
}

}  // namespace
}  // namespace tessera
