#include "worker/bench/bench_cases.h"

#include <algorithm>
#include <cmath>

#include "common/control_file.h"

namespace tessera {

std::vector<Case> CasesOf(const CollectiveBenchOptions& options) {
  std::vector<Case> cases = {{.operation = Operation::kBarrier}};
  for (const int64_t bytes : options.unit_bytes) {
    const int64_t floats = (bytes + 3) / static_cast<int64_t>(sizeof(float));
    const int64_t numel = RoundUp(floats, int64_t{64} * options.world_size);
    for (const DType dtype : {v1::FLOAT32, v1::BFLOAT16}) {
      cases.push_back({Operation::kUnshard, v1::SLOTS, dtype, numel});
      cases.push_back({Operation::kUnshard, v1::RESIDENT, dtype, numel});
      cases.push_back({Operation::kReduceScatter, v1::SLOTS, dtype, numel});
      cases.push_back({Operation::kAllReduce, v1::SLOTS, dtype, numel});
    }
    cases.push_back({Operation::kOptimizer, v1::SLOTS, v1::BFLOAT16, numel});
  }
  return cases;
}

BenchResult ResultOf(const Case& bench_case, const Timings& timings, int world_size) {
  BenchResult result;
  result.bytes = bench_case.numel * static_cast<int64_t>(sizeof(float));
  result.median_seconds = timings.median;
  result.p99_seconds = timings.p99;
  result.bare_loop_median_seconds = timings.bare_median;
  result.memcpy_median_seconds = timings.memcpy_median;
  if (bench_case.operation == Operation::kBarrier) {
    result.op = "barrier";
    result.memcpy_median_seconds = 0;
    if (world_size > 1) result.waiting_core_fraction = timings.waiting_core_fraction;
    return result;
  }
  result.original_dtype = v1::DType_Name(v1::FLOAT32);
  result.param_dtype = v1::DType_Name(bench_case.param_dtype);
  if (bench_case.operation == Operation::kUnshard) {
    result.op = "unshard";
    result.mode = v1::UnshardMode_Name(bench_case.mode);
  } else if (bench_case.operation != Operation::kOptimizer) {
    result.op = bench_case.operation == Operation::kReduceScatter ? "reduce_scatter" : "all_reduce";
    result.reduce_dtype = v1::DType_Name(v1::FLOAT32);
  } else {
    result.op = "optimizer";
  }
  return result;
}

double Percentile(const std::vector<double>& sorted, double fraction) {
  const double rank = std::ceil(fraction * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

}  // namespace tessera
