// How the coordinator reaches a member: the adapter's stream, or a test's record.
//
//   sink->Send(message);
//   sink->Close(absl::OkStatus());
//
// Thread-safety: one thread at a time calls.
#ifndef TESSERA_COORDINATOR_MEMBER_SINK_H_
#define TESSERA_COORDINATOR_MEMBER_SINK_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

// The way out to one member. Neither call waits; after Close nothing is sent.
class MemberSink {
 public:
  virtual ~MemberSink() = default;
  virtual void Send(v1::AttendResponse message) = 0;
  // Sends the form_host of which `of_all` is the part that all of the job's hosts get, serialized
  // once, and `own` the rest. As Send of both together, which it does where it is not overridden.
  virtual void SendForm(const std::shared_ptr<const std::string>& of_all, const v1::FormHost& own) {
    v1::AttendResponse message;
    message.mutable_form_host()->ParseFromString(*of_all);
    message.mutable_form_host()->MergeFrom(own);
    Send(std::move(message));
  }
  // Ends the member's stream after what was sent before.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MEMBER_SINK_H_
