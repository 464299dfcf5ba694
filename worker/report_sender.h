// Sends a rank's reports in their order, one call at a time, and never lets anybody wait for it. A
// report that did not get through goes with the next one, so that a coordinator that is away costs
// nothing but the delay.
//
// Thread-safety: any thread may call anything but the destructor.
#ifndef TESSERA_WORKER_REPORT_SENDER_H_
#define TESSERA_WORKER_REPORT_SENDER_H_

#include <memory>

#include "absl/time/time.h"
#include "tessera/v1/membership_service.pb.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tessera {

class ReportSender {
 public:
  explicit ReportSender(std::shared_ptr<grpc::Channel> channel);
  // Gives up what is not sent and waits until the call under way is cancelled.
  ~ReportSender();
  ReportSender(const ReportSender&) = delete;
  ReportSender& operator=(const ReportSender&) = delete;

  void Add(v1::ReportStatsRequest report);
  // Waits until all is sent, the coordinator has failed to take it, or `deadline` (of
  // Clock::Real()->Now()) has passed. True: all is sent.
  bool Flush(absl::Time deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_REPORT_SENDER_H_
