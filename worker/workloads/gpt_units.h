// Which units a GPT's parts need, whatever the wrap policy made of the model.
//
//   TESSERA_ASSIGN_OR_RETURN(const GptUnits units, FindGptUnits(session, shape));
//   for (const int unit : units.blocks[0].unshards) ...
//
// Thread-safety: values.
#ifndef TESSERA_WORKER_WORKLOADS_GPT_UNITS_H_
#define TESSERA_WORKER_WORKLOADS_GPT_UNITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/v1/plan.pb.h"
#include "worker/workloads/gpt_model.h"

namespace tessera {

// The root's parameters, or a block's.
struct GptPart {
  std::vector<std::string> fqns;  // in the order of kRootParameterNames or kBlockParameterNames
  std::vector<int> units;         // of each fqn
  // What the part unshards for its own use: its units, each once, less those that the root holds
  // for the whole step.
  std::vector<int> unshards;
  // The units whose last gradient of a backward pass this part writes.
  std::vector<int> reduces;
};

struct GptUnits {
  GptPart root;
  std::vector<GptPart> blocks;

  // The unshards of a step: in each micro-batch root, blocks forward, blocks backward; with
  // `recompute` each block's backward has two.
  std::vector<int> Order(int64_t micro_batches, bool recompute) const;
};

// INVALID_ARGUMENT: the plan lacks a parameter of the model or has it in another shape.
// UNIMPLEMENTED: a unit is not unsharded in float32, bfloat16 or float16.
absl::StatusOr<GptUnits> FindGptUnits(const v1::Plan& plan, const GptShape& shape);

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_GPT_UNITS_H_
