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
// Bounds: 1,000 live jobs; the last 100 that ended; 10,000 events of a job. State ends with it.
//
// Thread-safe. Sinks and watchers are called, and plans made, without the lock held, in the order
// of what they tell; a sink may call back.
#ifndef TESSERA_COORDINATOR_COORDINATOR_H_
#define TESSERA_COORDINATOR_COORDINATOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/event_log.h"
#include "coordinator/job_entry.h"
#include "coordinator/member_sink.h"
#include "coordinator/membership.h"
#include "coordinator/planned_job.h"
#include "coordinator/rendezvous.h"
#include "coordinator/verdict.h"
#include "tessera/v1/job_service.pb.h"
#include "tessera/v1/membership_service.pb.h"
#include "tessera/v1/plan_service.pb.h"
#include "tessera/v1/stats_service.pb.h"

namespace tessera {

class Coordinator {
 public:
  struct Options {
    const Clock* clock = Clock::Real();
    Membership::Options membership = {};
    Verdict::Options verdict = {};
    int64_t max_live_jobs = 1000;
    int64_t max_ended_jobs = 100;
    int64_t max_events = 10000;  // of a job
  };
  explicit Coordinator(Options options);

  // Jobs. Errors as in job_service.proto, and RESOURCE_EXHAUSTED: too many live jobs.
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request);
  absl::StatusOr<v1::GetJobResponse> GetJob(const std::string& name);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<std::shared_ptr<EventLog>> WatchJob(const std::string& name);
  absl::StatusOr<v1::Job> CancelJob(const std::string& name, const std::string& reason);
  absl::StatusOr<v1::Job> DrainJob(const std::string& name);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers(const v1::ListWorkersRequest& request);

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
  // Cancels what lives, says so to all, and refuses everything new with UNAVAILABLE.
  void Shutdown();

 private:
  using JobEntry = ::tessera::JobEntry;

  // coordinator_jobs.cc
  absl::StatusOr<JobEntry*> FindLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The job that request_id already made; an error if it cannot be made now.
  absl::StatusOr<std::optional<v1::Job>> CheckNewLocked(const std::string& name,
                                                        const std::string& request_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndedLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(JobEntry& job, const Blame& blame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelLocked(JobEntry& job, absl::StatusCode code, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChangedLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseLocked(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_forming.cc
  void MatchLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MatchJobLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MatchHostsLocked(JobEntry& job, const std::vector<MemberId>& offered)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReserveLocked(JobEntry& job, const std::vector<MemberId>& hosts, int world_size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FormLocked(JobEntry& job, const std::vector<MemberId>& hosts,
                  std::shared_ptr<const PlannedJob> planned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Blame SecondHostLocked(const JobEntry& job, MemberId first, const std::string& second)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a host that runs `program` (see JoinHost) is what the job's workload asks for.
  // FAILED_PRECONDITION (WRONG_PROGRAM): it is not; says what would be.
  static absl::Status CheckProgram(const JobEntry& job, const std::string& program);
  void RefuseWrongProgramsLocked(const JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendFormLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckDeadlineLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_draft.cc
  void FormDraftLocked(JobEntry& job, const std::vector<MemberId>& hosts, int world_size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<SharedDraft>> FindDraft(const v1::AnnounceModuleRequest& of);
  void Built(const v1::AnnounceModuleRequest& of, bool finished, bool complete);
  void SealLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckDraftDeadlineLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_members.cc
  void WelcomeLocked(MemberId member, std::shared_ptr<MemberSink> sink, absl::Duration heartbeat,
                     absl::Duration lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<MemberId> JoinHostLocked(const v1::JoinHost& join,
                                          std::shared_ptr<MemberSink> sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<MemberId> JoinRankLocked(const v1::JoinRank& join,
                                          std::shared_ptr<MemberSink> sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReceiveLocked(MemberId member, const v1::AttendRequest& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WorkerExitedLocked(const HostMember& host, const v1::WorkerExited& exited)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HostLeftLocked(const HostMember& host, const v1::Leave& leave)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RankReadyLocked(const RankId& rank, int64_t measured_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RankLeftLocked(const RankId& rank, const v1::Leave& leave)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LostLocked(MemberId member, bool expired) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DecideLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static v1::WatchJobResponse ProgressEvent(const v1::Progress& progress, const JobEntry& job);
  JobEntry* LiveLocked(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_rendezvous.cc
  void BeginRendezvousLocked(const JobEntry& job, int64_t generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerFetchesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator.cc. What is to be called without the lock, in order.
  void SendLocked(MemberId member, v1::AttendResponse message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked(MemberId member, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LaterLocked(std::function<void()> action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Flush() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  Membership members_ ABSL_GUARDED_BY(mutex_);
  Rendezvous rendezvous_ ABSL_GUARDED_BY(mutex_);
  std::map<MemberId, std::shared_ptr<MemberSink>> sinks_ ABSL_GUARDED_BY(mutex_);
  int64_t last_job_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::unique_ptr<JobEntry>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, JobEntry*> live_ ABSL_GUARDED_BY(mutex_);  // by age
  std::deque<std::string> ended_ ABSL_GUARDED_BY(mutex_);      // names, oldest end first
  std::map<std::string, std::string> names_by_request_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> later_ ABSL_GUARDED_BY(mutex_);
  bool flushing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_COORDINATOR_H_
