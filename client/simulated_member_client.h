// One simulated member's Attend stream: what it sends is written one after the other, what it is
// sent goes to its owner as bytes. No thread waits.
//
//   SimulatedMemberStream stream(on_message, on_end);    must live until on_end is called
//   stream.Start(stub, first);
//   stream.Send(ready);
//
// Thread-safe.
#ifndef TESSERA_CLIENT_SIMULATED_MEMBER_CLIENT_H_
#define TESSERA_CLIENT_SIMULATED_MEMBER_CLIENT_H_

#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

using AttendStub = grpc::TemplatedGenericStub<v1::AttendRequest, grpc::ByteBuffer>;

class SimulatedMemberStream final
    : public grpc::ClientBidiReactor<v1::AttendRequest, grpc::ByteBuffer> {
 public:
  // Both are called in gRPC's threads, one at a time; on_end last, with how the stream ended.
  using OnMessage = std::function<void(grpc::ByteBuffer& message)>;
  using OnEnd = std::function<void(const absl::Status& status)>;
  SimulatedMemberStream(OnMessage on_message, OnEnd on_end)
      : on_message_(std::move(on_message)), on_end_(std::move(on_end)) {}

  // Once.
  void Start(AttendStub& stub, v1::AttendRequest first);
  // Drops it once the stream is over.
  void Send(v1::AttendRequest message);
  // As Send, but drops it also where an earlier message is not written yet. Returns whether it was
  // taken.
  bool SendIfIdle(v1::AttendRequest message);
  // Ends the stream soon.
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void WriteNext();

  const OnMessage on_message_;
  OnEnd on_end_;
  grpc::ClientContext context_;
  grpc::ByteBuffer response_;  // of the one read at a time
  v1::AttendRequest request_;  // of whoever set writing_
  Mutex mutex_;
  std::deque<v1::AttendRequest> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SIMULATED_MEMBER_CLIENT_H_
