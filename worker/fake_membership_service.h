// A coordinator for tests: does what a test says and keeps what it is told.
//
//   FakeMembershipService service;
//   ... a client of service.address() joins ...
//   service.AwaitRequest([](const v1::AttendRequest& r) { return r.has_join_host(); });
//   service.Send(response);
//
// Every wait ends after a minute at the latest, with a failed expectation. Thread-safety: any
// thread may call anything.
#ifndef TESSERA_WORKER_FAKE_MEMBERSHIP_SERVICE_H_
#define TESSERA_WORKER_FAKE_MEMBERSHIP_SERVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class FakeMembershipService {
 public:
  // Serves on a free port of loopback, or where an earlier one did that was killed.
  explicit FakeMembershipService(const std::string& address = "127.0.0.1:0");
  ~FakeMembershipService();

  // HOST:PORT.
  const std::string& address() const;

  // Before a join: answers it with this Welcome, with nothing, or with an error.
  void WelcomeJoins(const v1::Welcome& welcome);
  void IgnoreJoins();
  void RefuseJoins(const absl::Status& status);

  // To every stream that is open.
  void Send(const v1::AttendResponse& response);
  // Ends every stream that is open.
  void FinishStreams(const absl::Status& status);
  // Breaks every connection and stops to listen, as a coordinator that is killed does.
  void Kill();

  // ListUnits gives these pages, one after the other.
  void SetUnitPages(std::vector<v1::ListUnitsResponse> pages);
  // While true, ReportStats is not answered, as by a coordinator that is stopped. On false all are
  // answered.
  void HoldReports(bool hold);
  // ReportStats fails with this until it is set to OK.
  void FailReports(const absl::Status& status);

  // Waits for so many calls of FetchCommunicatorIds. They are answered once ids are published.
  void AwaitFetches(size_t count);
  // Every publication, in order.
  std::vector<v1::PublishCommunicatorIdsRequest> publications() const;

  // The first request of any stream, in the order in which they came, that `matches`; waits for it.
  v1::AttendRequest AwaitRequest(const std::function<bool(const v1::AttendRequest&)>& matches);
  // Waits until so many requests match, and returns them.
  std::vector<v1::AttendRequest> AwaitRequests(
      size_t count, const std::function<bool(const v1::AttendRequest&)>& matches);
  // Waits for so many calls of ReportStats, and returns them.
  std::vector<v1::ReportStatsRequest> AwaitReports(size_t count);
  // Waits until the clients have ended so many streams.
  void AwaitEndedStreams(int count);
  // All that came so far.
  std::vector<v1::AttendRequest> requests() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_FAKE_MEMBERSHIP_SERVICE_H_
