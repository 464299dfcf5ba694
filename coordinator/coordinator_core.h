// What the coordinator knows and decides, under its lock. Coordinator is the way in; this header is
// for its own files.
//
// A method that ends in Locked is called with mutex_ held. It acts on members and watchers by
// LaterLocked; who took the lock calls Flush after it has let go.
#ifndef TESSERA_COORDINATOR_COORDINATOR_CORE_H_
#define TESSERA_COORDINATOR_COORDINATOR_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/coordinator_base.h"
#include "coordinator/job_entry.h"
#include "coordinator/member_sink.h"
#include "coordinator/membership.h"
#include "coordinator/planned_job.h"
#include "coordinator/recovery_policy.h"
#include "coordinator/rendezvous.h"
#include "coordinator/state_store.h"
#include "coordinator/verdict.h"
#include "tessera/v1/job_service.pb.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class CoordinatorCore : protected CoordinatorBase {
 protected:
  using CoordinatorBase::CoordinatorBase;

  // coordinator_jobs.cc
  // The job that request_id already made; an error if it cannot be made now.
  absl::StatusOr<std::optional<v1::Job>> CheckNewLocked(const std::string& name,
                                                        const std::string& request_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndedLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(JobEntry& job, const Blame& blame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelLocked(JobEntry& job, absl::StatusCode code, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DrainLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  void RefuseWrongProgramsLocked(const JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendFormLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The part of FormHost that all hosts get; serialized later, before what is sent after this.
  std::shared_ptr<const std::string> FormOfAllLocked(const JobEntry& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendFormToLocked(const JobEntry& job, int host, std::shared_ptr<const std::string> of_all)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckDeadlineLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_recovery.cc
  // The generation is lost: the job recovers, or fails.
  void LoseLocked(JobEntry& job, Blame blame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The members hear that the generation is over; the next one starts `restart` anew, and the ranks
  // that have no process by now.
  void EndGenerationLocked(JobEntry& job, std::set<int> restart)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Survivors of a loss that ended before they joined: all ranks are started again.
  void ReformLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forms the next generation as soon as it is time and there are hosts for it.
  void RecoverLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<HostOffer> SparesLocked(const JobEntry& job, bool pool)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PlanNextLocked(JobEntry& job, const HostChoice& choice)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FormNextLocked(JobEntry& job, const HostChoice& choice,
                      std::shared_ptr<const PlannedJob> planned)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Every rank is ready.
  void BeginLocked(JobEntry& job, int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_growth.cc
  // FAILED_PRECONDITION (SECOND_HOST): the job has no place for a host that is bound to it.
  absl::Status CheckPlaceLocked(JobEntry& job, const v1::JoinHost& join)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Stops the job at a step boundary if hosts stand by with which it can have more ranks.
  void GrowLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopToGrowLocked(JobEntry& job, std::shared_ptr<const PlannedJob> larger)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It has stopped.
  void ResizeLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

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
  void RankJoinedLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReceiveLocked(MemberId member, const v1::AttendRequest& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WorkerExitedLocked(const HostMember& host, const v1::WorkerExited& exited)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HostLeftLocked(const HostMember& host, const v1::Leave& leave)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RankReadyLocked(const RankId& rank, const v1::RankReady& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RankLeftLocked(const RankId& rank, const v1::Leave& leave)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RankBrokenLocked(const RankId& rank, const v1::Broken& broken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AllDoneLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LostLocked(MemberId member, bool expired) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DecideLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_incidents.cc
  // Where the rank is, if `message` says so.
  void HearPositionLocked(const RankId& rank, const v1::AttendRequest& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Numbers it, keeps it with the job and tells watchers.
  void NoteLocked(JobEntry& job, v1::Incident incident) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes what ended the job's generation; blame.reason then says where stuck ranks are.
  void NoteLossLocked(JobEntry& job, Blame& blame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What followed the last loss, if its incident does not say so yet.
  void NoteOutcomeLocked(JobEntry& job, const std::string& what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckStragglersLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellIncidentLocked(JobEntry& job, const v1::Incident& incident)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_rendezvous.cc
  void BeginRendezvousLocked(const JobEntry& job, int64_t generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerFetchesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_restore.cc
  void RestoreJobLocked(const StoredState& state, const StoredJob& stored,
                        absl::StatusOr<std::shared_ptr<const PlannedJob>> planned)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RestoreGenerationLocked(JobEntry& job, const StoredMembers& members)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RestoreRecoveryLocked(JobEntry& job, const std::set<std::string>& words)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckAwayLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_rejoin.cc
  // Nothing: it joins as any other.
  absl::StatusOr<std::optional<MemberId>> RejoinHostLocked(const v1::JoinHost& join,
                                                           std::shared_ptr<MemberSink> sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<MemberId>> RejoinJobLocked(JobEntry& job, const v1::JoinHost& join,
                                                          std::shared_ptr<MemberSink> sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<MemberId> RejoinRankLocked(const v1::JoinRank& join,
                                            std::shared_ptr<MemberSink> sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MemberId TellEndLocked(std::shared_ptr<MemberSink> sink, v1::JobState state,
                         const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_COORDINATOR_CORE_H_
