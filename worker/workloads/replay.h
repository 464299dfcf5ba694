// The built-in workload "replay": takes any plan through the steps of training without computing
// anything, and checks what comes of it.
//
//   TESSERA_ASSIGN_OR_RETURN(auto session, Session::Join({}));
//   TESSERA_RETURN_IF_ERROR(RunReplay(*session));
//   return session->Finish();
//
// A step, for each micro-batch: units forward in the order of the module tree, the units below one
// within its use, then backward in the reverse order; the root is whole from its forward to its
// backward. Each is used replay.uses times a pass, and replay.compute_us pass in each use. Backward
// writes the gradients of replay_values.h, each tied name's too; on each rank other parameters and
// units have none. Checked:
//   - after the reductions of each step every element of this rank's gradient shards, with its
//     padding, against the average worked out from the rule alone;
//   - in the first step every parameter that is unsharded against the seed's values;
//   - in each step that all ranks unshard the same bits, in the forward and in evaluations, which
//     come as job.eval_every says.
#ifndef TESSERA_WORKER_WORKLOADS_REPLAY_H_
#define TESSERA_WORKER_WORKLOADS_REPLAY_H_

#include <functional>

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"
#include "worker/session.h"

namespace tessera {

// Runs the job's remaining steps, through generations that end. Does not call Finish. Every 20
// steps and at the last one rank 0 reports Progress, with a loss of 0 and without tokens per
// second.
//
// Errors of the session, and:
//   INVALID_ARGUMENT  no gradients but zero are exact in the job's dtypes (MakeReplayRule).
//   DATA_LOSS         an element is not what it must be: names rank, unit, FQN, element and step,
//                     with what was expected; or the ranks unsharded different bits.
//
// `on_progress`, if given, is called on rank 0 with each Progress, from this thread, before it is
// sent.
absl::Status RunReplay(Session& session,
                       std::function<void(const v1::Progress&)> on_progress = nullptr);

// And Finish; a rank that is lost meanwhile is recovered from, too.
absl::Status RunReplayToTheEnd(Session& session);

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_REPLAY_H_
