#include "worker/bench/collective_bench.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "worker/bench/bare_loops.h"
#include "worker/bench/bench_cases.h"
#include "worker/bench/bench_ranks.h"
#include "worker/collectives/shm_collectives.h"
#include "worker/optimizer.h"

namespace tessera {
namespace {

constexpr int kWarmUps = 4;  // each set of buffers twice

// One set of buffers as a job has them, shared by all ranks. There are two, so that neither the
// operation nor its bare loop finds in a cache what the other has just read; they change places
// with every run, for one machine's pages are not all equally fast.
struct Buffers {
  BenchMemory unit;                         // float32 or narrower, unsharded
  BenchMemory gradients;                    // of all ranks, one after the other
  BenchMemory master, exp_avg, exp_avg_sq;  // shards of all ranks, in rank order
  BenchMemory reduced;                      // likewise; of an all-reduce whole units

  static absl::StatusOr<Buffers> Create(int64_t unit_bytes, int world_size) {
    Buffers made;
    TESSERA_ASSIGN_OR_RETURN(made.unit, BenchMemory::Create("bench-unit", unit_bytes));
    TESSERA_ASSIGN_OR_RETURN(made.gradients,
                             BenchMemory::Create("bench-gradients", unit_bytes * world_size));
    for (BenchMemory* shards : {&made.master, &made.exp_avg, &made.exp_avg_sq}) {
      TESSERA_ASSIGN_OR_RETURN(*shards, BenchMemory::Create("bench-shards", unit_bytes));
    }
    TESSERA_ASSIGN_OR_RETURN(made.reduced,
                             BenchMemory::Create("bench-reduced", unit_bytes * world_size));
    return made;
  }
};

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// One rank in one case.
class CaseRank {
 public:
  // `controls`: a control file for each set of buffers.
  CaseRank(const Case& bench_case, int rank, int world_size, std::array<void*, 2> controls,
           const std::array<Buffers, 2>& sets, BenchBarrier& barrier)
      : case_(bench_case),
        rank_(rank),
        world_size_(world_size),
        sets_(sets),
        barrier_(barrier),
        collectives_(
            {MakeCollectives(controls[0], sets[0]), MakeCollectives(controls[1], sets[1])}) {}

  absl::StatusOr<Timings> Run(int runs) {
    Fill();
    std::vector<double> own, bare, copied;
    std::vector<char> from(UnitBytes(), 1), to(UnitBytes(), 2);
    for (int run = -kWarmUps; run < runs; ++run) {
      own_set_ = run & 1;
      const bool warm_up = run < 0;
      if (warm_up) ClearResult();
      TESSERA_RETURN_IF_ERROR(Prepare());
      absl::Status status;
      const double own_seconds = Timed([&] { status = Operate(); });
      TESSERA_RETURN_IF_ERROR(status);
      Release();
      const double bare_seconds = Timed([&] { RunBare(); });
      if (warm_up) {
        TESSERA_RETURN_IF_ERROR(Compare());
        continue;
      }
      own.push_back(own_seconds);
      bare.push_back(bare_seconds);
    }
    // By itself: each of the two above follows the other, so that both find the caches alike.
    for (int run = 0; run < runs; ++run) {
      copied.push_back(Timed([&] { std::memcpy(to.data(), from.data(), to.size()); }));
    }
    Timings timings = {};
    if (case_.operation == Operation::kBarrier && world_size_ > 1) {
      TESSERA_ASSIGN_OR_RETURN(timings.waiting_core_fraction, WaitForTheLast());
    }
    for (std::vector<double>* samples : {&own, &bare, &copied}) {
      std::sort(samples->begin(), samples->end());
    }
    timings.median = Percentile(own, 0.5);
    timings.p99 = Percentile(own, 0.99);
    timings.bare_median = Percentile(bare, 0.5);
    timings.memcpy_median = Percentile(copied, 0.5);
    return timings;
  }

 private:
  int64_t ShardNumel() const { return case_.numel / world_size_; }
  int64_t UnitBytes() const { return case_.numel * static_cast<int64_t>(sizeof(float)); }
  bool Narrow() const { return case_.param_dtype == v1::BFLOAT16; }
  bool Reduces() const { return case_.operation == Operation::kReduceScatter || AllReduces(); }
  // As NO_SHARD does: each rank has the whole average.
  bool AllReduces() const { return case_.operation == Operation::kAllReduce; }
  int64_t ReducedNumel() const { return AllReduces() ? case_.numel : ShardNumel(); }
  float* Reduced(const Buffers& buffers) const {
    return buffers.reduced.as<float>() + rank_ * ReducedNumel();
  }
  float* Shard(const BenchMemory& memory) const {
    return memory.as<float>() + rank_ * ShardNumel();
  }
  // Of a rank's gradients, where the slice begins that this rank reduces.
  template <typename T>
  std::vector<const T*> Slices(const Buffers& buffers) const {
    std::vector<const T*> slices;
    for (int rank = 0; rank < world_size_; ++rank) {
      const char* begin = buffers.gradients.as<char>() + rank * UnitBytes();
      slices.push_back(reinterpret_cast<const T*>(begin) +
                       (AllReduces() ? 0 : rank_ * ShardNumel()));
    }
    return slices;
  }

