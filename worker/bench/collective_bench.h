// What the data path's operations cost on this host, beside the same traffic by plain loops.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::vector<BenchResult> results,
//                            RunCollectiveBench({.world_size = 2, .unit_bytes = {64 << 20}}));
//
// Ranks are processes; buffers are memory files, as in a job. Each operation alternates with its
// bare loop, each from a barrier of all ranks to the next, on memory of their own. What an
// operation made is then compared, bit for bit, with what the bare loop made.
//
// Thread-safety: call it from a process without threads.
#ifndef TESSERA_WORKER_BENCH_COLLECTIVE_BENCH_H_
#define TESSERA_WORKER_BENCH_COLLECTIVE_BENCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct CollectiveBenchOptions {
  int world_size = 2;
  // Of a unit in float32, unsharded. Rounded up so that every rank's shard is a multiple of 128
  // bytes in every dtype.
  std::vector<int64_t> unit_bytes = {1 << 20, 16 << 20, 64 << 20};
  int runs = 41;  // timed, of each; 21 or more make a figure
};

struct BenchResult {
  std::string op;              // unshard, reduce_scatter, all_reduce, barrier or optimizer
  std::string mode;            // of an unshard: SLOTS or RESIDENT
  std::string original_dtype;  // of the master
  std::string param_dtype;     // of the unit, the gradients, or the optimizer's second copy
  std::string reduce_dtype;    // of a reduce_scatter or all_reduce
  int64_t bytes = 0;           // of the unsharded unit in original_dtype; 0 for a barrier
  double median_seconds = 0;
  double p99_seconds = 0;
  double bare_loop_median_seconds = 0;
  double memcpy_median_seconds = 0;  // of `bytes`, on every rank at once; 0 for a barrier
  // barrier: the part of a core that a rank takes while it waits half a second for another.
  std::optional<double> waiting_core_fraction;
};

// RESOURCE_EXHAUSTED: the host has too little memory. DATA_LOSS: an operation and its bare loop
// made different bits; names the operation. INTERNAL: a rank failed.
absl::StatusOr<std::vector<BenchResult>> RunCollectiveBench(const CollectiveBenchOptions& options);

// Of sorted values; the smallest that at least `fraction` of them do not exceed.
double Percentile(const std::vector<double>& sorted, double fraction);

}  // namespace tessera

#endif  // TESSERA_WORKER_BENCH_COLLECTIVE_BENCH_H_
