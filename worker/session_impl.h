// What a Session is made of. Programs include session.h; this is for session.cc, for joining
// (session_join.cc) and for tests that put ranks into threads of one process.
#ifndef TESSERA_WORKER_SESSION_IMPL_H_
#define TESSERA_WORKER_SESSION_IMPL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/collectives/collectives.h"
#include "worker/fault_points.h"
#include "worker/membership_client.h"
#include "worker/session.h"
#include "worker/shard_store.h"
#include "worker/stats_recorder.h"
#include "worker/unit_executor.h"

namespace tessera {

// One rank's everything, ready to run.
struct SessionParts {
  v1::Assignment assignment;
  v1::JobSpec spec;  // resolved
  PlannedUnits planned;
  v1::Layout layout;  // without its units
  int host = 0;
  int64_t measured_bytes = 0;
  std::string incarnation;
  std::string
      gradients_dir;  // where the first step's gradient shards are written, for tests; "": nowhere
  UniqueFd export_lock;  // as PrepareExport gave it
  std::unique_ptr<FaultPoints> faults;
  // A GPU's rank: what its collectives talk to the host's other ranks through. Else null.
  std::unique_ptr<Collectives> host_collectives;
  std::unique_ptr<Collectives> collectives;
  Stream* stream = nullptr;  // where the program computes, the collectives' own; CPU: null
  std::unique_ptr<ShardStore> store;
  // Last, so that it goes first: its threads call into the collectives. May be null in tests.
  std::unique_ptr<MembershipClient> membership;
};

class SessionImpl : public std::enable_shared_from_this<SessionImpl> {
 public:
  explicit SessionImpl(SessionParts parts);
  ~SessionImpl();

  const SessionParts& parts() const { return parts_; }
  const v1::Plan& plan() const { return plan_; }
  FaultPoints& faults() { return *parts_.faults; }

  // As in session.h.
  absl::StatusOr<int> FindUnit(absl::string_view fqn) const;
  absl::StatusOr<int> FindUnitOf(absl::string_view parameter_fqn) const;
  absl::Status DeclareOrder(std::vector<int> order);
  absl::StatusOr<StepInfo> BeginStep(const StepOptions& options);
  absl::Status BeginMicroBatch(const MicroBatch& micro_batch);
  absl::StatusOr<UnitLease> Unshard(int unit, Phase phase);
  absl::Status Prefetch(int unit);
  absl::StatusOr<GradientSlot> GradientView(int unit, absl::string_view fqn);
  absl::Status SubmitGradient(int unit, absl::string_view fqn, const TensorView& gradient,
                              const Event& ready);
  absl::Status Reduce(int unit);
  absl::StatusOr<StepResult> EndStep(const StepMetrics& metrics);
  absl::StatusOr<SummonedParameter> Summon(absl::string_view fqn);
  absl::StatusOr<std::vector<SummonedParameter>> SummonUnit(int unit, bool keep);
  absl::Status AllReduceSum(absl::Span<double> values);
  absl::Status Barrier(absl::string_view what);
  void ReportProgress(const v1::Progress& progress);
  absl::StatusOr<ShardSpan> GradientShard(int unit) const;
  absl::Status Finish();
  void Abort(const absl::Status& status);

  // Ends the session with `status` unless it is OK, or has ended already. Returns `status`.
  absl::Status Keep(absl::Status status);

  // For leases.
  void Release(int unit);
  absl::StatusOr<TensorView> Parameter(int unit, absl::string_view fqn) const;

 private:
  // Where a parameter lies: index of its unit and its index there.
  struct Place {
    int unit = 0;
    int parameter = 0;
  };

  absl::StatusOr<Place> Find(absl::string_view parameter_fqn) const;
  absl::StatusOr<Place> FindIn(int unit, absl::string_view parameter_fqn) const;
  TensorView View(const Place& place, void* data) const;
  absl::Status CheckUnit(int unit) const;
  // The session is over once something has failed, or Finish or Abort was called.
  absl::Status Usable() const;
  absl::StatusOr<std::vector<Vote>> ExchangeVotes(const Vote& own);
  StepResult Tally(const std::vector<Vote>& votes) const;
  absl::Status WriteGradientsForTests() const;
  void SpoilGradientForTests();
  void Report(bool now);

  SessionParts parts_;
  v1::Plan plan_;
  std::map<std::string, Place, std::less<>> places_;  // tied names too
  StatsRecorder stats_;
  UnitExecutor executor_;
  absl::Status failure_;           // of the calling thread: the first; every later call returns it
  std::atomic<bool> left_{false};  // Finish or Abort has been here
  bool in_step_ = false;
  MicroBatch micro_batch_;
  StepOptions step_options_;
  int64_t step_ = 0;     // the last one committed
  int64_t updates_ = 0;  // steps that were not skipped
  std::vector<v1::Progress> unsent_progress_;
  absl::Time last_report_ = absl::InfinitePast();
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SESSION_IMPL_H_
