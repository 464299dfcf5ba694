#include "worker/membership_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/grpc_channel.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "grpcpp/client_context.h"
#include "tessera/v1/membership_service.grpc.pb.h"
#include "worker/report_sender.h"
#include "worker/steady_attendance.h"

namespace tessera {
namespace {

// How long a rank whose work is done waits for a coordinator that is away. Its agent waits less
// long, and ends it.
constexpr absl::Duration kLongAbsence = absl::Minutes(10);
// Between two attempts of a call.
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(1);

class GrpcMembershipClient : public MembershipClient {
 public:
  explicit GrpcMembershipClient(const std::string& coordinator)
      : coordinator_(coordinator),
        channel_(MakeChannel(coordinator)),
        stub_(v1::MembershipService::NewStub(channel_)),
        reports_(channel_) {}

  // A client that is dropped without Leave ends its own stream: that is nobody's end to be told of.
  ~GrpcMembershipClient() override {
    MutexLock lock(mutex_);
    leaving_ = true;
  }

  void SetPosition(std::shared_ptr<const PositionPublisher> position) override {
    MutexLock lock(mutex_);
    position_ = std::move(position);
  }

  absl::Status JoinRank(const v1::JoinRank& join, absl::Duration timeout,
                        std::function<void(const absl::Status&)> on_end) override {
    if (attendance_ != nullptr) {
      return absl::FailedPreconditionError("this client has joined a rank already");
    }
    on_end_ = std::move(on_end);
    SetState([&](v1::JoinRank& state) { state = join; });
    attendance_ = std::make_unique<SteadyAttendance>(
        AttendClient::Options{.coordinator = coordinator_},
        SteadyAttendance::Handlers{
            .opening = [this](bool again) { return Opening(again); },
            .on_response =
                [this](const v1::AttendResponse& response) {
                  OnResponse(response);
                  return !response.has_end();
                },
            .on_heartbeat = [this](v1::Heartbeat& heartbeat) { FillHeartbeat(heartbeat); },
            .on_away = [this](const absl::Status& status) { OnAway(WhyGone(status)); },
            .on_done = [this](const absl::Status& status) { End(WhyGone(status)); }});
    return Await(&GrpcMembershipClient::welcomed_, timeout, "to accept the rank");
  }

