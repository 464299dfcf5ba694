// A worker's line to the coordinator. The gRPC one is made by CreateMembershipClient
// (membership_client.cc, the only file here that includes gRPC); tests use a fake.
#ifndef TESSERA_WORKER_MEMBERSHIP_CLIENT_H_
#define TESSERA_WORKER_MEMBERSHIP_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tessera/v1/membership_service.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/position.h"

namespace tessera {

// The units of a layout, as ListUnits gives them.
struct PlannedUnits {
  std::vector<v1::Unit> units;
  std::vector<v1::UnitLayout> layouts;  // same length and order
};

class MembershipClient {
 public:
  virtual ~MembershipClient() = default;

  // From now on heartbeats, and an error with which the rank leaves, say where `position` says that
  // the rank is. Call before or after JoinRank.
  virtual void SetPosition(std::shared_ptr<const PositionPublisher> /*position*/) {}
  // Takes the rank and starts to send heartbeats from a thread of its own. `on_end` is called at
  // most once, from another thread, when the coordinator ends the generation (ABORTED,
  // GENERATION_ENDED where the job recovers, else JOB_ENDED) or refuses the rank. One that is away
  // is waited for, however long: the rank joins again with the same incarnation. Errors: as
  // MembershipService.Attend; after `timeout` UNAVAILABLE where the coordinator is not there,
  // DEADLINE_EXCEEDED where it says nothing.
  virtual absl::Status JoinRank(const v1::JoinRank& join, absl::Duration timeout,
                                std::function<void(const absl::Status&)> on_end) = 0;
  // Errors: as MembershipService.ListUnits; DEADLINE_EXCEEDED after `timeout`.
  virtual absl::StatusOr<PlannedUnits> ListUnits(const std::string& job, int64_t generation,
                                                 absl::Duration timeout) = 0;
  // Passes on the ids of this rank's group, and gets them. The coordinator ends the wait at
  // timeouts.collective and says who is missing; a `timeout` beyond that leaves it the word.
  // Errors: as MembershipService; DEADLINE_EXCEEDED after `timeout`.
  virtual absl::Status PublishCommunicatorIds(const v1::PublishCommunicatorIdsRequest& request,
                                              absl::Duration timeout) = 0;
  virtual absl::StatusOr<v1::CommunicatorIds> FetchCommunicatorIds(
      const v1::FetchCommunicatorIdsRequest& request, absl::Duration timeout) = 0;
  // While the rank builds the model. Several threads may call at once. Errors: as
  // MembershipService; DEADLINE_EXCEEDED after `timeout`.
  virtual absl::StatusOr<v1::AnnounceModuleResponse> AnnounceModule(
      const v1::AnnounceModuleRequest& /*request*/, absl::Duration /*timeout*/) {
    return absl::UnimplementedError("this line to a coordinator is not for building models");
  }
  virtual absl::Status ChangeModelDType(const v1::ChangeModelDTypeRequest& /*request*/,
                                        absl::Duration /*timeout*/) {
    return absl::UnimplementedError("this line to a coordinator is not for building models");
  }
  // Says that this rank is ready to go on after `step` and returns when every rank is. ABORTED: the
  // generation ended. DEADLINE_EXCEEDED.
  virtual absl::Status AwaitStart(int64_t measured_bytes, int64_t step, absl::Duration timeout) = 0;
  // This rank can go no further in its generation, has left its collectives and waits for the next
  // one. Never waits.
  virtual void Break(const absl::Status& /*status*/, std::optional<int> /*blamed_rank*/) {}
  // The coordinator wants the job to stop after the step that is computed now (Drain). Any thread.
  virtual bool Draining() const { return false; }
  // And then to go on with another world size (Drain.resize).
  virtual bool Resizing() const { return false; }
  // Ends everything above that waits, now and later, with `status`: the caller knows that
  // there is nothing to wait for. Any thread.
  virtual void Interrupt(const absl::Status& status) = 0;
  // Hands a report over to be sent and returns; never waits. Reports are sent in order, each with a
  // deadline; while the coordinator is away newer samples replace older ones and progress is kept
  // (the last 1,000 lines).
  virtual void ReportStats(v1::ReportStatsRequest report) = 0;
  // Sends what is left of the reports and then Leave, waiting at most `timeout` in all. With OK a
  // coordinator that is away is waited for besides. The last call.
  virtual void Leave(const absl::Status& status, std::optional<int> blamed_rank,
                     absl::Duration timeout) = 0;
};

// `coordinator`: HOST:PORT. Does not connect yet.
std::unique_ptr<MembershipClient> CreateMembershipClient(const std::string& coordinator);

}  // namespace tessera

#endif  // TESSERA_WORKER_MEMBERSHIP_CLIENT_H_
