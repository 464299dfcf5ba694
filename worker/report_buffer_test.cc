#include "worker/report_buffer.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

v1::ReportStatsRequest Report(int64_t step, int unit, int64_t count) {
  v1::ReportStatsRequest report;
  report.set_job("job");
  report.set_step(step);
  v1::OperationSample* sample = report.add_samples();
  sample->set_unit(unit);
  sample->set_operation(v1::UNSHARD);
  sample->set_count(count);
  report.add_progress()->set_step(step);
  return report;
}

TEST(ReportBufferTest, NewerSamplesReplaceOlderAndProgressIsKept) {
  ReportBuffer buffer;
  EXPECT_TRUE(buffer.empty());
  buffer.Add(Report(1, 0, 10));
  buffer.Add(Report(2, 1, 20));
  buffer.Add(Report(3, 0, 30));
  EXPECT_FALSE(buffer.empty());
  const v1::ReportStatsRequest all = buffer.Take();
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(all.job(), "job");
  EXPECT_EQ(all.step(), 3);
  ASSERT_EQ(all.samples_size(), 2);
  EXPECT_EQ(all.samples(0).unit(), 0);
  EXPECT_EQ(all.samples(0).count(), 30);
  EXPECT_EQ(all.samples(1).unit(), 1);
  EXPECT_EQ(all.samples(1).count(), 20);
  ASSERT_EQ(all.progress_size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(all.progress(i).step(), i + 1);
}

TEST(ReportBufferTest, OperationsOfOneUnitAreApart) {
  ReportBuffer buffer;
  v1::ReportStatsRequest report = Report(1, 0, 10);
  *report.add_samples() = report.samples(0);
  report.mutable_samples(1)->set_operation(v1::REDUCE);
  buffer.Add(report);
  EXPECT_EQ(buffer.Take().samples_size(), 2);
}

TEST(ReportBufferTest, WhatIsPutBackIsOlderThanWhatWasAddedSince) {
  ReportBuffer buffer;
  buffer.Add(Report(1, 0, 10));
  v1::ReportStatsRequest lost = buffer.Take();
  buffer.Add(Report(2, 0, 20));
  buffer.PutBack(std::move(lost));
  const v1::ReportStatsRequest all = buffer.Take();
  EXPECT_EQ(all.step(), 2);
  ASSERT_EQ(all.samples_size(), 1);
  EXPECT_EQ(all.samples(0).count(), 20);
  ASSERT_EQ(all.progress_size(), 2);
  EXPECT_EQ(all.progress(0).step(), 1);
  EXPECT_EQ(all.progress(1).step(), 2);
}

TEST(ReportBufferTest, AFigureThatAReportDoesNotHaveIsUnchanged) {
  ReportBuffer buffer;
  v1::ReportStatsRequest first;
  first.set_measured_bytes(4096);
  first.set_step(7);
  buffer.Add(first);
  buffer.Add(v1::ReportStatsRequest());
  const v1::ReportStatsRequest all = buffer.Take();
  EXPECT_EQ(all.measured_bytes(), 4096);
  EXPECT_EQ(all.step(), 7);
}

TEST(ReportBufferTest, KeepsTheLastThousandLines) {
  ReportBuffer buffer;
  for (int step = 1; step <= 1500; ++step) buffer.Add(Report(step, 0, step));
  v1::ReportStatsRequest lost = buffer.Take();
  ASSERT_EQ(lost.progress_size(), 1000);
  EXPECT_EQ(lost.progress(0).step(), 501);
  buffer.Add(Report(1501, 0, 1501));
  buffer.PutBack(std::move(lost));
  const v1::ReportStatsRequest all = buffer.Take();
  ASSERT_EQ(all.progress_size(), 1000);
  EXPECT_EQ(all.progress(0).step(), 502);
  EXPECT_EQ(all.progress(999).step(), 1501);
}

}  // namespace
}  // namespace tessera
