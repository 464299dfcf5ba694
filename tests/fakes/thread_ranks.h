// The ranks of a job as threads of one process over one set of buffers: the whole data path
// (planner's layout, shared-memory collectives, executor, shard store, session) without agent,
// coordinator and sockets.
//
//   TESSERA_ASSIGN_OR_RETURN(auto ranks, ThreadRanks::Create(spec, /*world_size=*/2, {}));
//   std::vector<absl::Status> statuses =
//       ranks->Run([](Session& session) { ...; return session.Finish(); });
//
// Lag: with Options.lag_rank set, that rank stands still at every passage of the named point until
// every other rank is parked (it waits for somebody) or has ended: the greatest lag there is, and
// no clock is involved.
#ifndef TESSERA_TESTS_FAKES_THREAD_RANKS_H_
#define TESSERA_TESTS_FAKES_THREAD_RANKS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/job_planner.h"
#include "tessera/v1/job.pb.h"
#include "worker/session.h"
#include "worker/session_impl.h"

namespace tessera {

class ThreadRanks {
 public:
  struct Options {
    // The rank that lags, and where (worker/fault_points.h); -1: none.
    int lag_rank = -1;
    std::string lag_point;
    int lag_passage = 0;  // of the point, from 1; 0: each
    // With two ranks and a lag_passage: where, and at which passage, the other rank waits for the
    // lag to begin, so that what it does next falls into it. "": nowhere.
    std::string meet_point = "";
    int meet_passage = 1;
    // Makes the ranks' layout another than the one by which the memory is made.
    std::function<void(v1::Layout&)> spoil_layout = nullptr;
    absl::Duration timeout = absl::Seconds(30);
    // The ranks are processes that are forked after Create and call MakeSession.
    bool forked = false;
    // What each rank's session gets in place of its collectives; empty: these.
    std::function<std::unique_ptr<Collectives>(int rank, std::unique_ptr<Collectives>)> wrap =
        nullptr;
    // Makes a rank's line to a coordinator; none: null.
    std::function<std::unique_ptr<MembershipClient>(int rank)> membership = nullptr;
    // Called by each rank's thread that writes checkpoints, at its fault points. Null: nothing.
    std::function<void(int rank, absl::string_view point)> writer_fault = nullptr;
    // What else a rank does before its shards are made: it may replace its collectives, as a rank
    // on a GPU does. Null: nothing.
    std::function<absl::Status(int rank, absl::Span<char> rank_file, SessionParts& parts)> prepare =
        nullptr;
  };

  // `spec` is resolved here. Shards are filled by the spec's seed, or as spec.checkpoint says.
  static absl::StatusOr<std::unique_ptr<ThreadRanks>> Create(const v1::JobSpec& spec,
                                                             int world_size, Options options);

  const JobPlan& plan() const { return plan_; }
  // How often the lagging rank stood still.
  int64_t lags() const { return lags_; }
  // A rank's memory file.
  absl::Span<char> rank_file(int rank) {
    return absl::MakeSpan(files_[rank]->data(), plan_.layout.rank_file().total_bytes());
  }

  // What is another for a rank that takes over from one that is gone.
  struct Wiring {
    char* control = nullptr;    // of the generation; null: the ranks' own
    std::vector<int> peer_fds;  // by rank: readable once it is gone; none: nobody goes
    int64_t generation = 1;
    bool recover = false;
    std::unique_ptr<FaultPoints> faults;  // null: those of Options
    std::shared_ptr<FaultPoints> writer_faults;
    std::shared_ptr<NextGeneration> next;
  };
  // Shards are filled unless an earlier holder of the rank has filled them.
  absl::StatusOr<SessionParts> MakeParts(int rank, Wiring wiring);
  std::unique_ptr<Collectives> MakeCollectives(int rank, const Wiring& wiring, FaultPoints* faults);
  int64_t control_bytes() const;
  v1::Assignment AssignmentOf(int rank, int64_t generation) const;

  // One rank's session, for programs whose ranks are processes (Options.forked). At most one for
  // each rank.
  absl::StatusOr<std::unique_ptr<Session>> MakeSession(int rank);

  // Runs `body` on every rank, each in a thread of its own, and gives what they returned, in rank
  // order. A rank whose body fails aborts its session with that status. Once only.
  std::vector<absl::Status> Run(const std::function<absl::Status(Session&)>& body);

 private:
  // Zeroed memory aligned to a page. On the heap, so that AddressSanitizer sees its end; or, with
  // `forked`, shared with the processes that are forked later.
  class Buffer {
   public:
    Buffer(int64_t bytes, bool forked);
    ~Buffer();
    char* data() { return data_; }
    // Under AddressSanitizer any access outside `regions` ([begin, end) in bytes, in order) is an
    // error.
    void AllowOnly(const std::vector<std::pair<int64_t, int64_t>>& regions);

   private:
    char* data_;
    int64_t bytes_;
    bool forked_;
  };

  ThreadRanks(v1::JobSpec spec, JobPlan plan, int world_size, Options options);
  std::unique_ptr<FaultPoints> MakeFaults(int rank);
  absl::StatusOr<std::unique_ptr<ShardStore>> MakeStore(int rank, const SessionParts& parts);
  int64_t UnshardedOffset(int rank) const;
  void Lag();
  void Meet();
  bool Idle(int rank) const { return idle_[rank].load(std::memory_order_relaxed); }

  const v1::JobSpec spec_;
  const JobPlan plan_;
  const int world_size_;
  const Options options_;
  Buffer unsharded_, gradients_, control_;
  std::vector<std::unique_ptr<Buffer>> files_;
  // Relaxed, all of these: standing still orders nothing, so that ThreadSanitizer still sees what
  // the protocol alone has to order.
  std::vector<std::atomic<bool>> idle_;  // ranks that are parked or have ended
  std::vector<std::atomic<bool>> ended_;
  std::atomic<int64_t> lags_{0};
  std::atomic<bool> met_{false};
};

}  // namespace tessera

#endif  // TESSERA_TESTS_FAKES_THREAD_RANKS_H_
