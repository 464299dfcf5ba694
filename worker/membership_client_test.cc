#include "worker/membership_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/unique_fd.h"
#include "worker/fake_membership_service.h"

namespace tessera {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

v1::Welcome WelcomeWithHeartbeat(absl::Duration period) {
  v1::Welcome welcome;
  welcome.mutable_heartbeat()->set_seconds(period / absl::Seconds(1));
  welcome.mutable_heartbeat()->set_nanos(
      static_cast<int32_t>((period % absl::Seconds(1)) / absl::Nanoseconds(1)));
  return welcome;
}

v1::JoinRank RankOne() {
  v1::JoinRank join;
  join.set_job("job");
  join.set_generation(1);
  join.set_rank(1);
  join.set_incarnation("abc");
  join.set_pid(42);
  return join;
}

v1::ReportStatsRequest ReportOfStep(int64_t step) {
  v1::ReportStatsRequest report;
  report.set_step(step);
  report.add_progress()->set_step(step);
  return report;
}

class MembershipClientTest : public testing::Test {
 protected:
  MembershipClientTest() {
    service_.WelcomeJoins(WelcomeWithHeartbeat(absl::Hours(1)));
    client_ = CreateMembershipClient(service_.address());
  }

  // Joins; `end_` becomes what on_end was called with.
  absl::Status Join(absl::Duration timeout = kLong) {
    return client_->JoinRank(RankOne(), timeout, [this](const absl::Status& status) {
      ++ends_;
      end_.set_value(status);
    });
  }

