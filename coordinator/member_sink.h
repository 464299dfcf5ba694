// How the coordinator reaches a member: the adapter's stream, or a test's record.
//
//   sink->Send(message);
//   sink->Close(absl::OkStatus());
//
// Thread-safety: one thread at a time calls.
#ifndef TESSERA_COORDINATOR_MEMBER_SINK_H_
#define TESSERA_COORDINATOR_MEMBER_SINK_H_

#include "absl/status/status.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

// The way out to one member. Neither call waits; after Close nothing is sent.
class MemberSink {
 public:
  virtual ~MemberSink() = default;
  virtual void Send(v1::AttendResponse message) = 0;
  // Ends the member's stream after what was sent before.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MEMBER_SINK_H_
