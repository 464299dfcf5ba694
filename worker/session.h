// Session: sharded training for a program that keeps its own loop. The program IS the rank.
//
//   TESSERA_ASSIGN_OR_RETURN(auto session, Session::Join({}));
//   TESSERA_ASSIGN_OR_RETURN(const int block, session->FindUnit("h.0"));
//   while (session->step() < session->job().steps()) {
//     TESSERA_ASSIGN_OR_RETURN(const StepInfo step, session->BeginStep({.learning_rate = rate}));
//     TESSERA_RETURN_IF_ERROR(session->BeginMicroBatch({.index = 0}));
//     {
//       TESSERA_ASSIGN_OR_RETURN(UnitLease lease, session->Unshard(block, Phase::kForward));
//       TESSERA_ASSIGN_OR_RETURN(TensorView weight, lease.Parameter("h.0.mlp.c_fc.weight"));
//       ... compute ...
//     }  // the use ends here
//     ... backward: Unshard(block, Phase::kBackward), write into GradientView(...), then
//     TESSERA_RETURN_IF_ERROR(session->Reduce(block));
//     TESSERA_ASSIGN_OR_RETURN(const StepResult result,
//                              session->EndStep({.loss_sum = loss, .loss_count = tokens}));
//     if (result.drain) break;
//   }
//   return session->Finish();
//
// Every rank makes the same calls with the same units in the same order. A rank that does not is
// named, with the unit, in the error of the ranks that see it. Every wait has a deadline
// (timeouts.collective) and ends when a peer is gone.
//
// Errors that any call may return, beside its own:
//   UNAVAILABLE          a peer or the agent is gone; the message names the rank or host.
//   ABORTED              (GENERATION_ENDED) a rank was lost, as this one has seen or was told, and
//                        the job goes on: leases are dropped, and BeginStep joins the next
//                        generation. (JOB_ENDED) the job is over, or Abort came.
//   DEADLINE_EXCEEDED    ranks did not arrive within timeouts.collective; the message names them
//                        and the unit.
//   FAILED_PRECONDITION  ranks disagree on unit or order (ORDER_MISMATCH); or a call out of place,
//                        e.g. Reduce outside a step.
//   NOT_FOUND            no such unit or parameter.
// After any other the session is over: leases are dropped, every later call returns the same error.
//
// Thread-safety: one thread calls; Abort may be called from any.
#ifndef TESSERA_WORKER_SESSION_H_
#define TESSERA_WORKER_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/device/device.h"
#include "worker/session_types.h"
#include "worker/shard_span.h"
#include "worker/tensor_view.h"

namespace tessera {

class Session;
class SessionImpl;
class WrapBuilder;

// One use of an unsharded unit. Moved, never copied; the use ends with it. Uses of one unit are
// counted.
class UnitLease {
 public:
  UnitLease() = default;
  UnitLease(UnitLease&& other) noexcept;
  UnitLease& operator=(UnitLease&& other) noexcept;
  ~UnitLease();

  // A parameter of the unit by its FQN or a tied one. The memory is valid until the lease is
  // dropped. FAILED_PRECONDITION: the lease is empty, dropped or from a session that is over.
  // NOT_FOUND: not in this unit; the message says which has it.
  absl::StatusOr<TensorView> Parameter(absl::string_view fqn) const;

  int unit() const { return unit_; }

 private:
  friend class SessionImpl;
  UnitLease(std::weak_ptr<SessionImpl> session, int unit)
      : session_(std::move(session)), unit_(unit) {}
  void Drop();

  std::weak_ptr<SessionImpl> session_;
  int unit_ = -1;
};

class Session {
 public:
  struct Options {
    // Where a generation's end is to be noticed by a program that is busy elsewhere. Called once
    // for each, from another thread.
    std::function<void(const absl::Status&)> on_end = nullptr;
    // The program computes on its rank's GPU where the job's device is cuda. false: such a job is
    // refused, since a CPU cannot read its views.
    bool on_gpu = false;
    // Of a job with model.built: what this rank has built (worker/wrap.h). It keeps its own on_end.
    std::shared_ptr<WrapBuilder> built = nullptr;
  };

  // Takes the rank that the host's agent hands out through TESSERA_AGENT_FD, fetches the units,
  // maps the memory, fills this rank's shards and waits until every rank has done so.
  // FAILED_PRECONDITION: no agent started this process (run it with `tessera-worker -- PROGRAM`);
  // the job's device is cuda, and the program or the host cannot; or the root is not wrapped.
  // INVALID_ARGUMENT: the coordinator's layout does not match its fingerprint; checkpoint.dir
  // cannot be written (FAILED_PRECONDITION: another job does); resume or import does not fit.
  // DEADLINE_EXCEEDED: the coordinator or another rank did not answer within timeouts.form.
  static absl::StatusOr<std::unique_ptr<Session>> Join(Options options);