  // The sets of the operation and of the bare loop in this run.
  const Buffers& Own() const { return sets_[own_set_]; }
  const Buffers& Bare() const { return sets_[1 - own_set_]; }
  ShmCollectives& Data() const { return *collectives_[own_set_]; }

  std::unique_ptr<ShmCollectives> MakeCollectives(void* control, const Buffers& buffers) const {
    ShmCollectives::Options options;
    Group& group = options.group;
    if (AllReduces()) {
      group.ranks = {rank_};
      group.replicas = world_size_;
    } else {
      for (int rank = 0; rank < world_size_; ++rank) group.ranks.push_back(rank);
      group.index = rank_;
    }
    group.hosts.assign(group.ranks.size(), 0);
    options.sync.control = control;
    options.sync.local_world_size = world_size_;
    options.sync.local_rank = rank_;
    options.sync.unsharded_slots = 1;
    options.sync.gradient_slots = 1;
    options.unsharded = buffers.unit.as<char>();
    options.gradients = buffers.gradients.as<char>();
    options.layout.set_unshard_mode(case_.mode);
    v1::Slot* unit = options.layout.add_unsharded_slots();
    unit->set_bytes(UnitBytes());
    if (case_.mode == v1::RESIDENT) unit->set_unit(0);
    options.layout.add_gradient_slots()->set_bytes(UnitBytes());
    options.layout.set_gradient_stride_bytes(UnitBytes());
    options.unit_names = {"bench"};
    return std::make_unique<ShmCollectives>(std::move(options));
  }

  // The same values in both sets.
  void Fill() {
    for (const Buffers* buffers : {&sets_[0], &sets_[1]}) {
      float* gradient =
          reinterpret_cast<float*>(buffers->gradients.as<char>() + rank_ * UnitBytes());
      for (int64_t i = 0; i < case_.numel; ++i) {
        gradient[i] = static_cast<float>(i % 4099) * 1e-3f + static_cast<float>(rank_);
      }
      if (Narrow()) bare::ToBfloat16(gradient, case_.numel, reinterpret_cast<uint16_t*>(gradient));
      for (int64_t i = 0; i < ShardNumel(); ++i) {
        Shard(buffers->master)[i] = static_cast<float>(i % 2053) * 1e-2f - 1;
        Shard(buffers->exp_avg)[i] = Shard(buffers->exp_avg_sq)[i] = 0;
      }
    }
    barrier_.Wait();
  }

  template <typename Work>
  double Timed(Work work) {
    barrier_.Wait();
    const auto start = std::chrono::steady_clock::now();
    work();
    barrier_.Wait();
    return Seconds(std::chrono::steady_clock::now() - start);
  }

  absl::Status Prepare() {
    if (!Reduces()) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const Event ready, Data().AcquireGradient(0, 0, nullptr));
    return ready.Wait();
  }

  absl::Status Operate() {
    switch (case_.operation) {
      case Operation::kBarrier:
        return Data().Exchange("", "the bench's barrier").status();
      case Operation::kUnshard: {
        if (case_.mode == v1::RESIDENT) Data().PublishShard(0);
        AllGatherOp op;
        op.shard = FloatShard(absl::MakeSpan(Shard(Own().master), ShardNumel()));
        op.param_dtype = case_.param_dtype;
        TESSERA_ASSIGN_OR_RETURN(const Event whole, Data().AllGather(op, nullptr, nullptr));
        return whole.Wait();
      }
      case Operation::kReduceScatter:
      case Operation::kAllReduce: {
        ReduceScatterOp op;
        op.shard = FloatShard(absl::MakeSpan(Reduced(Own()), ReducedNumel()));
        op.gradient_dtype = case_.param_dtype;
        TESSERA_ASSIGN_OR_RETURN(const Event reduced, Data().ReduceScatter(op, nullptr, nullptr));
        return reduced.Wait();
      }
      case Operation::kOptimizer:
        UpdateRun run;
        run.numel = ShardNumel();
        run.decay = true;
        run.gradient = Slices<float>(Own())[rank_];
        run.parameter = Shard(Own().master);
        run.state = {Shard(Own().exp_avg), Shard(Own().exp_avg_sq)};
        run.copy = Own().unit.as<uint16_t>() + rank_ * ShardNumel();
        run.copy_dtype = v1::BFLOAT16;
        UpdateElements({}, {.update = 10, .learning_rate = 1e-3}, run);
        return absl::OkStatus();
    }
    return absl::InternalError("an operation that the bench does not know");
  }

  void Release() {
    if (case_.operation == Operation::kUnshard) Data().ReleaseUnsharded(0);
  }

