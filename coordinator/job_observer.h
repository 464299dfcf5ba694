// What there is to know about a job that goes wrong: where its ranks are, which of them straggle,
// and the incidents so far.
//
//   JobObserver observer;
//   observer.BeginGeneration(planned, /*ranks=*/4, heartbeat);
//   observer.Position(1, heartbeat.position(), now);
//   observer.Report(1, step, samples);
//   v1::Incident incident = observer.Explain(blame, host, now);     a loss: completes blame.reason
//   for (v1::Incident& told : observer.Advance(now)) ...            stragglers, new and over
//
// Pure: no clock or lock; the caller locks, and gives incidents their time, generation and step.
#ifndef TESSERA_COORDINATOR_JOB_OBSERVER_H_
#define TESSERA_COORDINATOR_JOB_OBSERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "coordinator/incident_log.h"
#include "coordinator/job.h"
#include "coordinator/planned_job.h"
#include "coordinator/rank_positions.h"
#include "coordinator/stragglers.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class JobObserver {
 public:
  // Forgets where ranks were. Stragglers of the last generation are none any more: see Advance.
  void BeginGeneration(std::shared_ptr<const PlannedJob> planned, int ranks,
                       absl::Duration heartbeat);

  // What ranks say of themselves.
  void Position(int rank, const v1::Position& position, absl::Time now) {
    positions_.Record(rank, position, now);
  }
  void Report(const v1::ReportStatsRequest& report) {
    stragglers_.Record(report.rank(), report.step(), report.samples());
  }
  // For people; "" where the rank has not said so.
  std::string PositionOf(int rank, absl::Time now) const;

  // What ended a generation. Where ranks are stuck, adds to blame.reason where they are and where
  // the others wait. `host`: of the rank that is to blame.
  v1::Incident Explain(Blame& blame, const std::string& host, absl::Time now) const;

  // Incidents without a number are new, and are to be kept. Those with one have an outcome now.
  std::vector<v1::Incident> Advance(absl::Time now, absl::FunctionRef<std::string(int)> host_of);

  // Numbers and keeps it, and returns it as it is kept.
  v1::Incident Keep(v1::Incident incident, absl::Time now);
  // The last loss (LOST, STUCK, DISAGREEMENT) whose outcome is not known yet, with what followed:
  // `what` and " after 1.2s". None: nothing was open.
  std::optional<v1::Incident> EndLoss(const std::string& what, absl::Time now);

  // One that an earlier process of the coordinator has kept: it as it was, or with its outcome.
  void Restore(const v1::Incident& incident, absl::Time now);

  const IncidentLog& incidents() const { return incidents_; }

 private:
  std::string UnitName(int unit) const;

  std::shared_ptr<const PlannedJob> planned_;
  RankPositions positions_;
  StragglerDetector stragglers_;
  IncidentLog incidents_;
  std::map<int, std::pair<int64_t, absl::Time>> straggling_;  // by rank: incident, and since when
  std::vector<int64_t> left_open_;  // straggler incidents of generations that have ended
  int64_t open_loss_ = 0;           // its number; 0: none
  absl::Time lost_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_JOB_OBSERVER_H_
