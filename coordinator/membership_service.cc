#include "coordinator/membership_service.h"

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/grpc_guard.h"
#include "common/mutex.h"
#include "coordinator/member_check.h"
#include "coordinator/service_reply.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/impl/codegen/proto_utils.h"

namespace tessera {
namespace {

// Bytes that others share.
grpc::Slice Share(std::shared_ptr<const std::string> bytes) {
  using Owner = std::shared_ptr<const std::string>;
  auto* owner = new Owner(std::move(bytes));
  return {const_cast<char*>((*owner)->data()), (*owner)->size(),
          [](void* held) { delete static_cast<Owner*>(held); }, owner};
}

grpc::ByteBuffer Serialized(const v1::AttendResponse& message) {
  const grpc::Slice bytes(message.SerializeAsString());
  return {&bytes, 1};
}

// An AttendResponse with form_host: its parts, one after the other, are it.
grpc::ByteBuffer SerializedForm(const std::shared_ptr<const std::string>& of_all,
                                const v1::FormHost& own) {
  using google::protobuf::internal::WireFormatLite;
  const std::string rest = own.SerializeAsString();
  std::string head;
  {
    google::protobuf::io::StringOutputStream stream(&head);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.WriteTag(WireFormatLite::MakeTag(v1::AttendResponse::kFormHostFieldNumber,
                                         WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    out.WriteVarint32(static_cast<uint32_t>(of_all->size() + rest.size()));
  }
  const grpc::Slice parts[] = {grpc::Slice(head), Share(of_all), grpc::Slice(rest)};
  return {parts, 3};
}

// One member's stream. Messages out are queued and written one after the other; no thread waits for
// a member.
class AttendReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            public MemberSink,
                            public std::enable_shared_from_this<AttendReactor> {
 public:
  // gRPC holds a bare pointer until OnDone, so the stream owns itself until then.
  static AttendReactor* Start(Coordinator* coordinator, MemberCheck check) {
    auto reactor = std::make_shared<AttendReactor>(coordinator, std::move(check));
    reactor->self_ = reactor;
    reactor->StartRead(&reactor->bytes_);
    return reactor.get();
  }

  AttendReactor(Coordinator* coordinator, MemberCheck check)
      : coordinator_(coordinator), check_(std::move(check)) {}

  void Send(v1::AttendResponse message) override { Enqueue(Serialized(message)); }

  void SendForm(const std::shared_ptr<const std::string>& of_all,
                const v1::FormHost& own) override {
    Enqueue(SerializedForm(of_all, own));
  }

  void Close(const absl::Status& status) override {
    {
      MutexLock lock(mutex_);
      if (!closing_.has_value()) closing_ = status;
    }
    Pump();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Lost();
    absl::Status status;
    if (!grpc::SerializationTraits<v1::AttendRequest>::Deserialize(&bytes_, &request_).ok()) {
      status = absl::InvalidArgumentError("the message is no AttendRequest");
    } else if (status = check_.Check(request_); !status.ok()) {
      // Not passed on.
    } else if (member_ != 0) {
      status = coordinator_->Receive(member_, request_);
    } else {
      absl::StatusOr<MemberId> member = coordinator_->Join(request_, shared_from_this());
      status = member.status();
      if (member.ok()) member_ = *member;
    }
    if (!status.ok()) {
      Close(status);
      return Lost();
    }
    if (!closing()) StartRead(&bytes_);
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) queue_.clear();
    }
    Pump();
  }

  // The failed read that follows tells the coordinator, from the thread that also delivers
  // messages.
  void OnCancel() override { Close(absl::CancelledError("the member went away")); }

  void OnDone() override { const std::shared_ptr<AttendReactor> last = std::move(self_); }

 private:
  void Enqueue(grpc::ByteBuffer message) {
    {
      MutexLock lock(mutex_);
      if (closing_.has_value()) return;
      queue_.push_back(std::move(message));
    }
    Pump();
  }

  void Lost() {
    if (member_ != 0) coordinator_->StreamBroken(member_);
    Close(absl::OkStatus());
  }

  // Starts the next write, or finishes; whoever sets writing_ or finished_ is the only one who
  // acts.
  void Pump() {
    absl::Status status;
    bool finish = false;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        response_ = std::move(queue_.front());
        queue_.pop_front();
        writing_ = true;
      } else if (closing_.has_value()) {
        status = *closing_;
        finished_ = finish = true;
      } else {
        return;
      }
    }
    if (finish) {
      Finish(ToGrpcStatus(status));
    } else {
      StartWrite(&response_);
    }
  }

  bool closing() const {
    MutexLock lock(mutex_);
    return closing_.has_value();
  }

