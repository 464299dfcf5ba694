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
#include "worker/agreement.h"
#include "worker/checkpoint_saver.h"
#include "worker/collectives/collectives.h"
#include "worker/fault_points.h"
#include "worker/loss_scale.h"
#include "worker/membership_client.h"
#include "worker/norm.h"
#include "worker/session.h"
#include "worker/session_trace.h"
#include "worker/shard_store.h"
#include "worker/stats_recorder.h"
#include "worker/training_state.h"
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
  UniqueFd directory_lock;                      // as PrepareDirectory gave it
  TrainingState start;                          // what the shards were filled with
  std::shared_ptr<PositionPublisher> position;  // null: nobody wants to know
  std::unique_ptr<Agreement> held;              // of the joining
  std::unique_ptr<FaultPoints> faults;
  std::shared_ptr<FaultPoints> writer_faults;  // of the thread that writes checkpoints; may be null
  // A GPU's rank: what its collectives talk to the host's other ranks through. Else null.
  std::unique_ptr<Collectives> host_collectives;
  std::unique_ptr<Collectives> collectives;
  Stream* stream = nullptr;  // where the program computes, the collectives' own; CPU: null
  std::unique_ptr<ShardStore> store;
  // Last, so that it goes first: its threads call into the collectives. May be null in tests.
  std::unique_ptr<MembershipClient> membership;
};

// The ranks that have the shards of one copy of the model, this rank among them.
Group ShardGroupOf(const v1::Assignment& assignment, const v1::Layout& layout, int host);

class SessionImpl : public std::enable_shared_from_this<SessionImpl> {
 public:
  explicit SessionImpl(SessionParts parts);
  ~SessionImpl();

  const SessionParts& parts() const { return parts_; }
  const v1::Plan& plan() const { return plan_; }
  FaultPoints& faults() { return *parts_.faults; }
  SessionTrace& trace() { return trace_; }
  int64_t step() const { return state_.step; }

  // Every rank starts from the same step. FAILED_PRECONDITION: names one that does not.
  absl::Status AgreeOnStart();
  // Saves the last checkpoint, if the job wants one and it is not saved already.
  absl::Status SaveLast();

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
  absl::StatusOr<SummonedParameter> Summon(absl::string_view fqn, bool writeback);
  absl::StatusOr<std::vector<SummonedParameter>> SummonUnit(int unit, bool keep);
  absl::Status AllReduceSum(absl::Span<double> values);
  absl::Status Barrier(absl::string_view what);
  void ReportProgress(const v1::Progress& progress);
  absl::StatusOr<ShardSpan> GradientShard(int unit) const;
  absl::Status Finish();
  void Abort(const absl::Status& status);

  // Ends the session with `status` unless it is OK, or has ended already. Returns `status`.
  absl::Status Keep(absl::Status status);

  // For the headers beside session.h.
  UnitExecutor& executor() { return executor_; }
  bool in_step() const { return in_step_; }
  int64_t updates() const { return state_.updates; }  // steps that were not skipped
  bool has_reduce_hook() const { return executor_.has_reduce_hook(); }
  void SetReduceHook(UnitExecutor::ReduceHook hook) { executor_.SetReduceHook(std::move(hook)); }
  absl::Status CheckUsable() const { return Usable(); }
  // Indices of the parameter's unit and of the parameter there; tied names too. NOT_FOUND.
  absl::StatusOr<std::pair<int, int>> PlaceOf(absl::string_view parameter_fqn) const;
  // As worker/write_back.h.
  absl::Status WriteBack(absl::Span<const SummonedParameter> changed);
  // FAILED_PRECONDITION: the session is over or in a step; `what` is the caller's name.
  absl::Status CheckIdle(absl::string_view what);
  // Waits until every rank is in `what`, and gives what each says, in rank order: `payload`, at
  // most 112 bytes and as long on every rank. FAILED_PRECONDITION (ORDER_MISMATCH): another rank is
  // in something else; names it.
  absl::StatusOr<std::vector<std::string>> Meet(absl::string_view what, absl::string_view payload);
  // Around a change of this rank's shard of the unit, between which no rank reads it. All ranks
  // call both, and have met in between. FAILED_PRECONDITION: the unit is in use.
  absl::Status BeginWriting(int unit);
  void EndWriting(int unit);
  // The shards are those of another moment.
  void ResumeAt(int64_t step, int64_t updates, double loss_scale, int64_t loss_scale_age);
  const LossScale& loss_scale() const { return loss_scale_; }
  // Averages of parameters in no unit, the same on every rank, that the step's norm counts.
  void CountUnmanaged(const FlatTensor& averages);

  // For leases.
  void Release(int unit);
  absl::StatusOr<TensorView> Parameter(int unit, absl::string_view fqn) const;

 private:
  // Where a parameter lies: index of its unit and its index there.
  struct Place {
    int unit = 0;
    int parameter = 0;
  };

  // Whole parameters to be written back, by index in their unit.
  struct Changes {
    int unit = -1;
    std::map<int, const SummonedParameter*> parameters;
  };

  absl::StatusOr<Changes> FindChanges(absl::Span<const SummonedParameter> changed,
                                      int summoned) const;
  absl::Status AgreeOn(const Changes& changes);
  absl::StatusOr<Place> Find(absl::string_view parameter_fqn) const;
  absl::StatusOr<Place> FindIn(int unit, absl::string_view parameter_fqn) const;
  TensorView View(const Place& place, void* data) const;
  absl::Status CheckUnit(int unit) const;
  // The session is over once something has failed, or Finish or Abort was called.
  absl::Status Alive() const;
  // Alive, and no Summon waits for its WriteBack.
  absl::Status Usable() const;
  absl::StatusOr<std::vector<Vote>> ExchangeVotes(const Vote& own);
  Vote MeasureGradients() const;
  void KeepLossScale();  // in state_
  StepResult Tally(const std::vector<Vote>& votes) const;
  absl::Status WriteGradientsForTests() const;
  void SpoilGradientForTests();
  void Report(bool now);

  SessionParts parts_;
  v1::Plan plan_;
  std::map<std::string, Place, std::less<>> places_;  // tied names too
  StatsRecorder stats_;
  SessionTrace trace_;
  UnitExecutor executor_;
  const double norm_type_;
  NormSum unmanaged_;              // of the step; counted by rank 0
  absl::Status failure_;           // of the calling thread: the first; every later call returns it
  std::atomic<bool> left_{false};  // Finish or Abort has been here
  bool in_step_ = false;
  int summoned_unit_ = -1;  // by a Summon with writeback, until WriteBack; -1: none
  uint64_t meetings_ = 0;   // calls of Meet
  MicroBatch micro_batch_;
  StepOptions step_options_;
  LossScale loss_scale_;
  TrainingState state_;  // of the last step committed
  std::vector<v1::Progress> unsent_progress_;
  absl::Time last_report_ = absl::InfinitePast();
  CheckpointSaver saver_;
};

// How the headers beside session.h get at what a Session is made of.
class SessionAccess {
 public:
  static SessionImpl& Of(Session& session) { return *session.impl_; }
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SESSION_IMPL_H_
