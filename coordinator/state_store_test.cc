#include "coordinator/state_store.h"

#include "coordinator/fake_state_store.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

StoredJob Job(int64_t id, const std::string& name, int64_t step) {
  StoredJob job;
  job.id = id;
  job.job.set_name(name);
  job.job.set_step(step);
  return job;
}

v1::Worker Named(const std::string& incarnation) {
  v1::Worker worker;
  worker.set_incarnation(incarnation);
  return worker;
}

TEST(StateStoreTest, MergedChangesDoWhatTheTwoDoOneAfterTheOther) {
  StateChange first;
  first.jobs[1] = Job(1, "a", 5);
  first.jobs[2] = Job(2, "b", 5);
  first.members[1][0] = Named("old");
  first.members[1][1] = Named("old too");
  first.events[2][1].set_missed(3);
  first.requests["r"].method = "drain";
  first.last_generations["a"] = 1;
  first.last_job_id = 2;
  first.progress[9].set_step(1);  // there is no such job
  StateChange second;
  second.durable = true;
  second.jobs[1] = Job(1, "a", 6);
  second.progress[1].set_step(7);
  second.new_generations = {1};
  second.members[1][0] = Named("new");
  second.erased_jobs = {2};
  second.erased_requests = {"r"};
  second.last_generations["a"] = 2;

  StoredState apart;
  ApplyChange(first, &apart);
  ApplyChange(second, &apart);
  StateChange merged = first;
  MergeChange(second, &merged);
  StoredState together;
  ApplyChange(merged, &together);

  EXPECT_TRUE(merged.durable);
  for (const StoredState* state : {&apart, &together}) {
    ASSERT_EQ(state->jobs.size(), 1u);
    EXPECT_EQ(state->jobs.at(1).job.step(), 7);
    ASSERT_EQ(state->members.at(1).size(), 1u);
    EXPECT_EQ(state->members.at(1).at(0).incarnation(), "new");
    EXPECT_EQ(state->events.count(2), 0u);
    EXPECT_TRUE(state->requests.empty());
    EXPECT_EQ(state->last_generations.at("a"), 2);
    EXPECT_EQ(state->last_job_id, 2);
  }
}

TEST(StateStoreTest, OldestEventsGo) {
  StoredState state;
  StateChange change;
  for (int64_t cursor = 1; cursor <= kMaxStoredEvents + 5; ++cursor) change.events[7][cursor];
  ApplyChange(change, &state);
  EXPECT_EQ(state.events.at(7).begin()->first, 6);
  EXPECT_EQ(static_cast<int64_t>(state.events.at(7).size()), kMaxStoredEvents);
}

TEST(StateStoreTest, PowerTakesWhatIsNotDurable) {
  FakeStateStore store;
  StateChange change;
  change.jobs[1] = Job(1, "a", 1);
  change.durable = true;
  ASSERT_TRUE(store.Commit(change).ok());
  change.jobs[1] = Job(1, "a", 2);
  change.durable = false;
  ASSERT_TRUE(store.Commit(change).ok());
  EXPECT_EQ(store.Load()->jobs.at(1).job.step(), 2);
  store.LosePower();
  EXPECT_EQ(store.Load()->jobs.at(1).job.step(), 1);
}

TEST(StateStoreTest, AFailedCommitChangesNothing) {
  FakeStateStore store;
  StateChange change;
  change.jobs[1] = Job(1, "a", 1);
  store.Fail(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(store.Commit(change).message(), "the disk is full");
  store.Fail(absl::OkStatus());
  EXPECT_TRUE(store.Load()->jobs.empty());
}

}  // namespace
}  // namespace tessera
