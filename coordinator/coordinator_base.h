// What the coordinator knows, and how it tells: the jobs, their members and what the next process
// is to know of them. CoordinatorCore decides.
//
// A method that ends in Locked is called with mutex_ held. It acts on members and watchers by
// LaterLocked; who took the lock calls Flush after it has let go.
#ifndef TESSERA_COORDINATOR_COORDINATOR_BASE_H_
#define TESSERA_COORDINATOR_COORDINATOR_BASE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/job_entry.h"
#include "coordinator/member_sink.h"
#include "coordinator/membership.h"
#include "coordinator/rendezvous.h"
#include "coordinator/request_log.h"
#include "coordinator/state_store.h"
#include "coordinator/state_writer.h"
#include "coordinator/verdict.h"
#include "tessera/v1/job_service.pb.h"
#include "tessera/v1/membership_service.pb.h"
#include "tessera/v1/stats_service.pb.h"

namespace tessera {

struct CoordinatorOptions {
  const Clock* clock = Clock::Real();
  Membership::Options membership = {};
  Verdict::Options verdict = {};
  int64_t max_live_jobs = 1000;
  int64_t max_ended_jobs = 100;
  int64_t max_events = 10000;  // of a job
  // Where jobs are kept for the next process; null: nowhere, and they end with this one. Borrowed.
  StateStore* store = nullptr;
};

class CoordinatorBase {
 protected:
  explicit CoordinatorBase(CoordinatorOptions options)
      : options_(options), writer_(options.store), members_(options.membership) {}

  // coordinator_jobs.cc
  absl::StatusOr<JobEntry*> FindLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobEntry* LiveLocked(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_queries.cc
  v1::JobStats StatsLocked(const JobEntry& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // coordinator_keep.cc. What the next process is to know; written before anybody is told.
  // What the store is to have before the job is there, in place of an ended one of its name.
  StateChange CreationLocked(const JobEntry& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepJobLocked(JobEntry& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepRankLocked(const RankId& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Appends it to the job's log.
  void KeepEventLocked(JobEntry& job, v1::WatchJobResponse event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepProgressLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The answer that the request got when it came first. INVALID_ARGUMENT: the id is another's.
  absl::StatusOr<std::optional<v1::Job>> AnsweredLocked(const std::string& method,
                                                        const std::string& name,
                                                        const std::string& request_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepAnswerLocked(const std::string& method, const std::string& request_id,
                        const v1::Job& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `job`, once it is kept; else why it is not.
  absl::StatusOr<v1::Job> Acknowledge(const v1::Job& job) ABSL_LOCKS_EXCLUDED(mutex_);

  // coordinator.cc. What is to be called without the lock, in order.
  void SendLocked(MemberId member, v1::AttendResponse message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked(MemberId member, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LaterLocked(std::function<void()> action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Flush() ABSL_LOCKS_EXCLUDED(mutex_);

  const CoordinatorOptions options_;
  StateWriter writer_;
  // Held while a job is created and kept: one after the other. Taken before mutex_.
  Mutex create_mutex_;
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
  RequestLog answered_ ABSL_GUARDED_BY(mutex_);
  absl::Time keep_progress_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // steady time
  std::deque<std::function<void()>> later_ ABSL_GUARDED_BY(mutex_);
  bool flushing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_COORDINATOR_BASE_H_
