// The coordinator: owns the jobs, knows their members, and decides. Services translate; this acts.
// No gRPC in here.
//
//   Coordinator coordinator({.clock = Clock::Real()});
//   coordinator.CreateJob(request);                                  plans it; FORMING
//   coordinator.Join(join_host, sink);                               the agent: Welcome, FormHost
//   coordinator.Join(join_rank, sink);  coordinator.Receive(...)   workers: RankReady -> StartStep
//   coordinator.Tick();                                              every 100 ms: leases, verdicts
//
// Jobs are offered hosts in order of age: a host that is bound to the job first, then the oldest of
// the pool that is large enough and runs what the workload asks for; where mesh.local_world_size
// asks for several hosts, once enough are there. What breaks a generation fails the job: verdict.h.
//
// Bounds: 1,000 live jobs; the last 100 that ended; 10,000 events of a job. State ends with
// it, but for what options.store keeps: what was answered with OK, and what members were told.
//
// Thread-safe. Sinks and watchers are called, and plans made, without the lock held, in the order
// of what they tell; a sink may call back.
#ifndef TESSERA_COORDINATOR_COORDINATOR_H_
#define TESSERA_COORDINATOR_COORDINATOR_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/coordinator_core.h"
#include "coordinator/event_log.h"
#include "coordinator/member_sink.h"
#include "coordinator/membership.h"
#include "coordinator/rendezvous.h"
#include "tessera/v1/job_service.pb.h"
#include "tessera/v1/membership_service.pb.h"
#include "tessera/v1/plan_service.pb.h"
#include "tessera/v1/stats_service.pb.h"

namespace tessera {

class Coordinator : private CoordinatorCore {
 public:
  using Options = CoordinatorOptions;
  explicit Coordinator(Options options);
  // Before anything else: takes up what an earlier process has kept in options.store. Live jobs go
  // on in their generation; their members are AWAY until they join again, or are lost. Errors: as
  // StateStore::Load.
  absl::Status Restore();

  // Jobs. Errors as in job_service.proto, and RESOURCE_EXHAUSTED: too many live jobs. With a store:
  // RESOURCE_EXHAUSTED, UNAVAILABLE: the change cannot be kept; a job is then not created, and one
  // that was to end has ended until a restart.
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request);
  absl::StatusOr<v1::GetJobResponse> GetJob(const std::string& name);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<std::shared_ptr<EventLog>> WatchJob(const std::string& name);
  absl::StatusOr<v1::Job> CancelJob(const std::string& name, const std::string& reason,
                                    const std::string& request_id = "");
  absl::StatusOr<v1::Job> DrainJob(const std::string& name, const std::string& request_id = "");
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers(const v1::ListWorkersRequest& request);
  absl::StatusOr<v1::ListIncidentsResponse> ListIncidents(const v1::ListIncidentsRequest& request);

  // Plans. Errors as in plan_service.proto.
  absl::StatusOr<v1::CreatePlanResponse> CreatePlan(const v1::CreatePlanRequest& request);
  static absl::StatusOr<v1::ExplainModuleResponse> ExplainModule(
      const v1::ExplainModuleRequest& request);
  absl::StatusOr<v1::GetPlanResponse> GetPlan(const std::string& job);
  absl::StatusOr<v1::ListPlanUnitsResponse> ListPlanUnits(const v1::ListPlanUnitsRequest& request);

  // NOT_FOUND: no such job.
  absl::StatusOr<v1::JobStats> GetStats(const std::string& job);

  // Members. Errors as in membership_service.proto. What the sink is sent may come before Join
  // returns.
  absl::StatusOr<MemberId> Join(const v1::AttendRequest& first, std::shared_ptr<MemberSink> sink);
  // An error ends the stream; the caller then calls StreamBroken.
  absl::Status Receive(MemberId member, const v1::AttendRequest& message);
  // The stream is over without Leave, or over after Close. Does nothing the second time.
  void StreamBroken(MemberId member);
  // A serialized ListUnitsResponse.
  absl::StatusOr<std::shared_ptr<const std::string>> ListUnits(const v1::ListUnitsRequest& request);
  absl::Status ReportStats(const v1::ReportStatsRequest& request);
  absl::StatusOr<v1::AnnounceModuleResponse> AnnounceModule(
      const v1::AnnounceModuleRequest& request);
  absl::Status ChangeModelDType(const v1::ChangeModelDTypeRequest& request);
  absl::Status PublishCommunicatorIds(const v1::PublishCommunicatorIdsRequest& request);
  // OK: `done` is called once, as a sink is, maybe before this returns. An error: never.
  absl::Status FetchCommunicatorIds(const v1::FetchCommunicatorIdsRequest& request,
                                    Rendezvous::Done done);

  // Every 100 ms.
  void Tick();
  // Refuses everything new with UNAVAILABLE and ends all streams. Jobs that live are left to the
  // next process; without a store they are CANCELLED.
  void Shutdown();
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_COORDINATOR_H_