  FakeMembershipService service_;
  std::promise<absl::Status> end_;
  std::atomic<int> ends_ = 0;
  std::unique_ptr<MembershipClient> client_;
};

TEST_F(MembershipClientTest, JoinsTheRankAndStartsWhenEveryRankIsReady) {
  ASSERT_TRUE(Join().ok());
  const v1::AttendRequest join = service_.AwaitRequest([](auto& r) { return r.has_join_rank(); });
  EXPECT_EQ(join.join_rank().job(), "job");
  EXPECT_EQ(join.join_rank().rank(), 1);
  EXPECT_EQ(join.join_rank().incarnation(), "abc");

  std::thread coordinator([this] {
    const auto ready = service_.AwaitRequest([](auto& r) { return r.has_rank_ready(); });
    EXPECT_EQ(ready.rank_ready().measured_bytes(), 8192);
    EXPECT_EQ(ready.rank_ready().step(), 3);
    v1::AttendResponse start;
    start.mutable_start();
    service_.Send(start);
  });
  const absl::Status started = client_->AwaitStart(8192, 3, kLong);
  coordinator.join();
  EXPECT_TRUE(started.ok()) << started;
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, KnowsThatTheJobIsDrained) {
  ASSERT_TRUE(Join().ok());
  EXPECT_FALSE(client_->Draining());
  v1::AttendResponse drain, start;
  drain.mutable_drain();
  start.mutable_start();
  service_.Send(drain);
  service_.Send(start);  // comes after it
  EXPECT_TRUE(client_->AwaitStart(8192, 3, kLong).ok());
  EXPECT_TRUE(client_->Draining());
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, SendsHeartbeatsAtTheWelcomesPeriod) {
  service_.WelcomeJoins(WelcomeWithHeartbeat(absl::Milliseconds(20)));
  const absl::Time begin = Clock::Real()->Now();
  ASSERT_TRUE(Join().ok());
  service_.AwaitRequests(5, [](auto& r) { return r.has_heartbeat(); });
  EXPECT_GE(Clock::Real()->Now() - begin, absl::Milliseconds(5 * 20));
}

TEST_F(MembershipClientTest, ARefusalKeepsItsCodeAndReason) {
  service_.RefuseJoins(WithReason(absl::AbortedError("rank 1 is held by another"), "RANK_TAKEN"));
  const absl::Status joined = Join();
  EXPECT_EQ(joined.code(), absl::StatusCode::kAborted) << joined;
  EXPECT_EQ(Reason(joined), "RANK_TAKEN");
  client_.reset();
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, ACoordinatorThatDoesNotAnswerIsDeadlineExceeded) {
  service_.IgnoreJoins();
  EXPECT_EQ(Join(absl::Milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
  client_.reset();
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, ACoordinatorThatIsNotThereIsUnavailableAndNamed) {
  service_.Kill();
  const absl::Status joined = Join(absl::Seconds(1));
  EXPECT_EQ(joined.code(), absl::StatusCode::kUnavailable) << joined;
  EXPECT_NE(joined.message().find("the coordinator " + service_.address() + " is gone"),
            absl::string_view::npos)
      << joined;
}

TEST_F(MembershipClientTest, TheEndOfTheGenerationIsTold) {
  ASSERT_TRUE(Join().ok());
  v1::AttendResponse response;
  response.mutable_end()->set_state(v1::FAILED);
  response.mutable_end()->set_reason("rank 0 was killed by signal 9");
  service_.Send(response);
  const absl::Status end = end_.get_future().get();
  EXPECT_EQ(end.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Reason(end), "JOB_ENDED");
  EXPECT_EQ(end.message(), "the job is FAILED: rank 0 was killed by signal 9");
  // What comes after the end is of no interest, and every wait ends with it.
  service_.Kill();
  EXPECT_EQ(client_->AwaitStart(1, 0, kLong).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ends_, 1);
}

TEST_F(MembershipClientTest, AGenerationThatEndsForAnotherIsToldAsThat) {
  ASSERT_TRUE(Join().ok());
  client_->Break(absl::DeadlineExceededError("waited 30s for unit h.1; missing: rank 2"), 2);
  const v1::Broken broken =
      service_.AwaitRequest([](auto& request) { return request.has_broken(); }).broken();
  EXPECT_EQ(broken.code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(broken.message(), "waited 30s for unit h.1; missing: rank 2");
  EXPECT_EQ(broken.blamed_rank(), 2);
  v1::AttendResponse response;
  response.mutable_end()->set_state(v1::RECOVERING);
  response.mutable_end()->set_reason("rank 2 is stuck");
  service_.Send(response);
  const absl::Status end = end_.get_future().get();
  EXPECT_EQ(end.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Reason(end), "GENERATION_ENDED");
  EXPECT_EQ(end.message(), "the job is RECOVERING: rank 2 is stuck");
}

TEST_F(MembershipClientTest, ADrainForGoodIsNoDrainToResize) {
  ASSERT_TRUE(Join().ok());
  v1::AttendResponse drain, end;
  drain.mutable_drain()->set_resize(true);
  service_.Send(drain);
  drain.mutable_drain()->set_resize(false);
  service_.Send(drain);
  drain.mutable_drain()->set_resize(true);
  service_.Send(drain);
  end.mutable_end()->set_state(v1::CANCELLED);
  service_.Send(end);
  end_.get_future().wait();
  EXPECT_TRUE(client_->Draining());
  EXPECT_FALSE(client_->Resizing());
}

TEST_F(MembershipClientTest, JoinsTheNextCoordinatorAgainAndTellsWhereItIs) {
  ASSERT_TRUE(Join().ok());
  v1::AttendResponse start;
  start.mutable_start();
  service_.Send(start);
  ASSERT_TRUE(client_->AwaitStart(8192, 0, kLong).ok());
  client_->ReportStats(ReportOfStep(3));
  service_.AwaitReports(1);
  service_.Kill();
  FakeMembershipService next(service_.address());
  const v1::JoinRank join =
      next.AwaitRequest([](auto& r) { return r.has_join_rank(); }).join_rank();
  EXPECT_TRUE(join.rejoin());
  EXPECT_TRUE(join.ready());
  EXPECT_EQ(join.incarnation(), "abc");
  EXPECT_EQ(join.generation(), 1);
  EXPECT_EQ(join.rank(), 1);
  EXPECT_EQ(join.step(), 3);
  EXPECT_EQ(join.measured_bytes(), 8192);
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, ANextCoordinatorThatRefusesTheRankEndsIt) {
  ASSERT_TRUE(Join().ok());
  service_.Kill();
  FakeMembershipService next(service_.address());
  next.AwaitRequest([](auto& r) { return r.has_join_rank(); });
  next.FinishStreams(absl::NotFoundError("there is no job job"));
  const absl::Status end = end_.get_future().get();
  EXPECT_EQ(end.code(), absl::StatusCode::kNotFound) << end;
}

TEST_F(MembershipClientTest, ReportsAndLeaveWaitForTheNextCoordinator) {
  ASSERT_TRUE(Join().ok());
  service_.FailReports(absl::UnavailableError("not now"));
  client_->ReportStats(ReportOfStep(5));
  service_.AwaitReports(1);
  service_.Kill();
  std::thread leaving([this] { client_->Leave(absl::OkStatus(), std::nullopt, kLong); });
  FakeMembershipService next(service_.address());
  const v1::AttendRequest leave = next.AwaitRequest([](auto& r) { return r.has_leave(); });
  EXPECT_EQ(leave.leave().code(), 0);
  leaving.join();
  EXPECT_EQ(next.AwaitReports(1).back().step(), 5);
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, WhoFailedDoesNotWaitForACoordinatorThatIsAway) {
  ASSERT_TRUE(Join().ok());
  service_.Kill();
  client_->Leave(absl::InternalError("broken"), std::nullopt, absl::Milliseconds(50));
  client_.reset();
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, ACallIsMadeAgainAtTheNextCoordinator) {
  ASSERT_TRUE(Join().ok());
  service_.Kill();
  std::thread caller([this] {
    v1::PublishCommunicatorIdsRequest ids;
    ids.set_group(4);
    EXPECT_TRUE(client_->PublishCommunicatorIds(ids, kLong).ok());
  });
  FakeMembershipService next(service_.address());
  caller.join();
  ASSERT_EQ(next.publications().size(), 1u);
  EXPECT_EQ(next.publications()[0].group(), 4);
}

TEST_F(MembershipClientTest, AStreamThatTheCoordinatorEndsKeepsItsCode) {
  ASSERT_TRUE(Join().ok());
  service_.FinishStreams(
      WithReason(absl::FailedPreconditionError("generation 1 has ended"), "STALE_GENERATION"));
  const absl::Status end = end_.get_future().get();
  EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition) << end;
  EXPECT_EQ(Reason(end), "STALE_GENERATION");
}

TEST_F(MembershipClientTest, ListsUnitsPageByPage) {
  v1::ListUnitsResponse first, second;
  first.add_units()->set_fqn("h.0");
  first.add_layouts()->set_fqn("h.0");
  first.set_next_page_token("1");
  second.add_units()->set_fqn("");
  second.add_layouts()->set_padded_numel(64);
  service_.SetUnitPages({first, second});
  const absl::StatusOr<PlannedUnits> planned = client_->ListUnits("job", 1, kLong);
  ASSERT_TRUE(planned.ok()) << planned.status();
  ASSERT_EQ(planned->units.size(), 2u);
  ASSERT_EQ(planned->layouts.size(), 2u);
  EXPECT_EQ(planned->units[0].fqn(), "h.0");
  EXPECT_EQ(planned->layouts[1].padded_numel(), 64);
}

TEST_F(MembershipClientTest, ListingAnUnknownJobIsNotFound) {
  EXPECT_EQ(client_->ListUnits("job", 1, kLong).status().code(), absl::StatusCode::kNotFound);
}

v1::PublishCommunicatorIdsRequest Publication() {
  v1::PublishCommunicatorIdsRequest request;
  request.set_job("job");
  request.set_generation(1);
  request.set_incarnation("abc");
  request.set_group(2);
  request.mutable_ids()->set_unshard_id(std::string("\0\1\xff", 3));
  request.mutable_ids()->set_reduce_id("reduce");
  return request;
}

TEST_F(MembershipClientTest, CommunicatorIdsGoOutAndCome) {
  auto waiting =
      std::async(std::launch::async, [&] { return client_->FetchCommunicatorIds({}, kLong); });
  service_.AwaitFetches(1);
  const auto publisher = CreateMembershipClient(service_.address());
  ASSERT_TRUE(publisher->PublishCommunicatorIds(Publication(), kLong).ok());
  EXPECT_EQ(service_.publications().at(0).SerializeAsString(), Publication().SerializeAsString());
  const absl::StatusOr<v1::CommunicatorIds> ids = waiting.get();
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->unshard_id(), std::string("\0\1\xff", 3));
  EXPECT_EQ(ids->reduce_id(), "reduce");
  const absl::Status refused = publisher->PublishCommunicatorIds(Publication(), kLong);
  EXPECT_EQ(Reason(refused), "IDS_PUBLISHED");
  EXPECT_EQ(refused.message(), "publishing communicator ids at the coordinator " +
                                   service_.address() + ": others are there");
}

TEST_F(MembershipClientTest, AFetchEndsAtItsTimeout) {
  EXPECT_EQ(client_->FetchCommunicatorIds({}, absl::Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(MembershipClientTest, AFetchEndsWithTheGenerationOrAnInterruption) {
  ASSERT_TRUE(Join().ok());
  auto first = std::async(std::launch::async,
                          [&] { return client_->FetchCommunicatorIds({}, kLong).status(); });
  service_.AwaitFetches(1);
  v1::AttendResponse response;
  response.mutable_end()->set_state(v1::FAILED);
  service_.Send(response);
  EXPECT_EQ(Reason(first.get()), "JOB_ENDED");

  const auto other = CreateMembershipClient(service_.address());
  auto second = std::async(std::launch::async,
                           [&] { return other->FetchCommunicatorIds({}, kLong).status(); });
  service_.AwaitFetches(2);
  other->Interrupt(absl::UnavailableError("rank 0 is gone"));
  EXPECT_EQ(second.get(), absl::UnavailableError("rank 0 is gone"));
  EXPECT_EQ(other->FetchCommunicatorIds({}, kLong).status(),
            absl::UnavailableError("rank 0 is gone"));
}

TEST_F(MembershipClientTest, ReportsArriveInOrderAndCollectWhileTheCoordinatorIsAway) {
  ASSERT_TRUE(Join().ok());
  service_.HoldReports(true);
  client_->ReportStats(ReportOfStep(1));
  service_.AwaitReports(1);
  // The first is under way; these go together, after it.
  for (int64_t step = 2; step <= 5; ++step) client_->ReportStats(ReportOfStep(step));
  service_.HoldReports(false);
  const std::vector<v1::ReportStatsRequest> reports = service_.AwaitReports(2);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].step(), 1);
  EXPECT_EQ(reports[1].step(), 5);
  ASSERT_EQ(reports[1].progress_size(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(reports[1].progress(i).step(), i + 2);
}

TEST_F(MembershipClientTest, AReportThatFailedGoesWithTheNext) {
  ASSERT_TRUE(Join().ok());
  service_.FailReports(absl::UnavailableError("not now"));
  client_->ReportStats(ReportOfStep(1));
  service_.AwaitReports(1);
  service_.FailReports(absl::OkStatus());
  client_->Leave(absl::OkStatus(), std::nullopt, kLong);
  const std::vector<v1::ReportStatsRequest> reports = service_.AwaitReports(2);
  EXPECT_EQ(reports.back().progress_size(), 1);
}

TEST_F(MembershipClientTest, LeaveSendsReportsFirstAndSaysWhomItBlames) {
  ASSERT_TRUE(Join().ok());
  client_->ReportStats(ReportOfStep(1));
  client_->ReportStats(ReportOfStep(2));
  client_->Leave(absl::UnavailableError("rank 0 is gone"), 0, kLong);
  const v1::AttendRequest leave = service_.AwaitRequest([](auto& r) { return r.has_leave(); });
  EXPECT_EQ(leave.leave().code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(leave.leave().message(), "rank 0 is gone");
  ASSERT_TRUE(leave.leave().has_blamed_rank());
  EXPECT_EQ(leave.leave().blamed_rank(), 0);
  EXPECT_EQ(service_.AwaitReports(1).back().step(), 2);
  client_.reset();
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, LeaveWithoutBlameNamesNobody) {
  ASSERT_TRUE(Join().ok());
  client_->Leave(absl::OkStatus(), std::nullopt, kLong);
  const v1::AttendRequest leave = service_.AwaitRequest([](auto& r) { return r.has_leave(); });
  EXPECT_EQ(leave.leave().code(), 0);
  EXPECT_FALSE(leave.leave().has_blamed_rank());
}

TEST_F(MembershipClientTest, LeaveDoesNotWaitForACoordinatorThatIsStopped) {
  ASSERT_TRUE(Join().ok());
  service_.HoldReports(true);
  client_->ReportStats(ReportOfStep(1));
  service_.AwaitReports(1);
  client_->Leave(absl::OkStatus(), std::nullopt, absl::Milliseconds(50));
  client_.reset();
  service_.AwaitEndedStreams(1);
  EXPECT_EQ(ends_, 0);
}

TEST_F(MembershipClientTest, ADroppedClientEndsItsStreamAndTellsNobody) {
  ASSERT_TRUE(Join().ok());
  client_.reset();
  service_.AwaitEndedStreams(1);
  EXPECT_EQ(ends_, 0);
  for (const v1::AttendRequest& request : service_.requests()) EXPECT_FALSE(request.has_leave());
}

TEST_F(MembershipClientTest, CallsOutOfPlaceAreRefused) {
  EXPECT_EQ(client_->AwaitStart(1, 0, kLong).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Join().ok());
  EXPECT_EQ(client_->JoinRank(RankOne(), kLong, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
}

// Once the last channel of a process was released by gRPC's own thread, which then polled a queue
// that was gone.
TEST(MembershipClientLifetimeTest, ADroppedReportReleasesItsChannelOnTheDroppersThread) {
  // Accepts connections and never answers. No server of gRPC's lives in this process meanwhile.
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener.get(), 1000), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string target = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  for (int i = 0; i < 200; ++i) {
    std::unique_ptr<MembershipClient> client = CreateMembershipClient(target);
    client->ReportStats(ReportOfStep(1));
    client.reset();
  }
}

}  // namespace
}  // namespace tessera
