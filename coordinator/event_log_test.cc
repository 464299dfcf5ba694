#include "coordinator/event_log.h"

#include <memory>

#include "gtest/gtest.h"

namespace tessera {
namespace {

v1::WatchJobResponse Step(int64_t step) {
  v1::WatchJobResponse event;
  event.mutable_progress()->set_step(step);
  return event;
}

class CountingWatcher final : public JobWatcher {
 public:
  void Wake() override { ++wakes; }
  int wakes = 0;
};

TEST(EventLogTest, ReadsOnFromTheCursor) {
  EventLog log;
  for (int64_t step = 1; step <= 3; ++step) log.Append(Step(step));
  EventLog::Batch batch = log.Read(0, 2);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].progress().step(), 1);
  EXPECT_EQ(batch.events[1].progress().step(), 2);
  EXPECT_FALSE(batch.end);
  batch = log.Read(batch.next, 2);
  ASSERT_EQ(batch.events.size(), 1u);
  EXPECT_EQ(batch.events[0].progress().step(), 3);
  EXPECT_TRUE(log.Read(batch.next, 2).events.empty());
}

TEST(EventLogTest, EndsOnlyAfterTheLastEventWasRead) {
  EventLog log;
  log.Append(Step(1));
  log.Append(Step(2));
  log.Close();
  log.Append(Step(3));  // nothing comes after the end
  EXPECT_FALSE(log.Read(0, 1).end);
  const EventLog::Batch last = log.Read(1, 1);
  EXPECT_EQ(last.events[0].progress().step(), 2);
  EXPECT_TRUE(last.end);
}

TEST(EventLogTest, KeepsTheNewestAndALateWatcherBeginsThere) {
  EventLog log(/*max_events=*/2);
  for (int64_t step = 1; step <= 5; ++step) log.Append(Step(step));
  const EventLog::Batch batch = log.Read(0, 10);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].progress().step(), 4);
  EXPECT_EQ(batch.next, 5);
}

TEST(EventLogTest, WakesWatchersThatAreStillThere) {
  EventLog log;
  auto stays = std::make_shared<CountingWatcher>();
  auto goes = std::make_shared<CountingWatcher>();
  log.AddWatcher(stays);
  log.AddWatcher(goes);
  goes.reset();
  log.Wake();
  EXPECT_EQ(stays->wakes, 1);
}

}  // namespace
}  // namespace tessera
