#include "worker/steady_attendance.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "common/errors.h"
#include "worker/fake_membership_service.h"

namespace tessera {
namespace {

bool IsJoin(const v1::AttendRequest& request) { return request.has_join_rank(); }
bool IsExit(const v1::AttendRequest& request) { return request.has_worker_exited(); }
bool IsLeave(const v1::AttendRequest& request) { return request.has_leave(); }

class SteadyAttendanceTest : public testing::Test {
 protected:
  void Start() {
    attendance_ = std::make_unique<SteadyAttendance>(
        AttendClient::Options{.coordinator = service_.address()},
        SteadyAttendance::Handlers{
            .opening =
                [this](bool again) {
                  std::vector<v1::AttendRequest> opening(1);
                  opening[0].mutable_join_rank()->set_rejoin(again);
                  if (exited_) {
                    opening.emplace_back().mutable_worker_exited()->set_rank(3);
                  }
                  return opening;
                },
            .on_response = [](const v1::AttendResponse& response) { return !response.has_end(); },
            .on_away =
                [this](const absl::Status& status) {
                  if (!was_away_.exchange(true)) away_.set_value(status);
                },
            .on_done = [this](const absl::Status& status) { done_.set_value(status); }});
  }

  FakeMembershipService service_;
  std::atomic<bool> exited_{false}, was_away_{false};
  std::promise<absl::Status> away_, done_;
  std::unique_ptr<SteadyAttendance> attendance_;
};

TEST_F(SteadyAttendanceTest, OpensAnotherStreamWithWhatMustBeKnown) {
  Start();
  EXPECT_FALSE(service_.AwaitRequest(IsJoin).join_rank().rejoin());
  service_.Kill();
  EXPECT_EQ(away_.get_future().get().code(), absl::StatusCode::kUnavailable);
  exited_ = true;
  FakeMembershipService next(service_.address());
  EXPECT_TRUE(next.AwaitRequest(IsJoin).join_rank().rejoin());
  EXPECT_EQ(next.AwaitRequest(IsExit).worker_exited().rank(), 3);
  EXPECT_TRUE(attendance_->AwaitPresence(absl::Minutes(1)));
  attendance_.reset();
  EXPECT_EQ(done_.get_future().get().code(), absl::StatusCode::kCancelled);
}

TEST_F(SteadyAttendanceTest, SendsALeaveAgain) {
  Start();
  ASSERT_TRUE(attendance_->AwaitPresence(absl::Minutes(1)));
  service_.Kill();
  away_.get_future().wait();
  v1::Leave leave;
  leave.set_message("done");
  attendance_->Leave(leave);
  EXPECT_FALSE(attendance_->AwaitEnd(absl::Minutes(1), absl::Milliseconds(1)));
  FakeMembershipService next(service_.address());
  EXPECT_EQ(next.AwaitRequest(IsLeave).leave().message(), "done");
  EXPECT_TRUE(attendance_->AwaitEnd(absl::Minutes(1), absl::Minutes(1)));
  EXPECT_TRUE(done_.get_future().get().ok());
}

TEST_F(SteadyAttendanceTest, ARefusalIsFinal) {
  Start();
  service_.AwaitRequest(IsJoin);
  service_.FinishStreams(
      WithReason(absl::FailedPreconditionError("generation 1 is over"), "STALE_GENERATION"));
  const absl::Status done = done_.get_future().get();
  EXPECT_EQ(done.code(), absl::StatusCode::kFailedPrecondition) << done;
  EXPECT_EQ(Reason(done), "STALE_GENERATION");
}

TEST_F(SteadyAttendanceTest, NothingComesAfterTheLastMessage) {
  Start();
  service_.AwaitRequest(IsJoin);
  v1::AttendResponse end;
  end.mutable_end()->set_state(v1::FAILED);
  service_.Send(end);
  service_.FinishStreams(absl::UnavailableError("the coordinator is shutting down"));
  EXPECT_EQ(done_.get_future().get().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SteadyAttendanceTest, WaitsForACoordinatorThatIsNotThereYet) {
  service_.Kill();
  Start();
  EXPECT_FALSE(attendance_->AwaitPresence(absl::Milliseconds(1)));
  FakeMembershipService next(service_.address());
  EXPECT_TRUE(attendance_->AwaitPresence(absl::Minutes(1)));
}

}  // namespace
}  // namespace tessera
