#include "worker/fake_membership_service.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "grpcpp/grpcpp.h"
#include "tessera/v1/membership_service.grpc.pb.h"

namespace tessera {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

enum class JoinAnswer { kWelcome, kNothing, kRefuse };

}  // namespace

class FakeMembershipService::Impl : public v1::MembershipService::CallbackService {
 public:
  // One client's stream. Deletes itself.
  class Stream : public grpc::ServerBidiReactor<v1::AttendRequest, v1::AttendResponse> {
   public:
    explicit Stream(Impl* service) : service_(service) {
      service_->Add(this);
      StartRead(&request_);
    }

    void OnReadDone(bool ok) override {
      if (!ok) return End(grpc::Status::OK);
      if (request_.has_join_host() || request_.has_join_rank()) AnswerJoin();
      const bool leaves = request_.has_leave();
      service_->Record(request_);
      if (leaves) {
        End(grpc::Status::OK);
      } else {
        StartRead(&request_);
      }
    }

    void OnWriteDone(bool ok) override {
      const v1::AttendResponse* next = nullptr;
      std::optional<grpc::Status> end;
      {
        MutexLock lock(mutex_);
        outgoing_.pop_front();
        if (!ok) outgoing_.clear();
        if (!outgoing_.empty()) {
          next = &outgoing_.front();
        } else if (end_.has_value()) {
          end = end_;
        }
      }
      if (next != nullptr) StartWrite(next);
      if (end.has_value()) Finish(*end);
    }

    void OnDone() override {
      service_->Remove(this);
      delete this;
    }

    void Send(const v1::AttendResponse& response) {
      const v1::AttendResponse* first = nullptr;
      {
        MutexLock lock(mutex_);
        if (end_.has_value()) return;
        outgoing_.push_back(response);
        if (outgoing_.size() == 1) first = &outgoing_.front();
      }
      if (first != nullptr) StartWrite(first);
    }

    // After what is still to be written.
    void End(const grpc::Status& status) {
      {
        MutexLock lock(mutex_);
        if (end_.has_value()) return;
        end_ = status;
        if (!outgoing_.empty()) return;
      }
      Finish(status);
    }

   private:
    void AnswerJoin() {
      v1::AttendResponse response;
      absl::Status refusal;
      JoinAnswer answer;
      {
        MutexLock lock(service_->mutex_);
        answer = service_->join_answer_;
        *response.mutable_welcome() = service_->welcome_;
        refusal = service_->refusal_;
      }
      if (answer == JoinAnswer::kWelcome) Send(response);
      if (answer == JoinAnswer::kRefuse) End(ToGrpcStatus(refusal));
    }

    Impl* const service_;
    v1::AttendRequest request_;
    Mutex mutex_;
    std::deque<v1::AttendResponse> outgoing_ ABSL_GUARDED_BY(mutex_);
    std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  };

