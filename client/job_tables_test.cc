#include "client/job_tables.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ProgressLineTest, ShowsValOnlyWhereEvaluated) {
  v1::Progress progress;
  progress.set_step(100);
  progress.set_steps(600);
  progress.set_loss(2.4712);
  progress.set_tokens_per_second(14209.7);
  EXPECT_EQ(ProgressLine(progress), "step 100/600 loss 2.471 tokens/s 14210");
  progress.set_val_loss(2.9018);
  EXPECT_EQ(ProgressLine(progress), "step 100/600 loss 2.471 val 2.902 tokens/s 14210");
  progress.clear_tokens_per_second();
  EXPECT_EQ(ProgressLine(progress), "step 100/600 loss 2.471 val 2.902");
}

TEST(ProgressLineTest, ShowsTheTimeLeftAtTheEndWhereItIsKnown) {
  v1::Progress progress;
  progress.set_step(100);
  progress.set_steps(600);
  progress.set_loss(2);
  progress.set_tokens_per_second(14210);
  progress.mutable_time_left()->set_seconds(11);
  progress.mutable_time_left()->set_nanos(200'000'000);
  EXPECT_EQ(ProgressLine(progress), "step 100/600 loss 2.000 tokens/s 14210 left 12s");
}

v1::Incident Stuck() {
  v1::Incident incident;
  incident.set_number(2);
  incident.set_kind(v1::Incident::STUCK);
  incident.mutable_time()->set_seconds(1700000000);
  incident.set_generation(1);
  incident.set_step(12);
  incident.set_message("rank 1 on host a is lost");
  return incident;
}

TEST(IncidentLineTest, SaysWhatHappenedAndThenWhatFollowed) {
  v1::Incident incident = Stuck();
  EXPECT_EQ(IncidentLine(incident), "incident 2 STUCK: rank 1 on host a is lost");
  incident.set_outcome("generation 2 began after 1.2s");
  EXPECT_EQ(IncidentLine(incident), "incident 2 STUCK: generation 2 began after 1.2s");
}

TEST(IncidentsTextTest, ShowsEachWithItsOutcomeAndPositions) {
  EXPECT_EQ(IncidentsText({}), "no incidents\n");
  v1::Incident second = Stuck();
  second.set_number(3);
  second.set_outcome("the job FAILED after 0.0s");
  second.add_positions("rank 0: waits in reduce of unit h.0");
  EXPECT_EQ(IncidentsText({Stuck(), second}),
            "2 STUCK at 2023-11-14 22:13:20, generation 1, step 12\n"
            "  rank 1 on host a is lost\n"
            "\n"
            "3 STUCK at 2023-11-14 22:13:20, generation 1, step 12\n"
            "  rank 1 on host a is lost\n"
            "  outcome: the job FAILED after 0.0s\n"
            "  rank 0: waits in reduce of unit h.0\n");
}

TEST(TimeLeftTextTest, HasTwoUnitsAtMost) {
  EXPECT_EQ(TimeLeftText(absl::ZeroDuration()), "1s");
  EXPECT_EQ(TimeLeftText(absl::Milliseconds(1001)), "2s");
  EXPECT_EQ(TimeLeftText(absl::Seconds(60)), "1m");
  EXPECT_EQ(TimeLeftText(absl::Seconds(69)), "1m9s");
  EXPECT_EQ(TimeLeftText(absl::Seconds(3600)), "1h");
  EXPECT_EQ(TimeLeftText(absl::Seconds(7441)), "2h5m");
  EXPECT_EQ(TimeLeftText(absl::Hours(26)), "26h");
}

TEST(AgeTextTest, HasOneUnit) {
  EXPECT_EQ(AgeText(absl::Seconds(-3)), "0s");
  EXPECT_EQ(AgeText(absl::Seconds(119)), "119s");
  EXPECT_EQ(AgeText(absl::Seconds(120)), "2m");
  EXPECT_EQ(AgeText(absl::Minutes(119)), "119m");
  EXPECT_EQ(AgeText(absl::Hours(47)), "47h");
  EXPECT_EQ(AgeText(absl::Hours(48)), "2d");
}

TEST(JobsTableTest, ShowsEachJobAndItsAgeByTheCoordinatorsClock) {
  v1::ListJobsResponse jobs;
  EXPECT_EQ(JobsTable(jobs), "NAME  STATE  STEP  LOSS  AGE\n");
  jobs.mutable_read_time()->set_seconds(1000);
  v1::Job* job = jobs.add_jobs();
  job->set_name("gpt-large");
  job->set_state(v1::RUNNING);
  job->set_step(120);
  job->set_steps(600);
  job->set_loss(2.4712);
  job->mutable_create_time()->set_seconds(910);
  job = jobs.add_jobs();
  job->set_name("b");
  job->set_state(v1::FORMING);
  job->set_steps(5);
  job->mutable_create_time()->set_seconds(400);
  EXPECT_EQ(JobsTable(jobs),
            "NAME       STATE       STEP   LOSS  AGE\n"
            "gpt-large  RUNNING  120/600  2.471  90s\n"
            "b          FORMING      0/5      -  10m\n");
}

}  // namespace
}  // namespace tessera
