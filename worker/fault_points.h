// Places where tests make a rank die or lag. In a process they come from TESSERA_TEST_FAULT, as in
//
//   TESSERA_TEST_FAULT="rank=1,point=reduce,step=7,action=kill;rank=0,point=vote,action=stop"
//
// actions: kill (SIGKILL to the process itself), stop (SIGSTOP), leak (map one page that no
// forecast knows), spoil (at the point reduced: change one element of the rank's reduced
// gradients; at the point plan: hold another plan than the other ranks), slow (wait 300 ms, each
// time). `step` absent: the first time. Only processes that were started for the generation
// `generation` [1] have the fault: not those that take over from one that it has ended. In tests
// where ranks are threads a hook is called instead.
//
// Points, in the order in which a step meets them: unshard_write, unshard_written, unshard_wait,
// lease_release, gradient_acquire, reduce_ready, reduce, reduce_read, reduced, vote, barrier,
// undo_written, optimizer, optimizer_done, checkpoint_write, checkpoint_written, checkpoint_index,
// checkpoint_rename, checkpoint_renamed, checkpoint_remove, export; and join, plan, and rejoin,
// where a rank that lived on joins the next generation. Where units are resident, unshard_write and
// unshard_written are passed when a rank has filled or updated its shard.
#ifndef TESSERA_WORKER_FAULT_POINTS_H_
#define TESSERA_WORKER_FAULT_POINTS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

class FaultPoints {
 public:
  using Hook = std::function<void(absl::string_view point, int64_t step)>;

  // No faults.
  FaultPoints() = default;
  explicit FaultPoints(Hook hook) : hook_(std::move(hook)) {}
  // From TESSERA_TEST_FAULT's text, for one rank's process of that generation; "" gives no faults.
  // INVALID_ARGUMENT: the text is malformed.
  static absl::StatusOr<FaultPoints> Parse(absl::string_view text, int rank,
                                           int64_t generation = 1);

  void set_step(int64_t step) { step_ = step; }
  // Free where there are no faults.
  void Hit(absl::string_view point) {
    if (hook_) hook_(point, step_);
  }
  // Whether what there is at the point is to be spoiled now: once.
  bool Spoils(absl::string_view point);

 private:
  static absl::StatusOr<FaultPoints> ParseOne(absl::string_view text, int rank, int64_t generation);

  Hook hook_;
  std::string spoil_point_;  // "": none
  int64_t spoil_step_ = 0;   // 0: the first time
  int64_t step_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_FAULT_POINTS_H_
