#include "worker/position.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(PositionTest, BeginsComputingOnNoUnit) {
  const PositionPublisher position;
  const v1::Position said = position.Read();
  EXPECT_EQ(said.step(), 0);
  EXPECT_EQ(said.activity(), v1::COMPUTING);
  EXPECT_EQ(said.unit(), -1);
  EXPECT_EQ(said.operation(), v1::OPERATION_UNSPECIFIED);
  EXPECT_EQ(said.sequence(), 0);
  EXPECT_EQ(said.what(), "");
  EXPECT_GE(said.time().seconds(), 0);
}

TEST(PositionTest, SaysWhatWasSet) {
  PositionPublisher position;
  position.SetStep(12);
  position.SetSequence(40);
  position.Set(v1::WORKING, 126, v1::OPTIMIZER);
  v1::Position said = position.Read();
  EXPECT_EQ(said.step(), 12);
  EXPECT_EQ(said.activity(), v1::WORKING);
  EXPECT_EQ(said.unit(), 126);
  EXPECT_EQ(said.operation(), v1::OPTIMIZER);
  EXPECT_EQ(said.sequence(), 40);
  position.Set(v1::SAVING, -1, v1::OPERATION_UNSPECIFIED, "the checkpoint of step 12");
  said = position.Read();
  EXPECT_EQ(said.activity(), v1::SAVING);
  EXPECT_EQ(said.unit(), -1);
  EXPECT_EQ(said.operation(), v1::OPERATION_UNSPECIFIED);
  EXPECT_EQ(said.what(), "the checkpoint of step 12");
}

TEST(PositionTest, CutsALongText) {
  PositionPublisher position;
  position.Set(v1::WAITING, -1, v1::OPERATION_UNSPECIFIED, std::string(63, 'a') + "bcd");
  EXPECT_EQ(position.Read().what(), std::string(63, 'a') + "b");
}

TEST(PositionTest, GoesBackAfterAWait) {
  PositionPublisher position;
  position.Set(v1::WORKING, -1, v1::OPERATION_UNSPECIFIED, "the end of the step");
  {
    const PositionPublisher::Waiting waiting(&position, 3, v1::REDUCE);
    EXPECT_EQ(position.Read().activity(), v1::WAITING);
    EXPECT_EQ(position.Read().unit(), 3);
    EXPECT_EQ(position.Read().what(), "");
  }
  const v1::Position said = position.Read();
  EXPECT_EQ(said.activity(), v1::WORKING);
  EXPECT_EQ(said.unit(), -1);
  EXPECT_EQ(said.operation(), v1::OPERATION_UNSPECIFIED);
  EXPECT_EQ(said.what(), "the end of the step");
  const PositionPublisher::Waiting nobody(nullptr, 3, v1::REDUCE);
}

// What failed is told after the calls that failed have returned.
TEST(PositionTest, StaysAtThePlaceOfAFailure) {
  PositionPublisher position;
  {
    const PositionPublisher::Waiting waiting(&position, 3, v1::UNSHARD);
    position.Freeze();
  }
  position.Set(v1::COMPUTING, 1, v1::FORWARD);
  EXPECT_EQ(position.Read().activity(), v1::WAITING);
  EXPECT_EQ(position.Read().unit(), 3);
  position.Thaw();
  position.Set(v1::REJOINING, -1, v1::OPERATION_UNSPECIFIED);
  EXPECT_EQ(position.Read().activity(), v1::REJOINING);
}

// Each text goes with one unit: a reader never sees the half of one place and the half of another.
TEST(PositionTest, AReaderSeesOnePlaceAtATime) {
  PositionPublisher position;
  position.Set(v1::WORKING, 0, v1::UNSHARD, "unit 0 of 1000");
  std::jthread writer([&](const std::stop_token& stop) {
    for (int unit = 0; !stop.stop_requested(); unit = (unit + 1) % 1000) {
      position.Set(v1::WORKING, unit, v1::UNSHARD, absl::StrCat("unit ", unit, " of 1000"));
      const PositionPublisher::Waiting waiting(&position, 1000 + unit, v1::REDUCE,
                                               absl::StrCat("unit ", 1000 + unit, " of 1000"));
    }
  });
  for (int i = 0; i < 50000; ++i) {
    const v1::Position said = position.Read();
    ASSERT_EQ(said.what(), absl::StrCat("unit ", said.unit(), " of 1000"));
    ASSERT_EQ(said.activity(), said.unit() < 1000 ? v1::WORKING : v1::WAITING);
    ASSERT_EQ(said.operation(), said.unit() < 1000 ? v1::UNSHARD : v1::REDUCE);
  }
}

}  // namespace
}  // namespace tessera
