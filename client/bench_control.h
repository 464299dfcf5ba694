// How a coordinator of its own bears the members of one large job: `tessera bench control`.
//
//   TESSERA_ASSIGN_OR_RETURN(const ControlFigures figures,
//                            BenchControl({.coordinator = path, .workers = 1000}));
//
// The job is a replay of Llama-3.1-405B in units of a decoder layer, on hosts of 8 workers or the
// largest number below that divides them all, each host with a copy of its own (hybrid_shard).
//
// Thread-safety: one call at a time, from a thread that lives as long as the process.
#ifndef TESSERA_CLIENT_BENCH_CONTROL_H_
#define TESSERA_CLIENT_BENCH_CONTROL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

struct ControlBenchOptions {
  std::string coordinator;  // the program
  int workers = 1000;
  int connections = 100;
  // How long the load is kept up for steady_core_fraction.
  absl::Duration steady = absl::Seconds(10);
  int plan_calls = 200;
};

struct ControlFigures {
  int workers = 0;
  int connections = 0;
  int units = 0;
  int hosts = 0;
  // From the first join until the last rank was told to start, each having listed all units.
  double form_seconds = 0;
  // The coordinator's, in that time.
  double coordinator_cpu_seconds = 0;
  // Until the end of the bench.
  int64_t coordinator_peak_rss_bytes = 0;
  // Of one core, while each member sends a heartbeat a second and each rank reports as it would in
  // training.
  double steady_core_fraction = 0;
  // What was sent in that time, a second: a load that is not kept up shows here.
  double heartbeats_per_second = 0;
  double reports_per_second = 0;
  // Under the same load.
  double get_plan_p99_seconds = 0;
};

// INVALID_ARGUMENT: with the flag's name. Else what starting the coordinator, creating the job, or
// a member's stream or call said.
absl::StatusOr<ControlFigures> BenchControl(const ControlBenchOptions& options);

// Workers on each host: the largest number of at most 8 that divides `workers`.
int BenchLocalWorkers(int workers);
// Resolved.
absl::StatusOr<v1::JobSpec> ControlBenchJob(int workers);
// The smallest of them that so many parts of all are not greater than (nearest rank).
double Percentile(std::vector<double> values, double part);

}  // namespace tessera

#endif  // TESSERA_CLIENT_BENCH_CONTROL_H_