  void RunBare() {
    if (case_.operation == Operation::kBarrier) return barrier_.Wait();
    if (case_.operation == Operation::kOptimizer) {
      return bare::StreamAdamW(Slices<float>(Bare())[rank_], ShardNumel(), Shard(Bare().master),
                               Shard(Bare().exp_avg), Shard(Bare().exp_avg_sq),
                               Bare().unit.as<uint16_t>() + rank_ * ShardNumel());
    }
    if (Reduces()) {
      if (Narrow()) {
        return bare::AverageBfloat16(Slices<uint16_t>(Bare()), ReducedNumel(), Reduced(Bare()));
      }
      return bare::Average(Slices<float>(Bare()), ReducedNumel(), Reduced(Bare()));
    }
    if (case_.mode == v1::RESIDENT) return;  // nothing moves
    if (Narrow()) {
      return bare::ToBfloat16(Shard(Bare().master), ShardNumel(),
                              Bare().unit.as<uint16_t>() + rank_ * ShardNumel());
    }
    std::memcpy(Shard(Bare().unit), Shard(Bare().master), ShardNumel() * sizeof(float));
  }

  // What the operation makes and the bare loop makes too; null where there is no such thing.
  const BenchMemory* Result(const Buffers& buffers) const {
    if (Reduces()) return &buffers.reduced;
    if (case_.operation == Operation::kUnshard && case_.mode == v1::SLOTS) return &buffers.unit;
    return nullptr;
  }

  int64_t ResultBytes() const {
    if (AllReduces()) return UnitBytes() * world_size_;
    return case_.operation == Operation::kUnshard && Narrow() ? UnitBytes() / 2 : UnitBytes();
  }

  void ClearResult() {
    barrier_.Wait();  // the others may still be reading what the last run made
    if (Result(Own()) != nullptr && rank_ == 0) {
      std::memset(Result(Own())->as<char>(), 0xff, ResultBytes());
    }
    barrier_.Wait();
  }

  absl::Status Compare() const {
    if (Result(Own()) == nullptr) return absl::OkStatus();
    if (std::memcmp(Result(Own())->as<char>(), Result(Bare())->as<char>(), ResultBytes()) == 0)
      return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(ResultOf(case_, {}, world_size_).op, " in ",
                                            DTypeName(case_.param_dtype),
                                            " and its bare loop made different bits"));
  }

  // The part of a core that this rank takes while it waits for the last one, which sleeps.
  absl::StatusOr<double> WaitForTheLast() {
    barrier_.Wait();
    const auto start = std::chrono::steady_clock::now();
    timespec begin, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    if (rank_ == world_size_ - 1) {
      const timespec half_a_second = {0, 500'000'000};
      nanosleep(&half_a_second, nullptr);
    }
    TESSERA_RETURN_IF_ERROR(Data().Exchange("", "the last rank").status());
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    const double seconds = static_cast<double>(end.tv_sec - begin.tv_sec) +
                           static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-9;
    return seconds / Seconds(std::chrono::steady_clock::now() - start);
  }

  const Case case_;
  const int rank_;
  const int world_size_;
  const std::array<Buffers, 2>& sets_;
  BenchBarrier& barrier_;
  const std::array<std::unique_ptr<ShmCollectives>, 2> collectives_;
  int own_set_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunCollectiveBench(const CollectiveBenchOptions& options) {
  const std::vector<Case> cases = CasesOf(options);
  int64_t largest = 0;
  for (const Case& bench_case : cases) largest = std::max(largest, bench_case.numel * 4);
  const int64_t control_bytes = ControlFileBytes(options.world_size, 1, 1);
  const int64_t count = static_cast<int64_t>(cases.size());
  std::array<Buffers, 2> sets;
  for (Buffers& set : sets) {
    TESSERA_ASSIGN_OR_RETURN(set, Buffers::Create(largest, options.world_size));
  }
  // Every case begins with control files of its own: counters start at zero.
  TESSERA_ASSIGN_OR_RETURN(const BenchMemory control,
                           BenchMemory::Create("bench-control", 2 * control_bytes * count));
  TESSERA_ASSIGN_OR_RETURN(
      const BenchMemory found,
      BenchMemory::Create("bench-timings", count * static_cast<int64_t>(sizeof(Timings))));
  TESSERA_RETURN_IF_ERROR(
      RunBenchRanks(options.world_size, [&](int rank, BenchBarrier& barrier) -> absl::Status {
        for (int64_t i = 0; i < count; ++i) {
          char* const controls = control.as<char>() + 2 * i * control_bytes;
          CaseRank runner(cases[i], rank, options.world_size, {controls, controls + control_bytes},
                          sets, barrier);
          TESSERA_ASSIGN_OR_RETURN(const Timings timings, runner.Run(options.runs));
          if (rank == 0) found.as<Timings>()[i] = timings;
        }
        return absl::OkStatus();
      }));
  std::vector<BenchResult> results;
  for (int64_t i = 0; i < count; ++i) {
    results.push_back(ResultOf(cases[i], found.as<Timings>()[i], options.world_size));
  }
  return results;
}

}  // namespace tessera
