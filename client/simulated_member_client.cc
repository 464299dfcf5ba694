#include "client/simulated_member_client.h"

#include <utility>

#include "common/grpc_status.h"

namespace tessera {

void SimulatedMemberStream::Start(AttendStub& stub, v1::AttendRequest first) {
  stub.PrepareBidiStreamingCall(&context_, "/tessera.v1.MembershipService/Attend", {}, this);
  // Until the read that fails: writes come from anywhere.
  AddHold();
  StartRead(&response_);
  StartCall();
  Send(std::move(first));
}

void SimulatedMemberStream::Send(v1::AttendRequest message) {
  {
    MutexLock lock(mutex_);
    if (over_) return;
    queue_.push_back(std::move(message));
  }
  WriteNext();
}

bool SimulatedMemberStream::SendIfIdle(v1::AttendRequest message) {
  {
    MutexLock lock(mutex_);
    if (over_ || writing_ || !queue_.empty()) return false;
    queue_.push_back(std::move(message));
  }
  WriteNext();
  return true;
}

void SimulatedMemberStream::WriteNext() {
  {
    MutexLock lock(mutex_);
    if (over_ || writing_ || queue_.empty()) return;
    request_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    AddHold();  // the stream's own goes with over_
  }
  StartWrite(&request_);
  RemoveHold();
}

void SimulatedMemberStream::OnReadDone(bool ok) {
  if (ok) {
    on_message_(response_);
    StartRead(&response_);
    return;
  }
  {
    MutexLock lock(mutex_);
    over_ = true;
    queue_.clear();
  }
  RemoveHold();
}

void SimulatedMemberStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) queue_.clear();
  }
  WriteNext();
}

void SimulatedMemberStream::OnDone(const grpc::Status& status) {
  // Whoever hears it may delete the stream.
  const OnEnd on_end = std::move(on_end_);
  on_end(FromGrpcStatus(status));
}

}  // namespace tessera
