#include "worker/report_sender.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/grpc_status.h"
#include "common/logging.h"
#include "common/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "tessera/v1/membership_service.grpc.pb.h"
#include "worker/report_buffer.h"

namespace tessera {
namespace {

// Longer than a coordinator's pause that the rest of a worker tolerates: a report whose call was
// given up may have been taken after all, and is then sent twice.
constexpr std::chrono::seconds kCallTimeout(60);

bool IsWorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

class ReportSender::Impl {
 public:
  explicit Impl(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::MembershipService::NewStub(std::move(channel))) {}

  ~Impl() {
    Call* call = nullptr;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      call = call_.get();
    }
    // It stays where it is: nothing follows it any more.
    if (call != nullptr) call->context.TryCancel();
    MutexLock lock(mutex_);
    while (under_way_) changed_.Wait(lock);
  }

  void Add(v1::ReportStatsRequest report) {
    {
      MutexLock lock(mutex_);
      buffer_.Add(std::move(report));
    }
    SendNext();
  }

  bool Flush(absl::Time deadline) {
    // Twice: the call that is under way may fail, and then nothing of the rest was tried.
    for (int attempt = 0; attempt < 2; ++attempt) {
      SendNext();
      MutexLock lock(mutex_);
      while (under_way_) {
        const absl::Duration left = deadline - Clock::Real()->Now();
        if (left <= absl::ZeroDuration()) return false;
        changed_.WaitFor(lock, left);
      }
      if (buffer_.empty()) return true;
    }
    return false;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::ReportStatsRequest request;
    v1::ReportStatsResponse response;
  };

  void SendNext() {
    Call* call = nullptr;
    {
      MutexLock lock(mutex_);
      if (!under_way_) call = NextLocked();
    }
    if (call != nullptr) Issue(call);
  }

  // The call to make now, in the place of the last one; null where there is nothing to send.
  Call* NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stopping_ || buffer_.empty()) return nullptr;
    call_ = std::make_unique<Call>();
    call_->request = buffer_.Take();
    // A coordinator that is away is waited for.
    call_->context.set_wait_for_ready(true);
    call_->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    under_way_ = true;
    return call_.get();
  }

  // The callback does not own the call. A ClientContext holds its channel, and a process's last
  // channel must not be released by gRPC's own thread: that thread polls a queue which goes with
  // it.
  void Issue(Call* call) {
    stub_->async()->ReportStats(
        &call->context, &call->request, &call->response,
        [this, call](const grpc::Status& status) { Finish(call, FromGrpcStatus(status)); });
  }

  void Finish(Call* call, const absl::Status& status) {
    const bool again = IsWorthAnotherTry(status);
    if (!status.ok() && !again && !absl::IsCancelled(status) && !complained_.exchange(true)) {
      LogError(absl::StrCat("a report was refused: ", status.ToString()));
    }
    Call* next = nullptr;
    {
      MutexLock lock(mutex_);
      under_way_ = false;
      if (again) {
        // It waits for the next report, so that a coordinator that is away is not called in a loop.
        buffer_.PutBack(std::move(call->request));
      } else {
        next = NextLocked();
      }
      // Without a call under way the destructor may go on as soon as the lock is free.
      if (next == nullptr) changed_.NotifyAll();
    }
    if (next != nullptr) Issue(next);
  }

  const std::unique_ptr<v1::MembershipService::Stub> stub_;

  Mutex mutex_;
  CondVar changed_;
  ReportBuffer buffer_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);  // the last one
  bool under_way_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<bool> complained_ = false;
};

ReportSender::ReportSender(std::shared_ptr<grpc::Channel> channel)
    : impl_(std::make_unique<Impl>(std::move(channel))) {}
ReportSender::~ReportSender() = default;
void ReportSender::Add(v1::ReportStatsRequest report) { impl_->Add(std::move(report)); }
bool ReportSender::Flush(absl::Time deadline) { return impl_->Flush(deadline); }

}  // namespace tessera
