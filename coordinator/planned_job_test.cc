#include "coordinator/planned_job.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// `units` units of about `unit_bytes` on two ranks.
JobPlan MakePlan(int units, int unit_bytes) {
  JobPlan planned;
  planned.plan.set_plan_fingerprint("p");
  planned.layout.set_layout_fingerprint("f");
  planned.layout.set_world_size(2);
  planned.layout.set_shard_count(2);
  planned.layout.set_replica_count(1);
  for (int unit = 0; unit < units; ++unit) {
    planned.plan.add_units()->set_fqn(absl::StrCat("h.", unit));
    planned.plan.mutable_units(unit)->set_class_name(std::string(unit_bytes, 'c'));
    planned.layout.add_units()->set_fqn(absl::StrCat("h.", unit));
  }
  for (int rank = 0; rank < 2; ++rank) {
    planned.forecast.add_ranks()->set_rank(rank);
    planned.forecast.mutable_ranks(rank)->set_mapped_bytes(8192 + 4096 * rank);
  }
  planned.forecast.add_hosts()->set_mapped_bytes(40960);
  return planned;
}

TEST(PlannedJobTest, SerializedPagesHoldEveryUnitOnceWithinOneMebibyte) {
  // Two units of 400 kB fit into 1,048,576 bytes, three do not.
  const PlannedJob job("gpt", MakePlan(5, 400000));
  std::string token;
  int next = 0;
  int pages = 0;
  do {
    const auto bytes = job.SerializedPage(token);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_LE((*bytes)->size(), static_cast<size_t>(kMaxPageBytes) + 256);
    v1::ListUnitsResponse page;
    ASSERT_TRUE(page.ParseFromString(**bytes));
    ASSERT_EQ(page.units_size(), page.layouts_size());
    for (int i = 0; i < page.units_size(); ++i, ++next) {
      EXPECT_EQ(page.units(i).fqn(), absl::StrCat("h.", next));
      EXPECT_EQ(page.layouts(i).fqn(), absl::StrCat("h.", next));
    }
    token = page.next_page_token();
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(next, 5);
  EXPECT_EQ(pages, 3);
}

TEST(PlannedJobTest, SerializedPagesAreSharedAndNotMadeAgain) {
  const PlannedJob job("gpt", MakePlan(2, 10));
  EXPECT_EQ(job.SerializedPage("")->get(), job.SerializedPage("")->get());
}

TEST(PlannedJobTest, AUnitLargerThanAPageGoesAlone) {
  const PlannedJob job("gpt", MakePlan(2, 3 << 20));
  v1::ListUnitsResponse page;
  ASSERT_TRUE(page.ParseFromString(**job.SerializedPage("")));
  EXPECT_EQ(page.units_size(), 1);
  EXPECT_NE(page.next_page_token(), "");
}

TEST(PlannedJobTest, PagesAreAsLongAsAskedFor) {
  const PlannedJob job("gpt", MakePlan(5, 10));
  auto page = job.Page(2, "");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->units_size(), 2);
  page = job.Page(3, page->next_page_token());
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->units_size(), 3);
  EXPECT_EQ(page->units(0).fqn(), "h.2");
  EXPECT_EQ(page->next_page_token(), "");
  EXPECT_EQ(job.Page(0, "")->units_size(), 5);
}

TEST(PlannedJobTest, RefusesTokensThatNoPageGave) {
  const PlannedJob job("gpt", MakePlan(5, 10));
  const PlannedJob other("bert", MakePlan(5, 10));
  const std::string of_other = other.Page(2, "")->next_page_token();
  for (const std::string& token :
       {std::string("x"), std::string("gpt/f/0"), std::string("gpt/f/5"), std::string("gpt/f/-1"),
        std::string("gpt/f/02"), std::string("gpt/f/ 2"), std::string("gpt/g/2"), of_other}) {
    EXPECT_EQ(Field(job.Page(0, token).status()), "page_token") << token;
    EXPECT_EQ(Field(job.SerializedPage(token).status()), "page_token") << token;
  }
  EXPECT_EQ(Field(job.Page(-1, "").status()), "page_size");
  // A page begins there in one list and not in the other.
  EXPECT_TRUE(job.Page(0, "gpt/f/2").ok());
  EXPECT_EQ(Field(job.SerializedPage("gpt/f/2").status()), "page_token");
}

TEST(PlannedJobTest, HeaderHasNoUnits) {
  const PlannedJob job("gpt", MakePlan(5, 10));
  const v1::GetPlanResponse header = job.Header();
  EXPECT_EQ(header.unit_count(), 5);
  EXPECT_EQ(header.plan().units_size(), 0);
  EXPECT_EQ(header.layout().units_size(), 0);
  EXPECT_EQ(header.plan().plan_fingerprint(), "p");
  EXPECT_EQ(header.layout().world_size(), 2);
  EXPECT_EQ(header.forecast().ranks_size(), 2);
}

TEST(PlannedJobTest, FormHostHasAnAssignmentForEachRank) {
  const PlannedJob job("gpt", MakePlan(1, 10));
  v1::JobSpec spec;
  spec.set_seed(9);
  const v1::FormHost form = job.Form(spec, 3, 0, {"node-a"});
  EXPECT_EQ(form.generation(), 3);
  EXPECT_EQ(form.spec().seed(), 9);
  EXPECT_EQ(form.layout().units_size(), 0);
  ASSERT_EQ(form.assignments_size(), 2);
  const v1::Assignment& last = form.assignments(1);
  EXPECT_EQ(last.job(), "gpt");
  EXPECT_EQ(last.generation(), 3);
  EXPECT_EQ(last.rank(), 1);
  EXPECT_EQ(last.world_size(), 2);
  EXPECT_EQ(last.shard_index(), 1);
  EXPECT_EQ(last.replica_index(), 0);
  EXPECT_EQ(last.local_rank_start(), 0);
  EXPECT_EQ(last.local_world_size(), 2);
  EXPECT_EQ(last.layout_fingerprint(), "f");
  EXPECT_EQ(form.host_forecast().mapped_bytes(), 40960);
  EXPECT_EQ(form.rank_forecasts_size(), 2);
  EXPECT_EQ(job.ForecastBytes(1), 8192 + 4096 + 40960);
}

// What all are told is serialized once, and what one host is told put behind it.
TEST(PlannedJobTest, TheTwoPartsOfAFormHostMakeIt) {
  const PlannedJob job("gpt", MakePlan(1, 10));
  v1::JobSpec spec;
  spec.set_seed(9);
  const std::vector<std::string> names = {"node-a", "node-b"};
  v1::FormHost parsed;
  ASSERT_TRUE(parsed.ParseFromString(job.FormOfAll(spec, 3, names).SerializeAsString() +
                                     job.FormOfHost(3, 0).SerializeAsString()));
  EXPECT_EQ(parsed.DebugString(), job.Form(spec, 3, 0, names).DebugString());
  EXPECT_EQ(parsed.host_names_size(), 2);
  EXPECT_EQ(parsed.assignments_size(), 2);
}

TEST(PlannedJobTest, AModelWithoutUnitsHasOneEmptyPage) {
  const PlannedJob job("gpt", MakePlan(0, 0));
  EXPECT_TRUE((*job.SerializedPage(""))->empty());
}

}  // namespace
}  // namespace tessera