  absl::StatusOr<PlannedUnits> ListUnits(const std::string& job, int64_t generation,
                                         absl::Duration timeout) override {
    const absl::Time deadline = Clock::Real()->Now() + timeout;
    PlannedUnits planned;
    v1::ListUnitsRequest request;
    request.set_job(job);
    request.set_generation(generation);
    do {
      v1::ListUnitsResponse page;
      TESSERA_RETURN_IF_ERROR(Call(
          deadline, "listing the units",
          [&](grpc::ClientContext* context) { return stub_->ListUnits(context, request, &page); }));
      if (page.units_size() != page.layouts_size()) {
        return absl::InternalError(
            absl::StrCat("the coordinator sent ", page.units_size(), " units and ",
                         page.layouts_size(), " layouts; is it of the same build as the worker?"));
      }
      for (v1::Unit& unit : *page.mutable_units()) planned.units.push_back(std::move(unit));
      for (v1::UnitLayout& unit : *page.mutable_layouts()) {
        planned.layouts.push_back(std::move(unit));
      }
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return planned;
  }

  absl::Status PublishCommunicatorIds(const v1::PublishCommunicatorIdsRequest& request,
                                      absl::Duration timeout) override {
    v1::PublishCommunicatorIdsResponse response;
    return Call(Clock::Real()->Now() + timeout, "publishing communicator ids",
                [&](grpc::ClientContext* context) {
                  return stub_->PublishCommunicatorIds(context, request, &response);
                });
  }

  absl::StatusOr<v1::CommunicatorIds> FetchCommunicatorIds(
      const v1::FetchCommunicatorIdsRequest& request, absl::Duration timeout) override {
    v1::FetchCommunicatorIdsResponse response;
    TESSERA_RETURN_IF_ERROR(Call(Clock::Real()->Now() + timeout, "fetching communicator ids",
                                 [&](grpc::ClientContext* context) {
                                   return stub_->FetchCommunicatorIds(context, request, &response);
                                 }));
    return std::move(*response.mutable_ids());
  }

  absl::StatusOr<v1::AnnounceModuleResponse> AnnounceModule(
      const v1::AnnounceModuleRequest& request, absl::Duration timeout) override {
    v1::AnnounceModuleResponse response;
    TESSERA_RETURN_IF_ERROR(Call(Clock::Real()->Now() + timeout, "announcing a module",
                                 [&](grpc::ClientContext* context) {
                                   return stub_->AnnounceModule(context, request, &response);
                                 }));
    return response;
  }

  absl::Status ChangeModelDType(const v1::ChangeModelDTypeRequest& request,
                                absl::Duration timeout) override {
    v1::ChangeModelDTypeResponse response;
    return Call(Clock::Real()->Now() + timeout, "changing the model's dtype",
                [&](grpc::ClientContext* context) {
                  return stub_->ChangeModelDType(context, request, &response);
                });
  }

  absl::Status AwaitStart(int64_t measured_bytes, int64_t step, absl::Duration timeout) override {
    if (attendance_ == nullptr) return absl::FailedPreconditionError("no rank was joined");
    v1::AttendRequest request;
    request.mutable_rank_ready()->set_measured_bytes(measured_bytes);
    request.mutable_rank_ready()->set_step(step);
    SetState([&](v1::JoinRank& state) {
      state.set_ready(true);
      state.set_step(step);
      state.set_measured_bytes(measured_bytes);
    });
    attendance_->Send(request);
    return Await(&GrpcMembershipClient::started_, timeout, "to start the job");
  }

  void Break(const absl::Status& status, std::optional<int> blamed_rank) override {
    if (attendance_ == nullptr) return;
    v1::AttendRequest request;
    v1::Broken& broken = *request.mutable_broken();
    broken.set_code(static_cast<int>(status.code()));
    broken.set_message(std::string(status.message()));
    if (blamed_rank.has_value()) broken.set_blamed_rank(*blamed_rank);
    v1::Heartbeat here;
    FillHeartbeat(here);
    if (here.has_position()) *broken.mutable_position() = here.position();
    {
      MutexLock lock(mutex_);
      broken_ = request;
    }
    attendance_->Send(request);
  }

  bool Draining() const override { return draining_; }
  bool Resizing() const override { return resizing_; }

  void Interrupt(const absl::Status& status) override {
    MutexLock lock(mutex_);
    if (!ended_.has_value()) ended_ = status;
    for (grpc::ClientContext* call : calls_) call->TryCancel();
    changed_.NotifyAll();
  }

  void ReportStats(v1::ReportStatsRequest report) override {
    SetState([&](v1::JoinRank& state) { state.set_step(report.step()); });
    reports_.Add(std::move(report));
  }

  void Leave(const absl::Status& status, std::optional<int> blamed_rank,
             absl::Duration timeout) override {
    if (attendance_ == nullptr) return;
    {
      MutexLock lock(mutex_);
      leaving_ = true;
    }
    // Who has done its work waits for a coordinator that is away, since it would be missed. Who has
    // not is missed in any case, and its agent says more: it ends at once.
    if (!status.ok() && !attendance_->AwaitPresence(absl::ZeroDuration())) return;
    const absl::Duration away = status.ok() ? kLongAbsence : absl::ZeroDuration();
    const absl::Time give_up = Clock::Real()->Now() + away;
    // Half of the time, so that a coordinator that takes no reports may still take the Leave.
    do {
      attendance_->AwaitPresence(give_up - Clock::Real()->Now());
    } while (!reports_.Flush(Clock::Real()->Now() + timeout / 2) &&
             !attendance_->AwaitPresence(absl::ZeroDuration()) && Clock::Real()->Now() < give_up);
    if (!status.ok()) {
      v1::AttendRequest last;
      FillHeartbeat(*last.mutable_heartbeat());
      attendance_->Send(last);
    }
    v1::Leave leave;
    leave.set_code(static_cast<int>(status.code()));
    leave.set_message(std::string(status.message()));
    if (blamed_rank.has_value()) leave.set_blamed_rank(*blamed_rank);
    attendance_->Leave(leave);
    attendance_->AwaitEnd(timeout / 2, give_up - Clock::Real()->Now());
  }

 private:
  // What the next stream is to say of this rank.
  void SetState(absl::FunctionRef<void(v1::JoinRank&)> change) {
    MutexLock lock(mutex_);
    change(state_);
  }

  std::vector<v1::AttendRequest> Opening(bool again) {
    MutexLock lock(mutex_);
    v1::AttendRequest request;
    *request.mutable_join_rank() = state_;
    request.mutable_join_rank()->set_rejoin(again);
    std::vector<v1::AttendRequest> opening = {request};
    if (broken_.has_value()) opening.push_back(*broken_);
    return opening;
  }

  void OnAway(const absl::Status& status) {
    MutexLock lock(mutex_);
    away_ = status;
  }

  void FillHeartbeat(v1::Heartbeat& heartbeat) {
    std::shared_ptr<const PositionPublisher> position;
    {
      MutexLock lock(mutex_);
      position = position_;
    }
    if (position != nullptr) *heartbeat.mutable_position() = position->Read();
  }

  void OnResponse(const v1::AttendResponse& response) {
    if (response.has_end()) {
      const v1::EndGeneration& end = response.end();
      End(WithReason(absl::AbortedError(absl::StrCat("the job is ", v1::JobState_Name(end.state()),
                                                     ": ", end.reason())),
                     end.state() == v1::RECOVERING ? "GENERATION_ENDED" : "JOB_ENDED"));
      return;
    }
    // A drain for good after one that was to resize is for good.
    if (response.has_drain()) resizing_ = response.drain().resize() && (resizing_ || !draining_);
    if (response.has_drain()) draining_ = true;
    MutexLock lock(mutex_);
    if (response.has_welcome()) away_ = absl::OkStatus();
    welcomed_ = welcomed_ || response.has_welcome();
    started_ = started_ || response.has_start();
    changed_.NotifyAll();
  }

  // How the stream ended, in a worker's words. What the coordinator said itself stays what it is.
  absl::Status WhyGone(const absl::Status& status) const {
    switch (status.code()) {
      case absl::StatusCode::kOk:
      case absl::StatusCode::kCancelled:
      case absl::StatusCode::kUnknown:
      case absl::StatusCode::kInternal:
      case absl::StatusCode::kUnavailable:
        return absl::UnavailableError(absl::StrCat("the coordinator ", coordinator_, " is gone",
                                                   status.message().empty() ? "" : ": ",
                                                   status.message()));
      default:
        return Annotate(status, absl::StrCat("the coordinator ", coordinator_));
    }
  }

  void End(const absl::Status& status) {
    bool tell = false;
    {
      MutexLock lock(mutex_);
      if (ended_.has_value()) return;
      ended_ = status;
      for (grpc::ClientContext* call : calls_) call->TryCancel();
      tell = welcomed_ && !leaving_ && on_end_ != nullptr;
      changed_.NotifyAll();
    }
    if (tell) on_end_(status);
  }

  // `method` of the coordinator, which an end of the stream or Interrupt cancels. All of them may
  // be repeated, and are until the deadline where the coordinator is away.
  absl::Status Call(absl::Time deadline, absl::string_view doing,
                    absl::FunctionRef<grpc::Status(grpc::ClientContext*)> method) {
    for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      const absl::Status status = CallOnce(deadline, method);
      MutexLock lock(mutex_);
      if (ended_.has_value()) return *ended_;
      const absl::Time again = Clock::Real()->Now() + pause;
      if (!absl::IsUnavailable(status) || again >= deadline) {
        return Annotate(status, absl::StrCat(doing, " at the coordinator ", coordinator_));
      }
      while (!ended_.has_value() && Clock::Real()->Now() < again)
        changed_.WaitFor(lock, again - Clock::Real()->Now());
    }
  }

