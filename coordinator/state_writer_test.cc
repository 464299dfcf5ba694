#include "coordinator/state_writer.h"

#include "coordinator/fake_state_store.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

StateChange StepOf(int64_t id, int64_t step) {
  StateChange change;
  change.jobs[id].id = id;
  change.jobs[id].job.set_step(step);
  return change;
}

const absl::Status kFull = absl::ResourceExhaustedError("the disk is full");

TEST(StateWriterTest, WritesAllThatWasAddedAtOnce) {
  FakeStateStore store;
  StateWriter writer(&store);
  writer.Add(StepOf(1, 5));
  writer.Add(StepOf(2, 6));
  writer.Add(StepOf(1, 7));
  EXPECT_TRUE(store.Load()->jobs.empty());
  EXPECT_TRUE(writer.Write().ok());
  EXPECT_EQ(store.commits(), 1);
  EXPECT_EQ(store.Load()->jobs.at(1).job.step(), 7);
  EXPECT_EQ(store.Load()->jobs.at(2).job.step(), 6);
  EXPECT_TRUE(writer.Write().ok());
  EXPECT_EQ(store.commits(), 1);
}

TEST(StateWriterTest, WhatCouldNotBeWrittenGoesWithTheNextAttempt) {
  FakeStateStore store;
  StateWriter writer(&store);
  store.Fail(kFull);
  writer.Add(StepOf(1, 5));
  EXPECT_EQ(writer.Write(), kFull);
  writer.Add(StepOf(1, 6));
  writer.Add(StepOf(2, 1));
  EXPECT_EQ(writer.Write(), kFull);
  store.Fail(absl::OkStatus());
  EXPECT_TRUE(writer.Write().ok());
  EXPECT_EQ(store.Load()->jobs.at(1).job.step(), 6);
  EXPECT_EQ(store.Load()->jobs.at(2).job.step(), 1);
}

TEST(StateWriterTest, AChangeThatIsRefusedLeavesNoTrace) {
  FakeStateStore store;
  StateWriter writer(&store);
  writer.Add(StepOf(1, 5));
  store.Fail(kFull);
  EXPECT_EQ(writer.WriteWith(StepOf(2, 1)), kFull);
  store.Fail(absl::OkStatus());
  EXPECT_TRUE(writer.Write().ok());
  EXPECT_EQ(store.Load()->jobs.size(), 1u);
  EXPECT_TRUE(writer.WriteWith(StepOf(2, 1)).ok());
  EXPECT_EQ(store.Load()->jobs.size(), 2u);
}

TEST(StateWriterTest, LeavesAFullDiskAloneForAWhile) {
  FakeStateStore store;
  StateWriter writer(&store);
  absl::Time now = absl::UnixEpoch();
  store.Fail(kFull);
  writer.Add(StepOf(1, 5));
  writer.TryWrite(now);
  store.Fail(absl::OkStatus());
  writer.TryWrite(now + StateWriter::kPause - absl::Milliseconds(1));
  EXPECT_EQ(store.commits(), 0);
  writer.TryWrite(now + StateWriter::kPause);
  EXPECT_EQ(store.commits(), 1);
  // And none at all after a success.
  writer.Add(StepOf(1, 6));
  writer.TryWrite(now + StateWriter::kPause);
  EXPECT_EQ(store.commits(), 2);
}

TEST(StateWriterTest, WithoutAStoreNothingIsKeptAndAllIsWell) {
  StateWriter writer(nullptr);
  writer.Add(StepOf(1, 5));
  writer.TryWrite(absl::UnixEpoch());
  EXPECT_TRUE(writer.WriteWith(StepOf(2, 1)).ok());
  EXPECT_FALSE(writer.keeps());
}

}  // namespace
}  // namespace tessera
