#include "coordinator/event_log.h"

#include <memory>
#include <string>

#include "common/errors.h"
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
  EventLog log("17");
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
  EventLog log("17");
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
  EventLog log("17", /*max_events=*/2);
  for (int64_t step = 1; step <= 5; ++step) log.Append(Step(step));
  const EventLog::Batch batch = log.Read(0, 10);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].progress().step(), 4);
  EXPECT_EQ(batch.next, 5);
  EXPECT_EQ(batch.events[0].missed(), 3);
  EXPECT_EQ(batch.events[1].missed(), 0);
}

// What a watcher has that reads one event a stream and then goes on with the event's token.
TEST(EventLogTest, ATokenGoesOnBehindItsEvent) {
  EventLog log("17");
  for (int64_t step = 1; step <= 3; ++step) log.Append(Step(step));
  std::string token;
  for (int64_t step = 1; step <= 3; ++step) {
    const auto cursor = log.CursorOf(token);
    ASSERT_TRUE(cursor.ok()) << cursor.status();
    const EventLog::Batch batch = log.Read(*cursor, 1);
    ASSERT_EQ(batch.events.size(), 1u);
    EXPECT_EQ(batch.events[0].progress().step(), step);
    EXPECT_EQ(batch.events[0].missed(), 0);
    token = batch.events[0].resume_token();
  }
  EXPECT_TRUE(log.Read(*log.CursorOf(token), 1).events.empty());
}

TEST(EventLogTest, ATokenWhoseFollowersWereDroppedSaysHowManyWereMissed) {
  EventLog log("17", /*max_events=*/2);
  log.Append(Step(1));
  const std::string token = log.Read(0, 1).events[0].resume_token();
  for (int64_t step = 2; step <= 9; ++step) log.Append(Step(step));
  const EventLog::Batch batch = log.Read(*log.CursorOf(token), 10);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].progress().step(), 8);
  EXPECT_EQ(batch.events[0].missed(), 6);  // steps 2 to 7
}

TEST(EventLogTest, RefusesATokenThatItDidNotMake) {
  EventLog log("17");
  EXPECT_EQ(*log.CursorOf(""), 0);
  log.Append(Step(1));
  EXPECT_EQ(log.Read(0, 1).events[0].resume_token(), "17.1");
  for (const std::string token : {"17", "17.", ".1", ".", "17.0", "17.-1", "17.01", "17. 1",
                                  "17.1.1", "17.2", "x", "17.x", "17.99999999999999999999"}) {
    const auto cursor = log.CursorOf(token);
    EXPECT_EQ(cursor.status().code(), absl::StatusCode::kInvalidArgument) << token;
    EXPECT_EQ(Field(cursor.status()), "resume_token") << token;
  }
  EXPECT_EQ(log.CursorOf("16.1").status().code(), absl::StatusCode::kNotFound);
}

TEST(EventLogTest, WakesWatchersThatAreStillThere) {
  EventLog log("17");
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