  absl::Status CallOnce(absl::Time deadline,
                        absl::FunctionRef<grpc::Status(grpc::ClientContext*)> method) {
    grpc::ClientContext context;
    const auto left = absl::ToChronoNanoseconds(deadline - Clock::Real()->Now());
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
    {
      MutexLock lock(mutex_);
      if (ended_.has_value()) return *ended_;
      calls_.insert(&context);
    }
    const absl::Status status = FromGrpcStatus(method(&context));
    MutexLock lock(mutex_);
    calls_.erase(&context);
    return status;
  }

  // Until `flag` is set, or the stream has ended or was interrupted.
  absl::Status Await(bool GrpcMembershipClient::*flag, absl::Duration timeout,
                     absl::string_view what) {
    const absl::Time deadline = Clock::Real()->Now() + timeout;
    MutexLock lock(mutex_);
    while (!(this->*flag)) {
      if (ended_.has_value()) return *ended_;
      const absl::Duration left = deadline - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) {
        if (!away_.ok()) return away_;
        return absl::DeadlineExceededError(absl::StrCat("the coordinator ", coordinator_,
                                                        " took longer than ",
                                                        absl::FormatDuration(timeout), " ", what));
      }
      changed_.WaitFor(lock, left);
    }
    return absl::OkStatus();
  }

  const std::string coordinator_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::MembershipService::Stub> stub_;

  std::atomic<bool> draining_ = false;
  std::atomic<bool> resizing_ = false;
  Mutex mutex_;
  CondVar changed_;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  v1::JoinRank state_ ABSL_GUARDED_BY(mutex_);                       // as the next stream says it
  std::optional<v1::AttendRequest> broken_ ABSL_GUARDED_BY(mutex_);  // likewise
  absl::Status away_ ABSL_GUARDED_BY(mutex_);  // the coordinator is, and why; OK: it is not
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const PositionPublisher> position_ ABSL_GUARDED_BY(mutex_);

  std::function<void(const absl::Status&)> on_end_;  // set once, before the stream starts
  ReportSender reports_;
  // Last: its handlers use all of the above until it is destroyed.
  std::unique_ptr<SteadyAttendance> attendance_;
};

}  // namespace

std::unique_ptr<MembershipClient> CreateMembershipClient(const std::string& coordinator) {
  return std::make_unique<GrpcMembershipClient>(coordinator);
}

}  // namespace tessera
