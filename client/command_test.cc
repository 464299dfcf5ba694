#include "client/command.h"

#include <cstdlib>

#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/v1/plan_service.pb.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReportTest, WritesOneLine) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Report(absl::InvalidArgumentError("a\nb")), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tessera: a b\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(Report(absl::OkStatus()), 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ReportTest, TellsWhyAJobDidNotSucceed) {
  v1::Job job;
  job.set_name("gpt");
  job.set_state(v1::FAILED);
  job.set_step(7);
  job.set_steps(600);
  job.set_reason("rank 1 was killed by signal 9");
  testing::internal::CaptureStderr();
  EXPECT_EQ(ReportEnded(job), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tessera: job gpt FAILED at step 7/600: rank 1 was killed by signal 9\n");
  job.set_state(v1::SUCCEEDED);
  EXPECT_EQ(ReportEnded(job), 0);
}

TEST(ToJsonTest, PrintsDefaultsButNotWhatIsAbsent) {
  v1::Job job;
  job.set_name("gpt");
  job.set_state(v1::RUNNING);
  job.set_step(120);
  const std::string json = ToJson(job).value();
  EXPECT_THAT(json, HasSubstr(R"("state": "RUNNING")"));
  EXPECT_THAT(json, HasSubstr(R"("reason": "")"));
  EXPECT_THAT(json, HasSubstr(R"("step": "120")"));
  EXPECT_THAT(json, Not(HasSubstr("failed_rank")));
  job.set_failed_rank(0);
  EXPECT_THAT(ToJson(job).value(), HasSubstr(R"("failed_rank": 0)"));
}

TEST(ToJsonTest, PrintsEmptyListsAndUnprefixedEnums) {
  v1::CreatePlanResponse plan;
  v1::Unit* unit = plan.mutable_plan()->add_units();
  unit->set_param_dtype(v1::BFLOAT16);
  const std::string json = ToJson(plan).value();
  EXPECT_THAT(json, HasSubstr(R"("orphans": [])"));
  EXPECT_THAT(json, HasSubstr(R"("param_dtype": "BFLOAT16")"));
  EXPECT_THAT(json, Not(HasSubstr("fits")));
}

TEST(CoordinatorAddressTest, PrefersTheFlag) {
  setenv("TESSERA_COORDINATOR", "10.0.0.1:1", 1);
  EXPECT_EQ(CoordinatorAddress("localhost:4020").value(), "localhost:4020");
  EXPECT_EQ(CoordinatorAddress("").value(), "10.0.0.1:1");
  unsetenv("TESSERA_COORDINATOR");
  EXPECT_TRUE(absl::IsInvalidArgument(CoordinatorAddress("").status()));
}

TEST(CoordinatorAddressTest, RefusesWhatIsNoAddress) {
  for (const char* address : {"localhost", ":4020", "h:65536", "http://127.0.0.1:4020"}) {
    const auto result = CoordinatorAddress(address);
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << address;
    EXPECT_EQ(Field(result.status()), "--coordinator");
  }
}

}  // namespace
}  // namespace tessera
