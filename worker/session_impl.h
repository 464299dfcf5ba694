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

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "common/report_schedule.h"
#include "worker/checkpoint_saver.h"
#include "worker/loss_scale.h"
#include "worker/norm.h"
#include "worker/session.h"
#include "worker/session_parts.h"
#include "worker/session_trace.h"
#include "worker/unit_executor.h"

namespace tessera {

class SessionImpl {
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
  // Of a rank that took over its memory file: goes on where that one stopped, with all other ranks,
  // and waits until they do. Instead of AgreeOnStart.
  absl::Status EnterRecovered();
  // Saves the last checkpoint, if the job wants one and it is not saved already. A step that was
  // begun and not used is over.
  absl::Status SaveLast();
  // The job goes on after Finish with another world size: nothing is exported.
  bool resizing() const { return resizing_; }

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

  // Ends the session with `status` unless it is OK, or has ended already. Returns `status`; where
  // there can be a next generation, and `status` is of a kind that it mends, it is the generation
  // that has ended: ABORTED (GENERATION_ENDED), until BeginStep.
  absl::Status Keep(absl::Status status);

  // For the headers beside session.h.
  UnitExecutor& executor() { return *executor_; }
  bool in_step() const { return in_step_; }
  bool begun() const { return begun_; }               // a step, ever
  int64_t updates() const { return state_.updates; }  // steps that were not skipped
  bool has_reduce_hook() const { return reduce_hook_ != nullptr; }
  void SetReduceHook(UnitExecutor::ReduceHook hook);
  void SetPrefetch(int unit, bool backward, std::vector<int> ahead);
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

  // session_generations.cc: the end of a generation, and what a session does to get into the next.
  void MakeExecutor();
  void MakeSaver(int64_t loaded_step);
  absl::Status EndGeneration(const absl::Status& why);
  absl::Status Rejoin();
  absl::Status TakeOver(GenerationParts next);
  absl::Status Recover();
  absl::Status FinishCommitted(int64_t step);
  void LeaveUnusedStep();
  // What follows from a step's votes, once they are all known: the commit.
  StepResult Commit(const std::vector<Vote>& votes);
  void SetState(const FilledWith& start);

  SessionParts parts_;
  v1::Plan plan_;
  std::map<std::string, Place, std::less<>> places_;  // tied names too
  StatsRecorder stats_;
  SessionTrace trace_;
  std::unique_ptr<UnitExecutor> executor_;  // of the generation
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
  ReportSchedule reports_;
  std::unique_ptr<CheckpointSaver> saver_;  // of the generation
  bool ended_ = false;  // the generation is over, and the next BeginStep joins another
  // Of the generation: leases of an earlier one have nothing to release.
  std::shared_ptr<char> life_ = std::make_shared<char>();
  int64_t attempt_ = 1;                  // of the step after state_.step
  std::optional<StepResult> recovered_;  // for the next BeginStep to give
  bool begun_ = false;
  bool step_unused_ = false;  // the last one begun: it may be left as it is
  bool resizing_ = false;
  Mutex mutex_;  // of Abort and a change of generation: parts_ stay as they are once left_ is set
  // What the program has set, for every generation's executor.
  std::optional<std::vector<int>> order_;
  UnitExecutor::ReduceHook reduce_hook_;
  std::map<std::pair<int, bool>, std::vector<int>> prefetch_;
  std::vector<v1::Progress> recent_progress_;  // said again in the next generation
};

// How the headers beside session.h get at what a Session is made of.
class SessionAccess {
 public:
  static SessionImpl& Of(Session& session) { return *session.impl_; }
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SESSION_IMPL_H_
