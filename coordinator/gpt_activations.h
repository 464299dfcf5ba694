// What the workload gpt allocates for its passes, counted as worker/workloads/gpt_model.cc places
// it (its activation_bytes()) and worker/workloads/gpt_float32.h grows to; tests/gpt compares. For
// activations.cc.
//
// Thread-safety: a pure function.
#ifndef TESSERA_COORDINATOR_GPT_ACTIVATIONS_H_
#define TESSERA_COORDINATOR_GPT_ACTIVATIONS_H_

#include "coordinator/activations.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// `pass` has batch, sequence and recompute. All of it is there from the first step on.
Activations GptActivations(const v1::Plan& plan, const v1::ModelSource& model,
                           const v1::ActivationSpec& pass);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_GPT_ACTIVATIONS_H_
