// What went wrong in one job, the oldest first: the last `max_incidents`, numbered from 1.
//
//   IncidentLog log;
//   const int64_t number = log.Add(incident);                 numbers and keeps it
//   log.SetOutcome(number, "generation 3 began after 1.2s");
//   const IncidentLog::Page page = log.Read(/*after=*/0, /*limit=*/100);
//
// Numbers only grow, also past incidents that are not kept any more, so that a number names one
// incident for as long as the job is known.
//
// Pure: no clock, lock or I/O; the caller locks.
#ifndef TESSERA_COORDINATOR_INCIDENT_LOG_H_
#define TESSERA_COORDINATOR_INCIDENT_LOG_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tessera/v1/job.pb.h"

namespace tessera {

class IncidentLog {
 public:
  explicit IncidentLog(int64_t max_incidents = 1000) : max_incidents_(max_incidents) {}

  // Keeps it under the next number, which it gets, and drops the oldest where there are too many.
  // Returns the number.
  int64_t Add(v1::Incident incident);
  // One that was kept elsewhere, with its number. Ignored unless that is greater than all before.
  void Restore(v1::Incident incident);
  // What followed. The incident as it is then; null: it is not kept (any more).
  const v1::Incident* SetOutcome(int64_t number, const std::string& outcome);

  // Null: it is not kept.
  const v1::Incident* Find(int64_t number) const;
  int64_t last_number() const { return last_number_; }  // 0: none yet

  struct Page {
    std::vector<v1::Incident> incidents;
    bool more = false;  // there are incidents after these
  };
  // At most `limit` of those with greater numbers than `after`.
  Page Read(int64_t after, int64_t limit) const;

 private:
  const int64_t max_incidents_;
  int64_t last_number_ = 0;
  std::deque<v1::Incident> incidents_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_INCIDENT_LOG_H_
