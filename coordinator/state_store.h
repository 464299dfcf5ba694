// What of a coordinator survives its end: jobs, their members, what watchers saw, and which
// requests were answered.
//
//   TESSERA_ASSIGN_OR_RETURN(auto store, OpenSqliteStateStore("/var/lib/tessera"));
//   TESSERA_ASSIGN_OR_RETURN(StoredState state, store->Load());
//   StateChange change;
//   change.jobs[job.id] = job;
//   change.durable = true;
//   TESSERA_RETURN_IF_ERROR(store->Commit(change));     it is on the disk
//
// Values in, statuses out; a store knows nothing of what they mean. Changes are written whole or
// not at all, and in their order: a durable one takes those before it along.
#ifndef TESSERA_COORDINATOR_STATE_STORE_H_
#define TESSERA_COORDINATOR_STATE_STORE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/v1/job_service.pb.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

struct StoredJob {
  int64_t id = 0;  // order of age
  std::string request_id;
  v1::Job job;
  v1::JobSpec spec;  // resolved
  // Of the layout that its present generation has; "": it has none yet.
  std::string plan_fingerprint;
  std::string layout_fingerprint;
  std::string events_id;  // of its event log
};

// An answer that a repeated request gets again.
struct StoredRequest {
  std::string method;  // "cancel", "drain"
  v1::Job answer;
};

// Members of a job's present generation, by rank; hosts at HostIndex.
using StoredMembers = std::map<int, v1::Worker>;
inline int HostIndex(int host) { return -1 - host; }

using StoredEvents = std::map<int64_t, v1::WatchJobResponse>;  // by cursor

struct StateChange {
  // False: what is written survives the end of the process, but may go with the machine's.
  bool durable = false;
  std::map<int64_t, StoredJob> jobs;    // by id
  std::map<int64_t, v1::Job> progress;  // of jobs that are there, without the rest of them
  // Ids; of jobs, after what is put.
  std::set<int64_t> erased_jobs;
  // Jobs whose earlier members are of an earlier generation: they go first.
  std::set<int64_t> new_generations;
  std::map<int64_t, StoredMembers> members;
  std::map<int64_t, StoredEvents> events;
  std::map<int64_t, v1::JobStats> stats;
  std::map<std::string, StoredRequest> requests;    // by request id
  std::set<std::string> erased_requests;            // before what is put
  std::map<std::string, int64_t> last_generations;  // by job name
  int64_t last_job_id = 0;                          // 0: as before

  bool empty() const;
};

struct StoredState {
  std::map<int64_t, StoredJob> jobs;
  std::map<int64_t, StoredMembers> members;
  std::map<int64_t, StoredEvents> events;
  std::map<int64_t, v1::JobStats> stats;
  std::map<std::string, StoredRequest> requests;
  std::map<std::string, int64_t> last_generations;
  int64_t last_job_id = 0;
};

// Of a job, at most so many events are kept: the newest.
inline constexpr int64_t kMaxStoredEvents = 10000;

class StateStore {
 public:
  virtual ~StateStore() = default;

  // What all changes so far have made. DATA_LOSS: what is there is damaged; says where, and what to
  // do. UNAVAILABLE: it cannot be read.
  virtual absl::StatusOr<StoredState> Load() = 0;

  // RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE: it cannot be written, e.g. it has become
  // read-only. DATA_LOSS: the file is damaged. Each names the file. Then nothing has changed, and
  // the same may be tried again.
  virtual absl::Status Commit(const StateChange& change) = 0;
};

// One change for two, of which `newer` comes later.
void MergeChange(StateChange newer, StateChange* into);

// What `change` makes of `state`.
void ApplyChange(const StateChange& change, StoredState* state);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_STATE_STORE_H_
