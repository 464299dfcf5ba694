#include "worker/workloads/gpt_batch.h"

#include <map>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// Byte i of the text is i mod 251, so that a window tells where it starts.
std::string Text(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

TEST(TrainingWindowsTest, TargetsAreTheBytesAfterTheTokens) {
  const std::string text = Text(1000);
  const TrainingWindows windows(text, 1, 24, 8);
  GptBatch batch(3, 8);
  windows.Fill(5, 6, batch);
  for (int64_t sequence = 0; sequence < 3; ++sequence) {
    const int64_t start = windows.Start(5, 6 + sequence);
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(batch.tokens[sequence * 8 + i], (start + i) % 251);
      EXPECT_EQ(batch.targets[sequence * 8 + i], (start + i + 1) % 251);
    }
  }
}

TEST(TrainingWindowsTest, GlobalBatchIsTheSameHoweverItIsCut) {
  const std::string text = Text(1000);
  const TrainingWindows windows(text, 1, 24, 8);
  GptBatch whole(24, 8);
  windows.Fill(3, 0, whole);
  for (const int64_t ranks : {2, 3, 4, 6}) {
    std::vector<int32_t> tokens;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      GptBatch part(24 / ranks, 8);
      windows.Fill(3, rank * part.sequences, part);
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    }
    EXPECT_EQ(tokens, whole.tokens);
  }
}

TEST(TrainingWindowsTest, ReachesFirstAndLastByteAndNoFurther) {
  const std::string text = Text(12);  // windows of 9 bytes start at 0, 1, 2 or 3
  const TrainingWindows windows(text, 1, 100, 8);
  std::map<int64_t, int> starts;
  for (int64_t step = 1; step <= 10; ++step) {
    for (int64_t sequence = 0; sequence < 100; ++sequence) ++starts[windows.Start(step, sequence)];
  }
  ASSERT_EQ(starts.size(), 4u);
  // 250 each with a standard deviation of 14.
  for (int64_t start = 0; start < 4; ++start) EXPECT_NEAR(starts[start], 250, 70);
}

TEST(TrainingWindowsTest, StepsAndSeedsDiffer) {
  const std::string text = Text(100000);
  const TrainingWindows one(text, 1, 2, 8);
  const TrainingWindows two(text, 2, 2, 8);
  std::set<int64_t> starts;
  for (int64_t step = 1; step <= 5; ++step) {
    for (int64_t sequence = 0; sequence < 2; ++sequence) {
      starts.insert(one.Start(step, sequence));
      starts.insert(two.Start(step, sequence));
    }
  }
  EXPECT_EQ(starts.size(), 20u);
}

TEST(EvaluationWindowsTest, SpreadEvenlyWithoutOverlap) {
  const std::string text = Text(100000);
  const EvaluationWindows windows(text, 64);
  EXPECT_EQ(windows.count(), 192);
  EXPECT_EQ(windows.Start(0), 0);
  EXPECT_EQ(windows.Start(191), 100000 - 65);
  for (int64_t i = 1; i < windows.count(); ++i) {
    EXPECT_GE(windows.Start(i) - windows.Start(i - 1), 65);
  }
}

TEST(EvaluationWindowsTest, ShortTextGivesFewerWindows) {
  const std::string text = Text(3 * 65);
  const EvaluationWindows windows(text, 64);
  EXPECT_EQ(windows.count(), 3);
  EXPECT_EQ(windows.Start(1), 65);
  EXPECT_EQ(windows.Start(2), 130);
  const std::string single = Text(65);
  EXPECT_EQ(EvaluationWindows(single, 64).count(), 1);
  EXPECT_EQ(EvaluationWindows(single, 64).Start(0), 0);
}

TEST(EvaluationWindowsTest, RanksShareWindowsOnceAndMakeTheSamePasses) {
  const std::string text = Text(10 * 9);
  const EvaluationWindows windows(text, 8);
  ASSERT_EQ(windows.count(), 10);
  for (const int64_t world : {1, 2, 3, 4}) {
    const int64_t passes = windows.Passes(world, 2);
    EXPECT_EQ(passes, (10 + 2 * world - 1) / (2 * world));
    std::multiset<int32_t> firsts;
    int64_t counted = 0;
    for (int64_t rank = 0; rank < world; ++rank) {
      for (int64_t pass = 0; pass < passes; ++pass) {
        GptBatch batch(2, 8);
        windows.Fill(pass, rank, world, batch);
        for (int64_t sequence = 0; sequence < 2; ++sequence) {
          if (batch.targets[sequence * 8] < 0) continue;
          firsts.insert(batch.tokens[sequence * 8]);
          counted += 8;
        }
      }
    }
    EXPECT_EQ(firsts, (std::multiset<int32_t>{0, 9, 18, 27, 36, 45, 54, 63, 72, 81}));
    EXPECT_EQ(counted, 80);
  }
}

}  // namespace
}  // namespace tessera
