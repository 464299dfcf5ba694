// The built-in workload "gpt": trains a GPT-2 (gpt_model.h) on bytes of text with a session, as the
// job says.
//
//   TESSERA_ASSIGN_OR_RETURN(auto session, Session::Join({}));
//   TESSERA_RETURN_IF_ERROR(RunGpt(*session));
//   ... export ...
//   return session->Finish();
//
// A step, for each micro-batch: the root is whole from its forward to its backward; each block is
// whole while it computes, and its gradients are reduced as soon as they are complete. With
// activations.recompute unit a block's forward keeps its input alone, and its backward computes the
// rest again first. Where the
// wrap policy puts parameters elsewhere (all of them in the root, several blocks in one unit),
// units are taken as they come: no unit is unsharded by a block that the root holds already, and
// each is reduced once, after its last gradient.
//
// A rank's gradient is that of the mean over its own tokens (by micro-batches, each divided by
// their number), so the average over ranks that Session::Reduce makes is the gradient of the mean
// over the global batch.
#ifndef TESSERA_WORKER_WORKLOADS_GPT_H_
#define TESSERA_WORKER_WORKLOADS_GPT_H_

#include <functional>

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"
#include "worker/session.h"

namespace tessera {

// Runs the job's remaining steps, through generations that end. Does not call Finish, so that the
// caller may summon the model first. Every job.eval_every() steps and at the last one the held-out
// text is evaluated (EvaluationWindows); every 20 steps and where a step was evaluated rank 0
// reports Progress. tokens/s counts the tokens of all ranks since the last report, by the steady
// clock, without the time of evaluations.
//
// Errors of the session, and:
//   INVALID_ARGUMENT     job.data cannot be used (LoadText); the plan lacks a parameter of the
//                        model, or its shape differs.
//   UNIMPLEMENTED        a unit's param_dtype is not float32, bfloat16 or float16.
//   OUT_OF_RANGE         the loss is no longer a finite number; names the step. All ranks return
//                        it.
//   RESOURCE_EXHAUSTED   no memory for the activations.
//
// `on_progress`, if given, is called on rank 0 with each Progress, from this thread, before it is
// sent.
absl::Status RunGpt(Session& session,
                    std::function<void(const v1::Progress&)> on_progress = nullptr);

// And Finish; a rank that is lost meanwhile is recovered from, too.
absl::Status RunGptToTheEnd(Session& session);

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_GPT_H_
