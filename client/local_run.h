// `tessera run`: one job from its creation to its end, on a cluster of its own.
//
//   LocalRun run(resolved_spec, binaries, /*program=*/{});
//   return run.Run();
//
// One thread (the caller's) starts processes, hears signals and sees processes end; another speaks
// to the coordinator. Thread-safety: Run is called once, from the process's main thread.
#ifndef TESSERA_CLIENT_LOCAL_RUN_H_
#define TESSERA_CLIENT_LOCAL_RUN_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/local_cluster.h"
#include "common/end_signals.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

class LocalRun {
 public:
  // `spec` is resolved and has its model in it. `program`: what each rank of a job with the
  // workload attached runs, as a path and arguments; else empty.
  LocalRun(v1::JobSpec spec, LocalBinaries binaries, std::vector<std::string> program)
      : spec_(std::move(spec)), binaries_(std::move(binaries)), program_(std::move(program)) {}
  ~LocalRun();

  // Prints `coordinator HOST:PORT`, progress and, after a job that SUCCEEDED, the tables and the
  // export's path, which a job that was drained has too. Returns the exit code: 0 SUCCEEDED, 1
  // FAILED or CANCELLED, 128 + number after a signal (the first cancels the job at once, a second
  // kills), else as Report. Every process that it started has ended.
  int Run();

 private:
  // What the job's own thread has found out.
  enum class Stage { kCreating, kCreated, kEnded };

  absl::Status Start();
  // Creates the job, then watches it. Runs in job_thread_.
  void FollowJob();
  void SetStage(Stage stage);
  // Handles signals and the ends of processes until the job has ended or there is nothing more to
  // wait for.
  absl::Status WaitForEnd();
  absl::Status OnWake();
  void OnSignal();
  absl::Status OnAgentEnded();
  // Prints what a job that SUCCEEDED leaves behind.
  void PrintResults(const v1::JobStats& stats) const;
  // "" where the job writes none.
  std::string FileLines(int64_t step) const;

  const v1::JobSpec spec_;
  const LocalBinaries binaries_;
  const std::vector<std::string> program_;

  std::optional<EndSignals> signals_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Client> client_;
  UniqueFd wake_;  // eventfd: stage_ has changed
  int signal_ = 0;
  bool agent_ended_ = false;
  int64_t agents_lost_ = 0;
  // When to stop waiting for an end that a signal or the agent's end should bring about.
  absl::Time give_up_ = absl::InfiniteFuture();

  Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kCreating;
  absl::StatusOr<v1::Job> job_ ABSL_GUARDED_BY(mutex_) =
      absl::UnknownError("the job has not ended");

  std::jthread job_thread_;
  std::jthread cancel_thread_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_LOCAL_RUN_H_
