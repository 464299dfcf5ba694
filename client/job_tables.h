// Jobs and their progress as text for people. Pure: messages in, text out.
#ifndef TESSERA_CLIENT_JOB_TABLES_H_
#define TESSERA_CLIENT_JOB_TABLES_H_

#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/job_service.pb.h"

namespace tessera {

// Name, state, step of steps, last loss ("-": none yet) and age of each job; a header alone where
// there are none. At most 80 columns, longer names on a line of their own.
std::string JobsTable(const v1::ListJobsResponse& jobs);

// "step 100/600 loss 2.471 val 2.902 tokens/s 14210 left 1m9s"; " val X" only if the step was
// evaluated, " tokens/s X" only if the training loop says so, " left X" only if the coordinator has
// an estimate.
std::string ProgressLine(const v1::Progress& progress);

// "incident 2 STUCK: rank 1 on host a ...", or with an outcome "incident 2 STUCK: OUTCOME".
std::string IncidentLine(const v1::Incident& incident);

// Each incident: a line with its number, kind, time (UTC), generation and step, then its message,
// its outcome and where the ranks were. "no incidents" where there are none.
std::string IncidentsText(absl::Span<const v1::Incident> incidents);

// Two units at most, in whole seconds rounded up below an hour, in whole minutes above: "1s",
// "1m9s", "2h5m", "26h".
std::string TimeLeftText(absl::Duration left);

// The largest unit of which there are two: "97s", "97m", "47h", "12d". What is negative is "0s".
std::string AgeText(absl::Duration age);

}  // namespace tessera

#endif  // TESSERA_CLIENT_JOB_TABLES_H_
