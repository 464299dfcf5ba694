#include "worker/membership_client.h"

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
#include "worker/attend_client.h"
#include "worker/report_sender.h"

namespace tessera {
namespace {

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
    v1::AttendRequest request;
    *request.mutable_join_rank() = join;
    attendance_ = AttendClient::Start(
        {.coordinator = coordinator_}, request,
        {.on_response = [this](const v1::AttendResponse& response) { OnResponse(response); },
         .on_done = [this](const absl::Status& status) { End(WhyGone(status)); },
         .on_heartbeat = [this](v1::Heartbeat& heartbeat) { FillHeartbeat(heartbeat); }});
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

  void ReportStats(v1::ReportStatsRequest report) override { reports_.Add(std::move(report)); }

  void Leave(const absl::Status& status, std::optional<int> blamed_rank,
             absl::Duration timeout) override {
    if (attendance_ == nullptr) return;
    const absl::Time deadline = Clock::Real()->Now() + timeout;
    {
      MutexLock lock(mutex_);
      leaving_ = true;
    }
    // Half of the time, so that a coordinator that takes no reports may still take the Leave.
    reports_.Flush(deadline - timeout / 2);
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
    attendance_->AwaitEnd(deadline - Clock::Real()->Now());
  }

 private:
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

  // `method` of the coordinator, which an end of the stream or Interrupt cancels.
  absl::Status Call(absl::Time deadline, absl::string_view doing,
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
    {
      MutexLock lock(mutex_);
      calls_.erase(&context);
      if (ended_.has_value()) return *ended_;
    }
    return Annotate(status, absl::StrCat(doing, " at the coordinator ", coordinator_));
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
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const PositionPublisher> position_ ABSL_GUARDED_BY(mutex_);

  std::function<void(const absl::Status&)> on_end_;  // set once, before the stream starts
  ReportSender reports_;
  // Last: its handlers use all of the above until it is destroyed.
  std::unique_ptr<AttendClient> attendance_;
};

}  // namespace

std::unique_ptr<MembershipClient> CreateMembershipClient(const std::string& coordinator) {
  return std::make_unique<GrpcMembershipClient>(coordinator);
}

}  // namespace tessera
