// The ranks of a bench: processes forked from one that has no threads, over memory that it made.
//
//   TESSERA_ASSIGN_OR_RETURN(BenchMemory memory, BenchMemory::Create(bytes));
//   return RunBenchRanks(2, [&](int rank, BenchBarrier& barrier) { ... });
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_BENCH_BENCH_RANKS_H_
#define TESSERA_WORKER_BENCH_BENCH_RANKS_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/memory_file.h"

namespace tessera {

// Between timed runs, and the bare form of the data path's own barrier: it spins, for a rank that
// slept would be late. Gives up the core once it has spun for long, for machines with fewer cores
// than ranks.
class BenchBarrier {
 public:
  explicit BenchBarrier(int ranks) : ranks_(ranks) {}
  // Ends the process where the others have not come within a minute.
  void Wait();

 private:
  const int ranks_;
  std::atomic<int> arrived_{0};
  std::atomic<int> phase_{0};
};

// Zeroed memory of the kind that a job's buffers have, shared with every process forked later.
class BenchMemory {
 public:
  BenchMemory() = default;
  // RESOURCE_EXHAUSTED: not so much memory is left.
  static absl::StatusOr<BenchMemory> Create(absl::string_view name, int64_t bytes);
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(mapping_.data());
  }

 private:
  explicit BenchMemory(MemoryMapping mapping) : mapping_(std::move(mapping)) {}

  MemoryMapping mapping_;
};

// Runs `body` as each of `ranks` ranks and waits for all. A rank's error is written to stderr.
// INTERNAL: a rank failed or was killed; the others are then killed too. No rank outlives this
// process.
absl::Status RunBenchRanks(
    int ranks, const std::function<absl::Status(int rank, BenchBarrier& barrier)>& body);

}  // namespace tessera

#endif  // TESSERA_WORKER_BENCH_BENCH_RANKS_H_
