#include "coordinator/stragglers.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace tessera {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

// Ranks that report every half second, ten steps each time, of two units: each step spends
// `us(rank, round)` in forward of unit 1, half of that in reduce of unit 0, and waits otherwise.
class StragglersTest : public ::testing::Test {
 protected:
  template <typename Us>
  std::vector<StragglerDetector::Change> Run(int ranks, int seconds, Us us,
                                             StragglerDetector::Options options = {}) {
    StragglerDetector detector(/*units=*/2, ranks, options);
    std::vector<double> totals(ranks, 0);
    std::vector<StragglerDetector::Change> all;
    for (int half = 0; half <= 2 * seconds; ++half) {
      for (int rank = 0; rank < ranks; ++rank) {
        totals[rank] += half == 0 ? 0 : kSteps * us(rank, half);
        google::protobuf::RepeatedPtrField<v1::OperationSample> samples;
        Add(samples, 1, v1::FORWARD, totals[rank]);
        Add(samples, 0, v1::REDUCE, totals[rank] / 2);
        // Whoever is quick waits: that says nothing of it.
        Add(samples, 1, v1::WAIT, 1e5 * half / us(rank, half));
        detector.Record(rank, kSteps * half, samples);
      }
      now_ = kStart + half * absl::Milliseconds(500);
      for (const StragglerDetector::Change& change : detector.Advance(now_)) all.push_back(change);
    }
    return all;
  }
  static void Add(google::protobuf::RepeatedPtrField<v1::OperationSample>& samples, int unit,
                  v1::Operation operation, double total_us) {
    v1::OperationSample* sample = samples.Add();
    sample->set_unit(unit);
    sample->set_operation(operation);
    sample->set_total_us(total_us);
  }

  static constexpr int kSteps = 10;  // of a report: 50 ms each
  absl::Time now_;
};

TEST_F(StragglersTest, NamesTheRankAndWhereItLosesTime) {
  const auto changes =
      Run(4, 15, [](int rank, int) { return rank == 2 ? 20000.0 : 8000.0 + 100 * rank; });
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_TRUE(changes[0].begins);
  EXPECT_EQ(changes[0].rank, 2);
  // The first round with anything in it begins with the first report, at kStart.
  EXPECT_EQ(changes[0].since, kStart);
  EXPECT_NEAR(changes[0].own_us, 1.5 * 20000, 1);
  EXPECT_NEAR(changes[0].median_us, 1.5 * 8100, 1);  // of 8000, 8100, 8300 and 20000 the second
  EXPECT_EQ(changes[0].unit, 1);
  EXPECT_EQ(changes[0].operation, v1::FORWARD);
  EXPECT_NEAR(changes[0].place_us, 20000, 1);
  EXPECT_NEAR(changes[0].place_others_us, (8000 + 8100 + 8300) / 3.0, 1);
}

TEST_F(StragglersTest, SaysItOnceAndWhenItIsOver) {
  // Slow from second 5 to second 20.
  const auto changes = Run(3, 40, [](int rank, int half) {
    return rank == 1 && half > 10 && half <= 40 ? 20000.0 : 8000.0;
  });
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_TRUE(changes[0].begins);
  EXPECT_EQ(changes[0].since, kStart + absl::Seconds(5));
  EXPECT_FALSE(changes[1].begins);
  EXPECT_EQ(changes[1].rank, 1);
  EXPECT_EQ(changes[1].since, kStart + absl::Seconds(20));
}

TEST_F(StragglersTest, OfTwoRanksTheSlowerOne) {
  const auto changes = Run(2, 12, [](int rank, int) { return rank == 0 ? 13000.0 : 8000.0; });
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].rank, 0);
  EXPECT_NEAR(changes[0].median_us, 1.5 * 8000, 1);
}

TEST_F(StragglersTest, NotBeforeItHasLasted) {
  EXPECT_TRUE(Run(3, 9, [](int rank, int) { return rank == 1 ? 20000.0 : 8000.0; }).empty());
  EXPECT_FALSE(Run(3, 10, [](int rank, int) { return rank == 1 ? 20000.0 : 8000.0; }).empty());
}

TEST_F(StragglersTest, NotBelowTheFactor) {
  EXPECT_TRUE(Run(3, 60, [](int rank, int) { return rank == 1 ? 11900.0 : 8000.0; }).empty());
}

// Four times as much of almost nothing: nobody would notice.
TEST_F(StragglersTest, NotWhereTheStepHardlyNotices) {
  EXPECT_TRUE(Run(3, 60, [](int rank, int) { return rank == 1 ? 1200.0 : 300.0; }).empty());
}

TEST_F(StragglersTest, NotAHiccupNorManyInARow) {
  EXPECT_TRUE(Run(3, 120, [](int rank, int half) {
                return rank == 1 && half % 20 < 16 ? 30000.0 : 8000.0;
              }).empty());
}

// 20 hours of eight ranks, each round of each rank up to twice as slow as another, and one in
// fifty ten times as slow.
TEST_F(StragglersTest, NotNoise) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> noise(0, 0.4);
  std::uniform_real_distribution<double> rare(0, 1);
  const auto changes = Run(8, 20 * 3600, [&](int, int) {
    return 6000 * noise(random) * (rare(random) < 0.02 ? 10 : 1);
  });
  EXPECT_TRUE(changes.empty()) << changes.size();
}

TEST_F(StragglersTest, FindsItInNoise) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> noise(0, 0.1);
  const auto changes =
      Run(8, 30, [&](int rank, int) { return (rank == 5 ? 16000 : 8000) * noise(random); });
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].rank, 5);
  EXPECT_EQ(changes[0].operation, v1::FORWARD);
}

// Its totals begin anew; what it did before is not taken for work of one report.
TEST_F(StragglersTest, ARankThatStartsAgainIsNoStraggler) {
  StragglerDetector detector(1, 2, {});
  for (int round = 0; round < 30; ++round) {
    for (int rank = 0; rank < 2; ++rank) {
      google::protobuf::RepeatedPtrField<v1::OperationSample> samples;
      const int counted = rank == 1 ? round % 3 : round;
      Add(samples, 0, v1::FORWARD, 1e6 * counted + 1);
      detector.Record(rank, 100 * counted, samples);
    }
    EXPECT_TRUE(detector.Advance(kStart + round * absl::Seconds(1)).empty());
  }
}

TEST_F(StragglersTest, OneRankAloneIsNone) {
  EXPECT_TRUE(Run(1, 20, [](int, int) { return 8000.0; }).empty());
}

}  // namespace
}  // namespace tessera
