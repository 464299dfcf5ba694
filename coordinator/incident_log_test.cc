#include "coordinator/incident_log.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

v1::Incident Say(const std::string& message) {
  v1::Incident incident;
  incident.set_kind(v1::Incident::LOST);
  incident.set_message(message);
  return incident;
}

TEST(IncidentLogTest, NumbersFromOneInOrder) {
  IncidentLog log;
  EXPECT_EQ(log.last_number(), 0);
  EXPECT_EQ(log.Add(Say("a")), 1);
  v1::Incident numbered = Say("b");
  numbered.set_number(70);  // the log's own numbers count
  EXPECT_EQ(log.Add(numbered), 2);
  const IncidentLog::Page page = log.Read(0, 10);
  ASSERT_EQ(page.incidents.size(), 2u);
  EXPECT_EQ(page.incidents[0].number(), 1);
  EXPECT_EQ(page.incidents[0].message(), "a");
  EXPECT_EQ(page.incidents[1].number(), 2);
  EXPECT_FALSE(page.more);
}

TEST(IncidentLogTest, KeepsTheLastOfTooMany) {
  IncidentLog log(/*max_incidents=*/3);
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(log.Add(Say(absl::StrCat("m", i))), i);
  const IncidentLog::Page page = log.Read(0, 10);
  ASSERT_EQ(page.incidents.size(), 3u);
  EXPECT_EQ(page.incidents[0].number(), 3);
  EXPECT_EQ(page.incidents[0].message(), "m3");
  EXPECT_EQ(log.Find(2), nullptr);
  EXPECT_EQ(log.SetOutcome(2, "too late"), nullptr);
  EXPECT_EQ(log.last_number(), 5);
}

TEST(IncidentLogTest, KeepsAThousandUnlessTold) {
  IncidentLog log;
  for (int i = 1; i <= 1001; ++i) log.Add(Say(""));
  EXPECT_EQ(log.Find(1), nullptr);
  ASSERT_NE(log.Find(2), nullptr);
  EXPECT_EQ(log.Read(0, 5000).incidents.size(), 1000u);
}

TEST(IncidentLogTest, ReadsInPages) {
  IncidentLog log;
  for (int i = 1; i <= 5; ++i) log.Add(Say(""));
  IncidentLog::Page page = log.Read(0, 2);
  ASSERT_EQ(page.incidents.size(), 2u);
  EXPECT_TRUE(page.more);
  page = log.Read(2, 2);
  EXPECT_EQ(page.incidents[0].number(), 3);
  EXPECT_TRUE(page.more);
  page = log.Read(4, 2);
  ASSERT_EQ(page.incidents.size(), 1u);
  EXPECT_EQ(page.incidents[0].number(), 5);
  EXPECT_FALSE(page.more);
  EXPECT_TRUE(log.Read(5, 2).incidents.empty());
}

TEST(IncidentLogTest, OutcomesComeLater) {
  IncidentLog log;
  log.Add(Say("a"));
  log.Add(Say("b"));
  const v1::Incident* incident = log.SetOutcome(1, "generation 2 began after 1.2s");
  ASSERT_NE(incident, nullptr);
  EXPECT_EQ(incident->message(), "a");
  EXPECT_EQ(log.Find(1)->outcome(), "generation 2 began after 1.2s");
  EXPECT_EQ(log.Find(2)->outcome(), "");
  EXPECT_EQ(log.SetOutcome(0, "x"), nullptr);
  EXPECT_EQ(log.SetOutcome(3, "x"), nullptr);
}

// A coordinator that was started again goes on counting.
TEST(IncidentLogTest, RestoresNumbers) {
  IncidentLog log;
  v1::Incident old = Say("old");
  old.set_number(41);
  log.Restore(old);
  log.Restore(old);  // said twice
  EXPECT_EQ(log.Add(Say("new")), 42);
  const IncidentLog::Page page = log.Read(0, 10);
  ASSERT_EQ(page.incidents.size(), 2u);
  EXPECT_EQ(page.incidents[0].message(), "old");
}

}  // namespace
}  // namespace tessera
