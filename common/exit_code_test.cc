#include "common/exit_code.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ExitCodeTest, FollowsTheConvention) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCode(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCode(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCode(absl::DeadlineExceededError("")), 3);
  EXPECT_EQ(ExitCode(absl::NotFoundError("")), 4);
  EXPECT_EQ(ExitCode(absl::AlreadyExistsError("")), 5);
  EXPECT_EQ(ExitCode(absl::FailedPreconditionError("")), 5);
}

}  // namespace
}  // namespace tessera
