#include "worker/session_trace.h"

#include <map>
#include <utility>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// Counts and times of what was recorded, by unit and operation.
std::map<std::pair<int, v1::Operation>, v1::OperationSample> Taken(StatsRecorder& stats) {
  std::map<std::pair<int, v1::Operation>, v1::OperationSample> taken;
  for (v1::OperationSample& sample : stats.TakeChanged()) {
    const std::pair<int, v1::Operation> place(sample.unit(), sample.operation());
    taken[place] = std::move(sample);
  }
  return taken;
}

// As long as `us` says, at least.
void Compute(double us) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double, std::micro>(us);
  while (std::chrono::steady_clock::now() < until) {
  }
}

class SessionTraceTest : public ::testing::Test {
 protected:
  void Unshard(int unit, v1::Operation operation, bool record = true) {
    SessionTrace::Call call(trace_, v1::WORKING, unit, v1::UNSHARD);
    Compute(400);  // waiting for the others is not the program's time
    call.Computes(unit, operation, record);
  }

  PositionPublisher position_;
  StatsRecorder stats_{/*units=*/2};
  SessionTrace trace_{&position_, &stats_};
};

TEST_F(SessionTraceTest, CountsTheProgramsTimeOnAUnit) {
  Unshard(0, v1::FORWARD);
  Compute(300);
  Unshard(1, v1::FORWARD);
  Compute(100);
  { const SessionTrace::Call call(trace_, v1::WORKING, 1, v1::REDUCE); }
  Compute(500);  // on no unit
  { const SessionTrace::Call call(trace_, v1::WORKING, "the end of the step"); }
  auto taken = Taken(stats_);
  ASSERT_EQ(taken.size(), 2u);
  const v1::OperationSample& first = taken[{0, v1::FORWARD}];
  EXPECT_EQ(first.count(), 1);
  EXPECT_GE(first.total_us(), 300);
  const v1::OperationSample& second = taken[{1, v1::FORWARD}];
  EXPECT_EQ(second.count(), 1);
  EXPECT_GE(second.total_us(), 100);
}

// A backward asks for each gradient; that is part of it, but for what the call itself takes.
TEST_F(SessionTraceTest, GradientsDoNotEndABackward) {
  Unshard(1, v1::BACKWARD);
  Compute(100);
  const auto before = std::chrono::steady_clock::now();
  {
    const SessionTrace::Call call(trace_);
    Compute(20000);
  }
  const double call_us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count();
  Compute(100);
  const auto began = std::chrono::steady_clock::now();
  { const SessionTrace::Call call(trace_, v1::WORKING, 1, v1::REDUCE); }
  auto taken = Taken(stats_);
  ASSERT_EQ(taken.size(), 1u);
  const v1::OperationSample& backward = taken[{1, v1::BACKWARD}];
  EXPECT_EQ(backward.count(), 1);
  EXPECT_GE(backward.total_us(), 200);
  // Whatever else the machine did: the call is not in it.
  const double since_us = std::chrono::duration<double, std::micro>(began - before).count() + 1e5;
  EXPECT_LT(backward.total_us(), since_us - call_us + 1e5);
}

TEST_F(SessionTraceTest, EvaluationIsNotRecorded) {
  Unshard(0, v1::FORWARD, /*record=*/false);
  Unshard(1, v1::FORWARD, /*record=*/false);
  EXPECT_TRUE(Taken(stats_).empty());
}

TEST_F(SessionTraceTest, SaysWhereTheRankIs) {
  trace_.SetStep(7);
  {
    const SessionTrace::Call call(trace_, v1::WORKING, "the end of the step");
    EXPECT_EQ(position_.Read().what(), "the end of the step");
    trace_.Does(v1::WORKING, 1, v1::OPTIMIZER);
    EXPECT_EQ(position_.Read().operation(), v1::OPTIMIZER);
    // A call within a call says nothing of its own.
    const SessionTrace::Call inner(trace_, v1::SAVING, "inner");
    EXPECT_EQ(position_.Read().operation(), v1::OPTIMIZER);
  }
  EXPECT_EQ(position_.Read().activity(), v1::COMPUTING);
  EXPECT_EQ(position_.Read().unit(), -1);
  EXPECT_EQ(position_.Read().step(), 7);
  Unshard(1, v1::FORWARD);
  EXPECT_EQ(position_.Read().activity(), v1::COMPUTING);
  EXPECT_EQ(position_.Read().unit(), 1);
  EXPECT_EQ(position_.Read().operation(), v1::FORWARD);
  {
    const SessionTrace::Call call(trace_);
    EXPECT_EQ(position_.Read().unit(), 1);
  }
  EXPECT_EQ(position_.Read().unit(), 1);
}

TEST_F(SessionTraceTest, WorksWithoutAPublisher) {
  SessionTrace trace(nullptr, &stats_);
  trace.SetStep(1);
  trace.Does(v1::WORKING, 0, v1::OPTIMIZER);
  {
    SessionTrace::Call call(trace, v1::WORKING, 0, v1::UNSHARD);
    call.Computes(0, v1::FORWARD);
  }
  { const SessionTrace::Call call(trace, v1::WORKING, "x"); }
  EXPECT_EQ(Taken(stats_).size(), 1u);
}

}  // namespace
}  // namespace tessera