  explicit Session(std::shared_ptr<SessionImpl> impl) : impl_(std::move(impl)) {}
  // Unless Finish or Abort came first: leaves with the error that ended the session, or as lost.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const;
  int world_size() const;
  int64_t step() const;     // the last one committed; before the first 0, or that resumed from
  int shard_index() const;  // in the rank's shard group
  const v1::JobSpec& job() const;  // with every default filled in
  const v1::Plan& plan() const;
  // Where a unit's elements lie. `unit` is one of the plan.
  const v1::UnitLayout& layout(int unit) const;
  // Device cuda: where the program computes, the CudaStream (worker/device/cuda_device.h) by which
  // leases and gradients are ordered. Others are UNIMPLEMENTED. Else null.
  Stream* stream() const;
  // Index of a unit, for the calls below; "" is the root. NOT_FOUND.
  absl::StatusOr<int> FindUnit(absl::string_view fqn) const;
  // Index of the unit that has the parameter (or a tied one). NOT_FOUND.
  absl::StatusOr<int> FindUnitOf(absl::string_view parameter_fqn) const;

  // The order in which the steps will call Unshard (kForward, kRecompute, kBackward), as unit
  // indices. Without it the first step records the order. Call before the first step. A step that
  // departs from it is FAILED_PRECONDITION (ORDER_MISMATCH).
  absl::Status DeclareOrder(std::vector<int> unshard_order);

  absl::StatusOr<StepInfo> BeginStep(const StepOptions& options);
  // FAILED_PRECONDITION: outside a step with gradients; or synchronize = false in a job without
  // memory.accumulate_unsynchronized.
  absl::Status BeginMicroBatch(const MicroBatch& micro_batch);

  // Gathers the unit if it is not whole already and counts one use of it. `stream`: where the
  // caller computes; on a CPU null is the calling thread. FAILED_PRECONDITION: more units at once
  // than the layout planned.
  absl::StatusOr<UnitLease> Unshard(int unit, Phase phase, Stream* stream = nullptr);
  // Starts to gather the unit ahead of its Unshard. Does not wait. More than memory.prefetch of
  // them: the later ones wait for their Unshard.
  absl::Status Prefetch(int unit);

  // Where backward writes the gradient of one parameter. The unit's gradients are complete when
  // Reduce is called; parameters that were not asked for count as zero.
  absl::StatusOr<GradientSlot> GradientView(int unit, absl::string_view fqn);
  // For gradients that an autograd engine allocated itself: copies or adds `gradient` (dtype and
  // shape of the parameter's view) once `ready` has passed. INVALID_ARGUMENT: another dtype or
  // shape. UNIMPLEMENTED: the job's device is cuda.
  absl::Status SubmitGradient(int unit, absl::string_view fqn, const TensorView& gradient,
                              const Event& ready);
  // Averages the unit's gradients over all ranks into this rank's gradient shard, adding to what
  // earlier micro-batches of the step left there. Does not wait. Every rank calls it, also one that
  // has no gradient for the unit. In a micro-batch that does not synchronise it keeps the gradients
  // instead (see MicroBatch).
  absl::Status Reduce(int unit, Stream* stream = nullptr);

  // Waits for the reductions, votes with every rank, and if all voted applies the optimizer to this
  // rank's shards; begins a checkpoint where one is due. FAILED_PRECONDITION: a unit with trainable
  // parameters was not reduced since it had gradients; names it. INTERNAL: saving failed earlier.
  absl::StatusOr<StepResult> EndStep(const StepMetrics& metrics);

  // The whole parameter; all ranks call it, outside a step. writeback: WriteBack (write_back.h) is
  // the next call.
  absl::StatusOr<SummonedParameter> Summon(absl::string_view fqn, bool writeback = false);

  // Every parameter of a unit for the price of one. keep = false: this rank only takes part.
  absl::StatusOr<std::vector<SummonedParameter>> SummonUnit(int unit, bool keep = true);
  // Sums up to 8 values over all ranks, in rank order; every rank gets the same bits.
  absl::Status AllReduceSum(absl::Span<double> values);
  // Waits for every rank. `what` names the moment in errors.
  absl::Status Barrier(absl::string_view what);
  // To the coordinator. Never waits.
  void ReportProgress(const v1::Progress& progress);

  // This rank's averaged gradient shard of the last step, in gradient_dtype. Only read it.
  absl::StatusOr<ShardSpan> GradientShard(int unit) const;

  // Saves what the job wants saved at its end, waits for every rank, then leaves the job as one
  // whose work succeeded. INTERNAL: a file could not be written; names it.
  absl::Status Finish();
  // Ends this rank's part with `status`; peers end with an error that names this rank.
  void Abort(const absl::Status& status);

 private:
  friend class SessionAccess;
  std::shared_ptr<SessionImpl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SESSION_H_