  explicit Impl(const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  grpc::ServerBidiReactor<v1::AttendRequest, v1::AttendResponse>* Attend(
      grpc::CallbackServerContext*) override {
    return new Stream(this);
  }

  grpc::ServerUnaryReactor* ListUnits(grpc::CallbackServerContext* context,
                                      const v1::ListUnitsRequest* request,
                                      v1::ListUnitsResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    size_t page = 0;
    bool known = true;
    {
      MutexLock lock(mutex_);
      for (size_t i = 0; i < unit_pages_.size(); ++i) {
        if (unit_pages_[i].next_page_token() == request->page_token()) page = i + 1;
      }
      if (request->page_token().empty()) page = 0;
      known = page < unit_pages_.size();
      if (known) *response = unit_pages_[page];
    }
    reactor->Finish(known ? grpc::Status::OK : ToGrpcStatus(absl::NotFoundError("no such job")));
    return reactor;
  }

  grpc::ServerUnaryReactor* ReportStats(grpc::CallbackServerContext* context,
                                        const v1::ReportStatsRequest* request,
                                        v1::ReportStatsResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::Status status;
    {
      MutexLock lock(mutex_);
      reports_.push_back(*request);
      changed_.NotifyAll();
      if (hold_reports_) {
        held_.push_back(reactor);
        return reactor;
      }
      status = report_status_;
    }
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  grpc::ServerUnaryReactor* PublishCommunicatorIds(grpc::CallbackServerContext* context,
                                                   const v1::PublishCommunicatorIdsRequest* request,
                                                   v1::PublishCommunicatorIdsResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    bool first = false;
    {
      MutexLock lock(mutex_);
      first = publications_.empty();
      publications_.push_back(*request);
    }
    reactor->Finish(first ? grpc::Status::OK
                          : ToGrpcStatus(WithReason(absl::AlreadyExistsError("others are there"),
                                                    "IDS_PUBLISHED")));
    if (first) AnswerFetches(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* FetchCommunicatorIds(
      grpc::CallbackServerContext* context, const v1::FetchCommunicatorIdsRequest*,
      v1::FetchCommunicatorIdsResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    {
      MutexLock lock(mutex_);
      ++fetches_;
      changed_.NotifyAll();
      if (publications_.empty()) {
        held_fetches_.emplace_back(reactor, response);
        return reactor;
      }
      *response->mutable_ids() = publications_.front().ids();
    }
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  void AnswerFetches(const grpc::Status& status) {
    std::vector<std::pair<grpc::ServerUnaryReactor*, v1::FetchCommunicatorIdsResponse*>> held;
    {
      MutexLock lock(mutex_);
      held.swap(held_fetches_);
      for (auto& [reactor, response] : held) {
        if (status.ok()) *response->mutable_ids() = publications_.front().ids();
      }
    }
    for (auto& [reactor, response] : held) reactor->Finish(status);
  }

  void HoldReports(bool hold) {
    std::vector<grpc::ServerUnaryReactor*> held;
    {
      MutexLock lock(mutex_);
      hold_reports_ = hold;
      if (!hold) held.swap(held_);
    }
    for (grpc::ServerUnaryReactor* reactor : held) reactor->Finish(grpc::Status::OK);
  }

  void Kill() {
    HoldReports(false);
    AnswerFetches(grpc::Status::CANCELLED);
    server_->Shutdown(std::chrono::system_clock::now());
    ForEachStream([](Stream* stream) { stream->End(grpc::Status::CANCELLED); });
    server_->Wait();
  }

  // `action` must not end the stream from another thread than the reactor's own, but for Send and
  // End.
  void ForEachStream(const std::function<void(Stream*)>& action) {
    std::set<Stream*> streams;
    {
      MutexLock lock(mutex_);
      streams = streams_;
    }
    for (Stream* stream : streams) action(stream);
  }

  void Add(Stream* stream) {
    MutexLock lock(mutex_);
    streams_.insert(stream);
  }

  void Remove(Stream* stream) {
    MutexLock lock(mutex_);
    streams_.erase(stream);
    ++ended_streams_;
    changed_.NotifyAll();
  }

  void Record(const v1::AttendRequest& request) {
    MutexLock lock(mutex_);
    requests_.push_back(request);
    changed_.NotifyAll();
  }

  // Until `holds`, which is called under the lock.
  void Await(const std::function<bool()>& holds, const char* what) {
    const absl::Time deadline = Clock::Real()->Now() + kPatience;
    MutexLock lock(mutex_);
    while (!holds()) {
      const absl::Duration left = deadline - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) {
        ADD_FAILURE() << "waited in vain for " << what;
        return;
      }
      changed_.WaitFor(lock, left);
    }
  }

  std::string address_;
  std::unique_ptr<grpc::Server> server_;

  Mutex mutex_;
  CondVar changed_;
  JoinAnswer join_answer_ ABSL_GUARDED_BY(mutex_) = JoinAnswer::kWelcome;
  v1::Welcome welcome_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  int ended_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<v1::AttendRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ReportStatsRequest> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ListUnitsResponse> unit_pages_ ABSL_GUARDED_BY(mutex_);
  bool hold_reports_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status report_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<grpc::ServerUnaryReactor*> held_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::PublishCommunicatorIdsRequest> publications_ ABSL_GUARDED_BY(mutex_);
  size_t fetches_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<grpc::ServerUnaryReactor*, v1::FetchCommunicatorIdsResponse*>> held_fetches_
      ABSL_GUARDED_BY(mutex_);
};

FakeMembershipService::FakeMembershipService(const std::string& address)
    : impl_(std::make_unique<Impl>(address)) {}
FakeMembershipService::~FakeMembershipService() { impl_->Kill(); }

const std::string& FakeMembershipService::address() const { return impl_->address_; }

void FakeMembershipService::WelcomeJoins(const v1::Welcome& welcome) {
  MutexLock lock(impl_->mutex_);
  impl_->join_answer_ = JoinAnswer::kWelcome;
  impl_->welcome_ = welcome;
}

void FakeMembershipService::IgnoreJoins() {
  MutexLock lock(impl_->mutex_);
  impl_->join_answer_ = JoinAnswer::kNothing;
}

void FakeMembershipService::RefuseJoins(const absl::Status& status) {
  MutexLock lock(impl_->mutex_);
  impl_->join_answer_ = JoinAnswer::kRefuse;
  impl_->refusal_ = status;
}

void FakeMembershipService::Send(const v1::AttendResponse& response) {
  impl_->ForEachStream([&](Impl::Stream* stream) { stream->Send(response); });
}

void FakeMembershipService::FinishStreams(const absl::Status& status) {
  impl_->ForEachStream([&](Impl::Stream* stream) { stream->End(ToGrpcStatus(status)); });
}

void FakeMembershipService::Kill() { impl_->Kill(); }

void FakeMembershipService::SetUnitPages(std::vector<v1::ListUnitsResponse> pages) {
  MutexLock lock(impl_->mutex_);
  impl_->unit_pages_ = std::move(pages);
}

void FakeMembershipService::HoldReports(bool hold) { impl_->HoldReports(hold); }

void FakeMembershipService::FailReports(const absl::Status& status) {
  MutexLock lock(impl_->mutex_);
  impl_->report_status_ = status;
}

std::vector<v1::AttendRequest> FakeMembershipService::AwaitRequests(
    size_t count, const std::function<bool(const v1::AttendRequest&)>& matches) {
  std::vector<v1::AttendRequest> found;
  impl_->Await(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mutex_) {
        found.clear();
        for (const v1::AttendRequest& request : impl_->requests_) {
          if (matches(request)) found.push_back(request);
        }
        return found.size() >= count;
      },
      "a request on Attend");
  return found;
}

v1::AttendRequest FakeMembershipService::AwaitRequest(
    const std::function<bool(const v1::AttendRequest&)>& matches) {
  const std::vector<v1::AttendRequest> found = AwaitRequests(1, matches);
  return found.empty() ? v1::AttendRequest() : found.front();
}

std::vector<v1::ReportStatsRequest> FakeMembershipService::AwaitReports(size_t count) {
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mutex_) {
    return impl_->reports_.size() >= count;
  };
  impl_->Await(enough, "a report");
  MutexLock lock(impl_->mutex_);
  return impl_->reports_;
}

void FakeMembershipService::AwaitFetches(size_t count) {
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mutex_) {
    return impl_->fetches_ >= count;
  };
  impl_->Await(enough, "a fetch of communicator ids");
}

std::vector<v1::PublishCommunicatorIdsRequest> FakeMembershipService::publications() const {
  MutexLock lock(impl_->mutex_);
  return impl_->publications_;
}

void FakeMembershipService::AwaitEndedStreams(int count) {
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mutex_) {
    return impl_->ended_streams_ >= count;
  };
  impl_->Await(enough, "a stream's end");
}

std::vector<v1::AttendRequest> FakeMembershipService::requests() const {
  MutexLock lock(impl_->mutex_);
  return impl_->requests_;
}

}  // namespace tessera
