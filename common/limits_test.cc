#include "common/limits.h"

#include <string>

#include "common/errors.h"
#include "common/simulated_clock.h"
#include "gtest/gtest.h"
#include "tessera/v1/job_service.pb.h"

namespace tessera {
namespace {

TEST(LimitsTest, AStringThatIsTooLongIsNamedByItsPath) {
  v1::CreateJobRequest request;
  request.mutable_spec()->mutable_wrap()->add_wrap_classes("Block");
  v1::Module* root = request.mutable_spec()->mutable_model()->mutable_spec()->mutable_root();
  root->add_children()->set_name("a");
  root->add_children()->set_name("12345");
  EXPECT_TRUE(CheckMessage(request, {.max_string_bytes = 5}).ok());
  const absl::Status status = CheckMessage(request, {.max_string_bytes = 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Reason(status), "LIMIT_EXCEEDED");
  EXPECT_EQ(Limit(status), "max_string_bytes=4");
  EXPECT_EQ(status.message(),
            "spec.model.spec.root.children[1].name has 5 bytes; the limit max_string_bytes is 4");
}

TEST(LimitsTest, ModulesAreCountedOverAllOfAModel) {
  v1::CreateJobRequest request;
  v1::Module* root = request.mutable_spec()->mutable_model()->mutable_spec()->mutable_root();
  root->add_children()->add_children();
  root->add_children();
  EXPECT_TRUE(CheckMessage(request, {.max_modules = 4}).ok());
  const absl::Status status = CheckMessage(request, {.max_modules = 3});
  EXPECT_EQ(Limit(status), "max_modules=3");
  EXPECT_EQ(status.message(),
            "spec.model.spec.root.children[1] is module 4; the limit max_modules is 3");
}

class CallerLimitsTest : public testing::Test {
 protected:
  SimulatedClock clock_;
  CallerLimits limits_{{.clock = &clock_,
                        .max_requests_in_flight = 2,
                        .max_requests_per_second = 10,
                        .max_streams = 1}};
};

TEST_F(CallerLimitsTest, CountsCallsInFlightOfEachCaller) {
  EXPECT_TRUE(limits_.Begin("a", false).ok());
  EXPECT_TRUE(limits_.Begin("a", false).ok());
  EXPECT_EQ(Limit(limits_.Begin("a", false)), "max_requests_in_flight=2");
  EXPECT_TRUE(limits_.Begin("b", false).ok());
  limits_.End("a", false);
  EXPECT_TRUE(limits_.Begin("a", false).ok());
}

TEST_F(CallerLimitsTest, StreamsAreCountedByThemselves) {
  EXPECT_TRUE(limits_.Begin("a", true).ok());
  EXPECT_EQ(Limit(limits_.Begin("a", true)), "max_streams=1");
  EXPECT_TRUE(limits_.Begin("a", false).ok());
  limits_.End("a", true);
  EXPECT_TRUE(limits_.Begin("a", true).ok());
}

TEST_F(CallerLimitsTest, CallsOfASecondComeBackWithTime) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(limits_.Begin("a", false).ok()) << i;
    limits_.End("a", false);
  }
  EXPECT_EQ(Limit(limits_.Begin("a", false)), "max_requests_per_second=10");
  clock_.Advance(absl::Milliseconds(250));  // 2.5 calls
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(limits_.Begin("a", false).ok()) << i;
    limits_.End("a", false);
  }
  EXPECT_FALSE(limits_.Begin("a", false).ok());
  // No more than a second's worth is saved up.
  clock_.Advance(absl::Seconds(100));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(limits_.Begin("a", false).ok()) << i;
    limits_.End("a", false);
  }
  EXPECT_FALSE(limits_.Begin("a", false).ok());
}

TEST_F(CallerLimitsTest, ForgetsWhoIsQuiet) {
  EXPECT_TRUE(limits_.Begin("stays", true).ok());
  for (int i = 0; i < 5000; ++i) {
    const std::string caller = std::to_string(i);
    EXPECT_TRUE(limits_.Begin(caller, false).ok());
    limits_.End(caller, false);
    clock_.Advance(absl::Milliseconds(10));
  }
  EXPECT_LE(limits_.callers(), 1100);
  EXPECT_FALSE(limits_.Begin("stays", true).ok());
}

}  // namespace
}  // namespace tessera
