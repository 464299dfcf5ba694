#include "coordinator/job_service.h"

#include <memory>
#include <utility>

#include "common/mutex.h"
#include "coordinator/service_reply.h"

namespace tessera {
namespace {

// One watch stream. Reads the event log at the client's pace; no thread waits for it.
class WatchReactor final : public grpc::ServerWriteReactor<v1::WatchJobResponse>,
                           public JobWatcher,
                           public std::enable_shared_from_this<WatchReactor> {
 public:
  // gRPC holds a bare pointer until OnDone, so the stream owns itself until then.
  // `resume_token`: "", or one whose cursor is given.
  static WatchReactor* Start(std::shared_ptr<EventLog> events, const std::string& resume_token,
                             int64_t cursor) {
    auto reactor = std::make_shared<WatchReactor>(std::move(events), cursor);
    reactor->self_ = reactor;
    if (!resume_token.empty()) reactor->Open(resume_token);
    reactor->events_->AddWatcher(reactor);
    reactor->Pump();
    return reactor.get();
  }

  WatchReactor(std::shared_ptr<EventLog> events, int64_t cursor)
      : events_(std::move(events)), cursor_(cursor) {}

  void Wake() override { Pump(); }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      gone_ = gone_ || !ok;
    }
    Pump();
  }

  void OnCancel() override {
    {
      MutexLock lock(mutex_);
      gone_ = true;
    }
    Pump();
  }

  void OnDone() override { const std::shared_ptr<WatchReactor> last = std::move(self_); }

 private:
  // The first message of a stream that goes on with an earlier one: so the client knows that it is
  // heard, also where nothing happens for long. Called first of all.
  void Open(const std::string& resume_token) {
    {
      MutexLock lock(mutex_);
      writing_ = true;
    }
    event_.set_resume_token(resume_token);
    StartWrite(&event_);
  }

  // Starts the next write, or finishes; whoever sets writing_ or finished_ is the only one who
  // acts.
  void Pump() {
    bool finish = false;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (!gone_) {
        EventLog::Batch batch = events_->Read(cursor_, 1);
        cursor_ = batch.next;
        writing_ = !batch.events.empty();
        if (writing_) event_ = std::move(batch.events[0]);
        finish = !writing_ && batch.end;
      }
      finished_ = finish = finish || gone_;
      if (!writing_ && !finish) return;
    }
    if (finish) {
      Finish(grpc::Status::OK);
    } else {
      StartWrite(&event_);
    }
  }

  const std::shared_ptr<EventLog> events_;
  std::shared_ptr<WatchReactor> self_;
  v1::WatchJobResponse event_;  // of whoever set writing_
  Mutex mutex_;
  int64_t cursor_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // the client went away
};

// A stream that is refused.
class RefusedWatch final : public grpc::ServerWriteReactor<v1::WatchJobResponse> {
 public:
  explicit RefusedWatch(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* JobService::CreateJob(grpc::CallbackServerContext* context,
                                                const v1::CreateJobRequest* request,
                                                v1::CreateJobResponse* response) {
  const absl::Status status = roots_.CheckJob(request->spec());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->CreateJob(*request), response->mutable_job());
}

grpc::ServerUnaryReactor* JobService::GetJob(grpc::CallbackServerContext* context,
                                             const v1::GetJobRequest* request,
                                             v1::GetJobResponse* response) {
  const absl::Status status = CheckJobName("name", request->name());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->GetJob(request->name()), response);
}

grpc::ServerUnaryReactor* JobService::ListJobs(grpc::CallbackServerContext* context,
                                               const v1::ListJobsRequest* request,
                                               v1::ListJobsResponse* response) {
  return Reply(context, coordinator_->ListJobs(*request), response);
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    grpc::CallbackServerContext*, const v1::WatchJobRequest* request) {
  const absl::Status status = CheckJobName("name", request->name());
  if (!status.ok()) return new RefusedWatch(status);
  absl::StatusOr<std::shared_ptr<EventLog>> events = coordinator_->WatchJob(request->name());
  if (!events.ok()) return new RefusedWatch(events.status());
  const absl::StatusOr<int64_t> cursor = (*events)->CursorOf(request->resume_token());
  if (!cursor.ok()) return new RefusedWatch(cursor.status());
  return WatchReactor::Start(*std::move(events), request->resume_token(), *cursor);
}

grpc::ServerUnaryReactor* JobService::CancelJob(grpc::CallbackServerContext* context,
                                                const v1::CancelJobRequest* request,
                                                v1::CancelJobResponse* response) {
  const absl::Status status = CheckJobName("name", request->name());
  if (!status.ok()) return Reply(context, status);
  return Reply(context,
               coordinator_->CancelJob(request->name(), request->reason(), request->request_id()),
               response->mutable_job());
}

grpc::ServerUnaryReactor* JobService::DrainJob(grpc::CallbackServerContext* context,
                                               const v1::DrainJobRequest* request,
                                               v1::DrainJobResponse* response) {
  const absl::Status status = CheckJobName("name", request->name());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->DrainJob(request->name(), request->request_id()),
               response->mutable_job());
}

grpc::ServerUnaryReactor* JobService::ListWorkers(grpc::CallbackServerContext* context,
                                                  const v1::ListWorkersRequest* request,
                                                  v1::ListWorkersResponse* response) {
  const absl::Status status = CheckJobName("job", request->job());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->ListWorkers(*request), response);
}

grpc::ServerUnaryReactor* JobService::ListIncidents(grpc::CallbackServerContext* context,
                                                    const v1::ListIncidentsRequest* request,
                                                    v1::ListIncidentsResponse* response) {
  const absl::Status status = CheckJobName("job", request->job());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->ListIncidents(*request), response);
}

}  // namespace tessera
