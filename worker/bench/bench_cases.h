// What `tessera bench collective` measures, and how a case is reported.
#ifndef TESSERA_WORKER_BENCH_BENCH_CASES_H_
#define TESSERA_WORKER_BENCH_BENCH_CASES_H_

#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "tessera/v1/plan.pb.h"
#include "worker/bench/collective_bench.h"

namespace tessera {

enum class Operation { kUnshard, kReduceScatter, kAllReduce, kBarrier, kOptimizer };

struct Case {
  Operation operation = Operation::kUnshard;
  v1::UnshardMode mode = v1::SLOTS;
  DType param_dtype = v1::FLOAT32;
  int64_t numel = 0;  // of the unsharded unit; 0: a barrier
};

std::vector<Case> CasesOf(const CollectiveBenchOptions& options);

// What rank 0 found, where the parent can read it.
struct Timings {
  double median, p99, bare_median, memcpy_median, waiting_core_fraction;
};

BenchResult ResultOf(const Case& bench_case, const Timings& timings, int world_size);

}  // namespace tessera

#endif  // TESSERA_WORKER_BENCH_BENCH_CASES_H_