  Coordinator* const coordinator_;
  const MemberCheck check_;
  std::shared_ptr<AttendReactor> self_;
  grpc::ByteBuffer bytes_;     // of the one read at a time
  v1::AttendRequest request_;  // the same
  MemberId member_ = 0;        // set by the first read
  grpc::ByteBuffer response_;  // of whoever set writing_
  mutable Mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// A Fetch that waits: answered by the coordinator, or by its caller's going away.
class FetchReactor final : public grpc::ServerUnaryReactor {
 public:
  // gRPC holds a bare pointer until OnDone, so the call owns itself until then.
  static FetchReactor* Start(Coordinator* coordinator,
                             const v1::FetchCommunicatorIdsRequest& request,
                             v1::FetchCommunicatorIdsResponse* response) {
    auto reactor = std::make_shared<FetchReactor>(response);
    reactor->self_ = reactor;
    const absl::Status taken = coordinator->FetchCommunicatorIds(
        request,
        [reactor](const absl::StatusOr<v1::CommunicatorIds>& ids) { reactor->Answer(ids); });
    if (!taken.ok()) reactor->Answer(taken);
    return reactor.get();
  }

  explicit FetchReactor(v1::FetchCommunicatorIdsResponse* response) : response_(response) {}

  // The coordinator's answer, which still comes, then finds the call answered.
  void OnCancel() override { Answer(absl::CancelledError("the caller went away")); }

  void OnDone() override { const std::shared_ptr<FetchReactor> last = std::move(self_); }

 private:
  void Answer(const absl::StatusOr<v1::CommunicatorIds>& ids) {
    if (answered_.exchange(true)) return;
    if (ids.ok()) *response_->mutable_ids() = *ids;
    Finish(ToGrpcStatus(ids.status()));
  }

  std::shared_ptr<FetchReactor> self_;
  v1::FetchCommunicatorIdsResponse* const response_;  // of whoever set answered_
  std::atomic<bool> answered_{false};
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* MembershipService::Attend(
    grpc::CallbackServerContext* context) {
  Caller caller = Anybody();
  if (options_.authenticator != nullptr) {
    // The guard has let it pass.
    absl::StatusOr<Caller> known = options_.authenticator->Identify(ShownBy(*context));
    if (known.ok()) caller = *std::move(known);
  }
  return AttendReactor::Start(coordinator_, MemberCheck({.caller = std::move(caller),
                                                         .max_members = options_.max_members,
                                                         .message_limits = options_.message_limits},
                                                        &members_));
}

grpc::ServerUnaryReactor* MembershipService::ListUnits(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  v1::ListUnitsRequest parsed;
  // Deserialize takes what it reads out of the buffer, and the request is not ours.
  grpc::ByteBuffer bytes(*request);
  if (!grpc::SerializationTraits<v1::ListUnitsRequest>::Deserialize(&bytes, &parsed).ok()) {
    return Reply(context, absl::InvalidArgumentError("the request is no ListUnitsRequest"));
  }
  const absl::Status status = CheckJobName("job", parsed.job());
  if (!status.ok()) return Reply(context, status);
  absl::StatusOr<std::shared_ptr<const std::string>> page = coordinator_->ListUnits(parsed);
  if (page.ok()) {
    const grpc::Slice bytes = Share(*std::move(page));
    *response = grpc::ByteBuffer(&bytes, 1);
  }
  return Reply(context, page.status());
}

grpc::ServerUnaryReactor* MembershipService::ReportStats(grpc::CallbackServerContext* context,
                                                         const v1::ReportStatsRequest* request,
                                                         v1::ReportStatsResponse*) {
  const absl::Status status = CheckJobName("job", request->job());
  return Reply(context, status.ok() ? coordinator_->ReportStats(*request) : status);
}

grpc::ServerUnaryReactor* MembershipService::PublishCommunicatorIds(
    grpc::CallbackServerContext* context, const v1::PublishCommunicatorIdsRequest* request,
    v1::PublishCommunicatorIdsResponse*) {
  const absl::Status status = CheckJobName("job", request->job());
  return Reply(context, status.ok() ? coordinator_->PublishCommunicatorIds(*request) : status);
}

grpc::ServerUnaryReactor* MembershipService::FetchCommunicatorIds(
    grpc::CallbackServerContext* context, const v1::FetchCommunicatorIdsRequest* request,
    v1::FetchCommunicatorIdsResponse* response) {
  const absl::Status status = CheckJobName("job", request->job());
  if (!status.ok()) return Reply(context, status);
  return FetchReactor::Start(coordinator_, *request, response);
}

grpc::ServerUnaryReactor* MembershipService::AnnounceModule(
    grpc::CallbackServerContext* context, const v1::AnnounceModuleRequest* request,
    v1::AnnounceModuleResponse* response) {
  const absl::Status status = CheckJobName("job", request->job());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->AnnounceModule(*request), response);
}

grpc::ServerUnaryReactor* MembershipService::ChangeModelDType(
    grpc::CallbackServerContext* context, const v1::ChangeModelDTypeRequest* request,
    v1::ChangeModelDTypeResponse*) {
  const absl::Status status = CheckJobName("job", request->job());
  return Reply(context, status.ok() ? coordinator_->ChangeModelDType(*request) : status);
}

}  // namespace tessera
